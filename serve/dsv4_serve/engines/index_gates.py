"""What must hold for the FP4 index, as data: one policy for both production engines.

FP4 that was asked for and cannot be is an error before weights load. Where DSV4_ALLOW_FALLBACK permits it and the model
has an FP8 index, FP8 serves instead: with a warning, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

ALLOW_FALLBACK = "DSV4_ALLOW_FALLBACK"
ARCHITECTURE = "gfx950"
MODELS = ("deepseek_v4", "deepseek_v41")
FALLBACK = "index_dtype"
"""The operation under which a fallback to FP8 is counted."""


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """An FP4 index as an engine is about to build it. `missing`: a dependency that the engine found wanting, in words.

    `context_parallel` is the product of the engine's sizes of context parallelism; `most_heads` its limit of a query's
    heads; `has_fp8`: whether the engine can keep this model's index in FP8 instead.
    """

    engine: str
    model_type: str
    arch: str
    heads: int
    head_dim: int = 128
    rope_dim: int = 64
    most_heads: int = 64
    context_parallel: int = 1
    missing: str = ""
    has_fp8: bool = True


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition: `found` says the value that is held against `holds`; `accepted` ends the message."""

    name: str
    found: Callable[[IndexRequest], object]
    holds: Callable[[IndexRequest], bool]
    accepted: Callable[[IndexRequest], str]

    def refusal(self, asked: IndexRequest) -> str:
        """Empty where the gate is open, else its name, the value and what is accepted."""
        return "" if self.holds(asked) else f"{self.name}={self.found(asked)}: accepted is {self.accepted(asked)}"


def _exactly(architecture: str) -> str:
    return architecture.partition(":")[0]


GATES: tuple[Gate, ...] = (
    Gate("model_type", lambda a: a.model_type, lambda a: a.model_type in MODELS, lambda a: " or ".join(MODELS)),
    Gate("architecture", lambda a: a.arch, lambda a: _exactly(a.arch) == ARCHITECTURE, lambda a: ARCHITECTURE),
    Gate("index_head_dim", lambda a: a.head_dim, lambda a: a.head_dim == 128, lambda a: "128"),
    Gate("qk_rope_head_dim", lambda a: a.rope_dim, lambda a: a.rope_dim == 64, lambda a: "64"),
    Gate(
        "index_n_heads",
        lambda a: a.heads,
        lambda a: a.heads % 16 == 0 and 16 <= a.heads <= a.most_heads,
        lambda a: f"a multiple of 16 from 16 to {a.most_heads}",
    ),
    Gate(
        "context parallel size",
        lambda a: a.context_parallel,
        lambda a: a.context_parallel == 1,
        lambda a: "1: every rank scores all keys",
    ),
    Gate("dependency", lambda a: a.missing, lambda a: not a.missing, lambda a: "what the engine's FP4 index needs"),
)


class IndexRefusedError(ValueError):
    """An FP4 index was asked for and cannot be."""


def refusals(asked: IndexRequest) -> tuple[str, ...]:
    """A line for each gate that is closed; empty where FP4 may serve."""
    return tuple(told for gate in GATES if (told := gate.refusal(asked)))


def falls_back(asked: IndexRequest) -> str:
    """Empty where FP4 serves, else why FP8 does: only if DSV4_ALLOW_FALLBACK=1. Raises IndexRefusedError otherwise.

    The fallback is counted here (`dsv4_indexer_fallbacks_total{op="index_dtype"}`); telling it is the engine's.
    """
    closed = refusals(asked)
    if not closed:
        return ""
    told = f"engine {asked.engine!r} cannot keep the index in FP4: {'; '.join(closed)}"
    if not asked.has_fp8:
        raise IndexRefusedError(f"{told}; this model has no FP8 index here to fall back to")
    if os.environ.get(ALLOW_FALLBACK, "0") != "1":
        raise IndexRefusedError(f"{told} (DSV4_INDEXER_DTYPE=fp8 does without; --allow-fallback falls back to it)")
    from dsv4_kernels import counters

    counters.count_fallback(FALLBACK, "; ".join(gate.name for gate in GATES if gate.refusal(asked)))
    return told
