"""The gfx950 kernels without inline assembly on matrix results: the compiler sees every hazard."""

from functools import partial

from dsv4_kernels.gfx950 import logits

paged_logits = partial(logits.paged_logits, False)
rowgroup_logits = paged_logits

__all__ = ["paged_logits", "rowgroup_logits"]
