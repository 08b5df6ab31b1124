"""The hooks on vLLM 0.33.0: its gate of the MXFP4 index, and the three places where it takes AITER's functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.vllm import export, functions, gate, graphs, index_format, routes

OPS = "vllm.v1.attention.ops.rocm_paged_mxfp4_indexer"
GATE = "vllm.v1.attention.backends.mla.indexer"


def _launcher(original: Function) -> Function:
    """`_aiter()`: the module of scores and schedules."""

    def launcher() -> Any:
        chosen = routes.current()
        if chosen is None:
            return original()
        route = chosen[functions.SCORE.operation]
        if route.backend != "aiter":
            return route.module  # it counts its rows itself
        score = functions.rows_counted(route.function("paged_mxfp4_mqa_logits"))
        names = {name: getattr(route.module, name) for name in functions.LAUNCHER_NAMES}
        return SimpleNamespace(**names | {"paged_mxfp4_mqa_logits": score})

    return launcher


def _cache_ops(original: Function) -> Function:
    """`_aiter_indexer_cache_ops()`: (writer of keys, quantiser of queries)."""

    def cache_ops() -> Any:
        chosen = routes.current()
        if chosen is None:
            return original()
        return (
            chosen[functions.WRITE_KEYS.operation].function("k_norm_rope_mxfp4_cache"),
            chosen[functions.QUANTIZE_QUERY.operation].function("q_rope_mxfp4_quant"),
        )

    return cache_ops


def _topk(original: Function) -> Function:
    """`_aiter_topk()`: the top-k of wide or many rows; of few rows vLLM takes its own."""

    def topk() -> Any:
        chosen = routes.current()
        return original() if chosen is None else chosen[functions.SELECT.operation].function("top_k_per_row_decode")

    return topk


HOOKS: tuple[Hook, ...] = (
    Hook(GATE, "dsa_indexer_uses_fp4", gate.checked, "one policy of gates, before weights load", needed=True),
    Hook(OPS, "_aiter", _launcher, "scores and schedules", needed=True),
    Hook(OPS, "_aiter_indexer_cache_ops", _cache_ops, "index keys and queries", needed=True),
    Hook(OPS, "_aiter_topk", _topk, "the best of wide or many rows", needed=True),
    *index_format.HOOKS,
    *graphs.HOOKS,
    *export.HOOKS,
)
