"""Kernels for CDNA4 (gfx950): the paged logits in Gluon, and main KV rows with that machine's conversions.

This is `fast`: the logits' relu is inline assembly on matrix results. `dsv4_kernels.gfx950.plain` is the same kernel
without that; the known-answer test at start decides on the device.
"""

from functools import partial

from dsv4_kernels.gfx950 import logits
from dsv4_kernels.gfx950.kv_rows import dequantize_kv, norm_rope_store_kv, store_kv

paged_logits = partial(logits.paged_logits, True)
rowgroup_logits = paged_logits

__all__ = ["dequantize_kv", "norm_rope_store_kv", "paged_logits", "rowgroup_logits", "store_kv"]
