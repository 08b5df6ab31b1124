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
        function = getattr(_module(self.module), self.name, None)
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


def fp4x2() -> Any:
    """AITER's dtype of two codes a byte."""
    dtype = getattr(getattr(_module("aiter"), "dtypes", None), "fp4x2", None)
    if dtype is None:
        raise BackendUnavailableError("aiter has no dtypes.fp4x2")
    return dtype


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendUnavailableError(f"cannot import {name}: {error}") from error
