"""Limits of SGLang's FP4 index path that it does not check itself: a model or size past one is a failed start."""

from __future__ import annotations

from typing import Any

from dsv4_serve.engines import index_gates
from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.index_gates import IndexRequest
from dsv4_serve.engines.sglang.index_path import C4_RATIO, IndexPath

MOST_HEADS = 64
"""The adapter's scales of a query have 16 rows of 4 columns."""
PAGE = 64
BUDGET = "SGLANG_DSV4_FP4_LOGITS_BUDGET_MB"


def check(model_config: Any, path: IndexPath) -> None:
    """Raise HookError, naming value and limit, for what would give wrong keys or scores at run time."""
    config, context = model_config.hf_config, int(model_config.context_len)
    closed = index_gates.refusals(_request(config, path))
    if closed:
        raise HookError("; ".join(closed))
    positions = int(config.max_position_embeddings)
    if context > positions:
        raise HookError(
            f"--context-length={context}: the model's RoPE table has {positions} positions (max_position_embeddings), "
            "index keys past it would not be written"
        )
    _logits_fit(context, path)


def _request(config: Any, path: IndexPath) -> IndexRequest:
    """What the gates of both engines hold against their conditions; SGLang opens the path for its models alone."""
    import torch

    return IndexRequest(
        engine="sglang",
        model_type="deepseek_v4" if path.c4 else "deepseek_v41",
        arch=str(torch.cuda.get_device_properties(0).gcnArchName),
        heads=path.heads,
        head_dim=getattr(config, "index_head_dim", 128),
        rope_dim=getattr(config, "qk_rope_head_dim", 64),
        most_heads=MOST_HEADS,
        has_fp8=path.c4,
    )


def _logits_fit(context: int, path: IndexPath) -> None:
    """The pooled block must hold the scores of one row; past it SGLang allocates anew at every launch."""
    from sglang.srt.environ import envs

    keys = -(-context // (C4_RATIO if path.c4 else 1))
    mebibytes = -(-(-(-keys // PAGE) * PAGE * 4) // 2**20)
    budget = int(envs.SGLANG_DSV4_FP4_LOGITS_BUDGET_MB.get())
    if budget < mebibytes:
        raise HookError(f"{BUDGET}={budget}: a row of {keys} keys takes {mebibytes} MiB; accepted is at least that")
