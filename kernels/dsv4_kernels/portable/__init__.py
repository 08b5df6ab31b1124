"""The portable backend: plain Triton, for any GPU that Triton compiles for, and for Triton's interpreter."""

from dsv4_kernels.portable.compress import compress_kv, compress_tokens
from dsv4_kernels.portable.compress_keys import compress_index_keys
from dsv4_kernels.portable.keys import readback, write_index_keys
from dsv4_kernels.portable.kv_dequantize import dequantize_kv
from dsv4_kernels.portable.kv_norm_rope import norm_rope_store_kv
from dsv4_kernels.portable.kv_store import store_kv
from dsv4_kernels.portable.linear import linear_float32
from dsv4_kernels.portable.logits import paged_logits
from dsv4_kernels.portable.quantize import quantize_query, quantize_query_with_weights
from dsv4_kernels.portable.router import router_gate, router_partials
from dsv4_kernels.portable.schedule import decode_schedule, prefill_schedule
from dsv4_kernels.portable.selection import candidate_blocks, topk, topk_slots

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
