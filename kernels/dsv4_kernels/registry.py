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
    """One kernel that is compiled ahead of time, told from others by its compile-time choices.

    `rows` consecutive rows share a wave; `shared`: rows say which sequence they belong to (prefill, verify);
    `windowed`: rows begin at a key of their own; `dense`: pages lie without gaps; `fast`: inline assembly on matrix
    results; `page8`: layout split8 instead of split64.
    """

    name: str
    op: str
    backend: BackendName
    arch: str
    heads: int
    rows: int
    shared: bool = False
    windowed: bool = False
    dense: bool = True
    fast: bool = True
    page8: bool = False


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
        Backend(
            "aiter", "dsv4_kernels.aiter_backend", frozenset({"quantize_query", "write_index_keys", "paged_logits"})
        ),
        Backend("gfx950", "dsv4_kernels.gfx950", frozenset({"paged_logits"})),
        Backend("gfx950_plain", "dsv4_kernels.gfx950.plain", frozenset({"paged_logits"})),
        Backend("hopper", "dsv4_kernels.hopper", frozenset({"paged_logits"})),
        Backend("portable", "dsv4_kernels.portable", frozenset(OPS)),
        Backend("reference", "dsv4_kernels.reference", frozenset(OPS)),
    )
}


def logits_name(
    heads: int, rows: int, *, shared: bool, windowed: bool, dense: bool, fast: bool, page8: bool = False
) -> str:
    """Name of the gfx950 paged-logits kernel with these compile-time choices."""
    choices = "_page8" * page8 + "_shared" * shared + "_windowed" * windowed + "_strided" * (not dense)
    return f"paged_logits_h{heads}_r{rows}{choices}_{'fast' if fast else 'plain'}"


def _gfx950_logits(
    heads: int, rows: int, *, shared: bool = False, windowed: bool = False, dense: bool = True, page8: bool = False
) -> tuple[KernelVariant, KernelVariant]:
    """The fast and the plain form of one choice."""

    def variant(backend: BackendName, fast: bool) -> KernelVariant:
        name = logits_name(heads, rows, shared=shared, windowed=windowed, dense=dense, fast=fast, page8=page8)
        return KernelVariant(name, "paged_logits", backend, "gfx950", heads, rows, shared, windowed, dense, fast, page8)

    return variant("gfx950", True), variant("gfx950_plain", False)


ROWS_PER_WAVE: dict[int, int] = {16: 4, 32: 4, 64: 2, 128: 1}
"""Rows that share a wave on gfx950, by heads: what their queries and weights leave of 256 registers."""

VARIANTS: tuple[KernelVariant, ...] = tuple(
    variant
    for heads, rows in ROWS_PER_WAVE.items()
    for pair in (
        _gfx950_logits(heads, 1),
        _gfx950_logits(heads, 1, dense=False),
        _gfx950_logits(heads, 1, windowed=True),
        _gfx950_logits(heads, rows, shared=True),
        _gfx950_logits(heads, rows, shared=True, dense=False),
        _gfx950_logits(heads, rows, shared=True, windowed=True),
        _gfx950_logits(heads, rows, shared=True, windowed=True, dense=False),
        _gfx950_logits(heads, 1, page8=True),
        _gfx950_logits(heads, rows, shared=True, page8=True),
    )
    for variant in pair
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
