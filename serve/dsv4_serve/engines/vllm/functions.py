"""The functions of AITER that vLLM 0.33.0's MXFP4 index calls, and ours of the same names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OURS = "dsv4_serve.engines.vllm"


@dataclass(frozen=True, slots=True)
class IndexFunctions:
    """What serves one operation: `module` of AITER has `names`, which vLLM calls; `ours` has the same."""

    operation: str
    module: str
    ours: str
    names: tuple[str, ...]

    def load(self, module: str) -> Any:
        """The module, with every name. Raises ImportError or AttributeError that says what is missing."""
        found = importlib.import_module(module)
        for name in self.names:
            if not hasattr(found, name):
                raise AttributeError(f"{module} has no {name}")
        return found


LAUNCHER_NAMES = (
    "SCHED_SLOT_CAP",
    "build_candidate_gather",
    "build_schedule",
    "cache_format",
    "paged_mxfp4_mqa_logits",
    "select_config",
)

WRITE_KEYS = IndexFunctions(
    "write_index_keys",
    "aiter.ops.triton.fusions.k_norm_rope_mxfp4_cache",
    f"{OURS}.writers",
    ("k_norm_rope_mxfp4_cache",),
)
QUANTIZE_QUERY = IndexFunctions(
    "quantize_query", "aiter.ops.triton.rope.q_rope_mxfp4_quant", f"{OURS}.writers", ("q_rope_mxfp4_quant",)
)
SCORE = IndexFunctions(
    "paged_logits", "aiter.ops.triton.attention.pa_mqa_logits_mxfp4", f"{OURS}.launcher", LAUNCHER_NAMES
)
SELECT = IndexFunctions("topk", "aiter.ops.topk", f"{OURS}.selection", ("top_k_per_row_decode",))

FUNCTIONS: tuple[IndexFunctions, ...] = (SCORE, WRITE_KEYS, QUANTIZE_QUERY, SELECT)
"""Scores first: their launcher tells the order of a page, in which keys are then asked to be written."""

Counted = Callable[..., Any]


def rows_counted(score: Counted) -> Counted:
    """AITER's `paged_mxfp4_mqa_logits(q, ...)`, whose query rows are counted as ours are."""

    def launch(q: Any, *args: Any, **kwargs: Any) -> Any:
        from dsv4_serve.engines.inside_work import count_rows
        from dsv4_serve.engines.vllm.step import phase

        scope = "candidates" if kwargs.get("use_gather") else "whole"
        count_rows(SCORE.operation, phase(), scope, q.shape[:-2].numel())
        return score(q, *args, **kwargs)

    return launch


def counted(function: Counted, operation: str, backend: str) -> Counted:
    """`function`, whose launches are counted as ours are."""

    def launch(*args: Any, **kwargs: Any) -> Any:
        from dsv4_kernels import counters
        from dsv4_serve.engines.vllm.step import phase

        counters.count_launch(operation, phase(), backend)
        return function(*args, **kwargs)

    return launch
