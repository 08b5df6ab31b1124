"""Runtime patches of AITER: each repairs a module that was just imported, where no edit script fits its source.

A function takes the module and the names of the defects that its probe found; none means that the probe could not
tell, and everything that the patch can repair is repaired.
"""
