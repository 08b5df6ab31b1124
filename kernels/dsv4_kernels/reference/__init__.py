"""The reference backend: plain torch on any device, the oracle of the other backends.

Its result for one row is bitwise independent of the other rows of the call, of their number and order, and of
the width of the page table. Every step is element-wise, reduces over a fixed axis by a fixed tree, or is a
matrix product whose columns come in whole pages of 64 slots and whose rows in multiples of the head count.
"""

from dsv4_kernels.reference.candidates import candidate_blocks
from dsv4_kernels.reference.compress import compress_index_keys, compress_kv, compress_tokens
from dsv4_kernels.reference.kv_rows import dequantize_kv, norm_rope_store_kv, store_kv
from dsv4_kernels.reference.linear import linear_float32
from dsv4_kernels.reference.logits import paged_logits
from dsv4_kernels.reference.quantize import (
    quantize_query,
    quantize_query_with_weights,
    readback,
    write_index_keys,
)
from dsv4_kernels.reference.router import router_gate, router_partials
from dsv4_kernels.reference.schedule import decode_schedule, prefill_schedule
from dsv4_kernels.reference.selection import topk, topk_slots

rowgroup_logits = paged_logits

__all__ = [
    "candidate_blocks",
    "compress_index_keys",
    "compress_kv",
    "compress_tokens",
    "decode_schedule",
    "dequantize_kv",
    "linear_float32",
    "norm_rope_store_kv",
    "paged_logits",
    "prefill_schedule",
    "quantize_query",
    "quantize_query_with_weights",
    "readback",
    "router_gate",
    "router_partials",
    "rowgroup_logits",
    "store_kv",
    "topk",
    "topk_slots",
    "write_index_keys",
]
