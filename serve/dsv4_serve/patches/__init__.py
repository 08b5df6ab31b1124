"""Patches of other projects' source, without any of their text. Stands on the standard library alone."""
