"""Kernels for CDNA4 (gfx950) in Gluon: the paged logits. This is `fast`: its relu is inline assembly on matrix results.

`dsv4_kernels.gfx950.plain` is the same kernel without that; the known-answer test at start decides on the device.
"""

from functools import partial

from dsv4_kernels.gfx950 import logits

paged_logits = partial(logits.paged_logits, True)
rowgroup_logits = paged_logits

__all__ = ["paged_logits", "rowgroup_logits"]
