"""AITER's functions, found lazily, with the calls that this adapter makes checked against their signatures."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from dsv4_kernels.errors import BackendUnavailableError


@dataclass(frozen=True, slots=True)
class AiterFunction:
    """A function of AITER: where it is, and how this adapter calls it (how many positional arguments, which names)."""

    module: str
    name: str
    positional: int
    named: tuple[str, ...]

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Call it. Raises BackendUnavailableError if AITER lacks it or does not take this call."""
        function = self.resolve()
        if len(arguments) != self.positional or set(named) != set(self.named):
            raise TypeError(f"{self.name} is called otherwise than declared")
        return function(*arguments, **named)

    def resolve(self) -> Callable[..., Any]:
        function = getattr(module_of(self.module), self.name, None)
        if not callable(function):
            raise BackendUnavailableError(f"{self.module} has no {self.name}")
        try:
            inspect.signature(function).bind(*(None,) * self.positional, **dict.fromkeys(self.named))
        except TypeError as error:
            raise BackendUnavailableError(f"{self.module}.{self.name} has another signature: {error}") from error
        found: Callable[..., Any] = function
        return found


QUERY = AiterFunction(
    "aiter",
    "rope_rotate_activation",
    5,
    ("rope_dim", "out_scale", "group_size", "shuffle_scale", "do_rotate_act"),
)
KEYS = AiterFunction(
    "aiter",
    "rmsnorm_rope_rotate_activation_fp4quant_kvcache",
    9,
    ("rope_dim", "kv_block_size", "group_size", "shuffle_scale", "do_rotate_act"),
)
_LAUNCH = ("weight_scale", "block_k", "kv_block_size", "num_warps", "out", "cta_info")
DECODE = AiterFunction("aiter.ops.flydsl", "flydsl_pa_mqa_logits_fp4", 8, ("next_n", "total_ctas", *_LAUNCH))
PREFILL = AiterFunction("aiter.ops.flydsl", "flydsl_pa_mqa_logits_fp4_prefill", 10, ("n_ctas", *_LAUNCH))
PLAN = AiterFunction(
    "aiter.ops.flydsl",
    "make_fp4_mqa_plan",
    0,
    ("num_seqs", "max_qlen", "num_rows", "heads", "page_size", "max_seq_len", "pages_per_block"),
)
ROWGROUP = AiterFunction(
    "aiter.ops.flydsl",
    "flydsl_pa_mqa_logits_fp4",
    8,
    (
        "weight_scale",
        "kv_block_size",
        "out",
        "row_ends",
        "query_start_loc",
        "max_query_len",
        "pages_per_block",
        "plan",
    ),
)
"""The decode entry with the arguments that it gained with row groups (AITER #6145)."""


def fp4x2() -> Any:
    """AITER's dtype of two codes a byte."""
    dtype = getattr(getattr(module_of("aiter"), "dtypes", None), "fp4x2", None)
    if dtype is None:
        raise BackendUnavailableError("aiter has no dtypes.fp4x2")
    return dtype


def module_of(name: str) -> ModuleType:
    """A module of AITER. Raises BackendUnavailableError where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendUnavailableError(f"cannot import {name}: {error}") from error
