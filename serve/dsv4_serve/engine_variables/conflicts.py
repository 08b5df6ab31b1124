"""Values that exclude each other, beyond those of the toggles (`flags.py`), as data.

A name is a toggle, an engine's variable, or an option of the engine's command line (`--like-this`, whose value is its
text, True for one without).
"""

from __future__ import annotations

from collections.abc import Mapping

from dsv4_serve.errors import UsageError
from dsv4_serve.flags import Conflict, Value

FLASHMLA = "SGLANG_HACK_FLASHMLA_BACKEND"
NOT_SPARSE = ("tilelang", "triton", "torch", "comparison", "unified_kv_triton")
FP8_INDEX = (
    "SGLANG_OPT_USE_AITER_INDEXER",
    "SGLANG_OPT_USE_TILELANG_INDEXER",
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH",
    "SGLANG_DSA_HIP_DISABLE_PRESHUFFLE",
)
CUDA_ONLY = (
    "SGLANG_OPT_USE_ONLINE_COMPRESS",
    "SGLANG_EXPERIMENTAL_ONLINE_C128_MTP",
    "SGLANG_OPT_DSV41_BF16_INDEX_LOGITS",
    "SGLANG_OPT_USE_FLASHINFER_MHC",
)
ENGRAM = "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"
FP4_OPTION = "--enable-deepseek-v4-fp4-indexer"
ARCH = "hardware.arch"

CONFLICTS: tuple[Conflict, ...] = (
    Conflict((FP4_OPTION, True), ("DSV4_KV_LAYOUT", "v41"), "V4.1's index keys are FP4 without it"),
    Conflict((FP4_OPTION, True), ("DSV4_INDEXER_DTYPE", "fp8"), "it makes the index keys FP4"),
    Conflict(("--disable-radix-cache", True), ("DSV4_HICACHE", True), "the tiers hold what the radix cache gives up"),
    *(
        Conflict((FLASHMLA, name), ("DSV4_KV_LAYOUT", "v41"), "V4.1's rows are read by aiter_sparse alone")
        for name in NOT_SPARSE
    ),
    Conflict((FLASHMLA, "unified_kv_triton"), ("DSV4_HICACHE", True), "the unified pool has no host mirror"),
    *(
        Conflict((name, True), ("DSV4_INDEXER_DTYPE", "fp4"), "it concerns FP8 index keys, and would have no effect")
        for name in FP8_INDEX
    ),
    *(Conflict((name, True), (ARCH, "gfx950"), "it is CUDA's, and would have no effect") for name in CUDA_ONLY),
    Conflict(
        ("SGLANG_OPT_FLASHMLA_SPARSE_PREFILL", True),
        (ARCH, "gfx950"),
        "SGLang switches it off on ROCm whatever was asked for",
    ),
    Conflict(("SGLANG_DSA_FUSE_TOPK", True), ("--dsa-topk-backend", "torch"), "torch's top-k is not fused"),
    Conflict((ENGRAM, True), ("DSV4_KV_LAYOUT", "v4"), "V4 has no engram tables"),
    Conflict(("SGLANG_OPT_DSV41_ENGRAM_HOST_STAGING", True), (ENGRAM, False), "there is no host table to stage"),
    Conflict(("SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS", True), (ENGRAM, True), "tables lie with peers or on the host"),
    Conflict(
        ("SGLANG_DSPARK_SIMULATE_FOLD", True), ("DSV4_SPECULATIVE", "dspark"), "simulated acceptance is no answer"
    ),
    Conflict(("AITER_ONLINE_TUNE", True), (ARCH, "gfx950"), "tuning at run time stalls live requests"),
    Conflict(("AITER_TRITON_ONLY", True), ("DSV4_BACKEND", "aiter"), "AITER's FP4 writers are a compiled module"),
)

REFUSED_BY_DEFAULT = frozenset({"SGLANG_DSA_FUSE_TOPK"})
"""Variables whose default already excludes another setting, so that they must be set with it."""

# Legal, and less than it sounds.
NOTES: tuple[Conflict, ...] = (
    Conflict(
        ("DSV4_ROWGROUP", True),
        ("DSV4_SPECULATIVE", "eagle"),
        "row groups serve the verify steps of the target, from 64 rows on; draft steps have no index",
    ),
)


def refuse_conflicts(values: Mapping[str, Value]) -> None:
    """UsageError for the first pair of `values` that exclude each other; a name that is absent excludes nothing."""
    for told in _matching(CONFLICTS, values, "conflicts with"):
        raise UsageError(told)


def notes(values: Mapping[str, Value]) -> list[str]:
    return list(_matching(NOTES, values, "with"))


def _matching(pairs: tuple[Conflict, ...], values: Mapping[str, Value], word: str) -> list[str]:
    return [
        f"{_shown(*pair.when)} {word} {_shown(*pair.against)}: {pair.why}"
        for pair in pairs
        if all(name in values and values[name] == value for name, value in (pair.when, pair.against))
    ]


def _shown(name: str, value: Value) -> str:
    if name.startswith("--"):
        return name if value is True else f"{name} {value}"
    return f"{name}={int(value) if isinstance(value, bool) else value}"
