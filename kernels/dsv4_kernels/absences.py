"""Why a backend does not offer an operation, as data: shown by `dsv4 kernels backends`, in the manifest, the log and
the reasons of fallbacks.
"""

from __future__ import annotations

from collections.abc import Mapping

KV = ("store_kv", "norm_rope_store_kv", "dequantize_kv")
COMPRESSED = ("compress_tokens", "compress_kv")
SCORES = ("paged_logits", "rowgroup_logits")
QUERIES = ("quantize_query", "quantize_query_with_weights", "write_index_keys", "readback")
CHOICES = ("topk", "topk_slots", "candidate_blocks")
SCHEDULES = ("decode_schedule", "prefill_schedule")
PRODUCTS = ("router_partials", "router_gate", "linear_float32")

LOGITS_ALONE = "written for the scores alone: portable compiles the rest for gfx950"
ROWS_ALONE = "the portable kernels of rows with gfx950's conversions of several values, which this has no use for"
SM90_ALONE = "written for paged_logits on sm90 alone: portable compiles the rest"

_Groups = tuple[tuple[tuple[str, ...], str], ...]

AITER: _Groups = (
    (("quantize_query_with_weights",), "none of its launches takes the head weights with the query"),
    (("readback",), "it reads keys inside its scores alone"),
    (("topk", "topk_slots"), "none of its kernels promises that the lowest index wins a tie"),
    (("candidate_blocks",), "it knows no candidate blocks"),
    (("decode_schedule",), "its schedule kernel does not compile in useful time past 128 rows"),
    (("prefill_schedule",), "its schedule is private, and not safe in a captured graph past 4,096 rows"),
    (KV, "its writers know none of these rows"),
    (
        (*COMPRESSED, "compress_index_keys"),
        "none of its kernels has this state, this order of the sum and this rounding",
    ),
    (("router_partials",), "its product's result depends on the batch"),
    (("router_gate",), "topk_gating computes log2(1 + exp2(x)), whose weights differ in the last places"),
    (
        ("linear_float32",),
        "its product rounds to bfloat16, also when asked for float32, unless a tuned kernel is listed for the shape, "
        "and depends on the batch",
    ),
)

ABSENCES: dict[str, _Groups] = {
    "aiter": AITER,
    **dict.fromkeys(
        ("gfx950", "gfx950_plain"),
        (
            ((*KV, *COMPRESSED), "gfx950_rows has them"),
            ((*QUERIES, *CHOICES, *SCHEDULES, *PRODUCTS, "compress_index_keys"), LOGITS_ALONE),
        ),
    ),
    "gfx950_rows": (
        (SCORES, "gfx950 has them"),
        ((*QUERIES, *CHOICES, *SCHEDULES, *PRODUCTS, "compress_index_keys"), ROWS_ALONE),
    ),
    "hopper": (
        (("rowgroup_logits",), "engines launch row groups on gfx950 alone"),
        ((*QUERIES, *CHOICES, *SCHEDULES, *KV, *COMPRESSED, "compress_index_keys", *PRODUCTS), SM90_ALONE),
    ),
}


def of(backend: str) -> Mapping[str, str]:
    """The reason by operation, of those that `backend` does not offer."""
    return {op: reason for ops, reason in ABSENCES.get(backend, ()) for op in ops}
