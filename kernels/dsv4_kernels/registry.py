"""Every backend and every shipped kernel variant, as data. Reports, the build, coverage gates and benchmarks
read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BackendName = Literal["aiter", "gfx950", "gfx950_plain", "hopper", "portable", "reference"]


@dataclass(frozen=True, slots=True)
class Backend:
    """A package that implements some operations; `module` is imported when it becomes a candidate."""

    name: BackendName
    module: str
    ops: frozenset[str]


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One compiled kernel: what it does, for which architecture, and the compile-time choices that tell it
    from others.
    """

    name: str
    op: str
    backend: BackendName
    arch: str
    heads: int = 0
    rows: int = 1


OPS: tuple[str, ...] = (
    "quantize_query",
    "quantize_query_with_weights",
    "write_index_keys",
    "paged_logits",
    "topk",
    "topk_slots",
    "candidate_blocks",
    "decode_schedule",
    "prefill_schedule",
    "readback",
)

BACKENDS: dict[str, Backend] = {
    b.name: b
    for b in (
        Backend("gfx950", "dsv4_kernels.gfx950", frozenset({"paged_logits"})),
        Backend("gfx950_plain", "dsv4_kernels.gfx950.plain", frozenset({"paged_logits"})),
        Backend("portable", "dsv4_kernels.portable", frozenset(OPS)),
        Backend("reference", "dsv4_kernels.reference", frozenset(OPS)),
    )
}

_GFX950: tuple[tuple[BackendName, bool], ...] = (("gfx950", True), ("gfx950_plain", False))
VARIANTS: tuple[KernelVariant, ...] = tuple(
    KernelVariant(
        f"paged_logits_h{heads}_r{rows}_{'fast' if fast else 'plain'}", "paged_logits", name, "gfx950", heads, rows
    )
    for name, fast in _GFX950
    for heads, rows in ((16, 1), (16, 4), (32, 1), (32, 2), (32, 4), (64, 1), (64, 2), (64, 4), (128, 1))
)
"""Kernels that are compiled ahead of time. Portable kernels compile where they serve; the reference has none."""


def preference(device_type: str, arch: str = "") -> tuple[str, ...]:
    """Backends by preference on a device (`cpu`, `cuda`) of an architecture (`gfx950`, `sm90`, ...)."""
    if device_type == "cpu":
        order: tuple[str, ...] = ("reference",)
    elif arch.startswith("gfx950"):
        order = ("aiter", "gfx950", "gfx950_plain", "portable", "reference")
    elif arch == "sm90":
        order = ("hopper", "portable", "reference")
    else:
        order = ("portable", "reference")
    return tuple(name for name in order if name in BACKENDS)
