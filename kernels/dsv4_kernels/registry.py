"""Every backend and every shipped kernel variant, as data. Reports, the build, coverage gates and benchmarks
read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dsv4_kernels import absences

BackendName = Literal["aiter", "gfx950", "gfx950_plain", "gfx950_rows", "hopper", "portable", "reference"]


@dataclass(frozen=True, slots=True)
class Backend:
    """A package that implements some operations; `module` is imported when it becomes a candidate. `absent` says why it
    does not offer the others.
    """

    name: BackendName
    module: str
    ops: frozenset[str]
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogitsShape:
    """What is known at start of the paged logits that will be launched: heads, the keys' layout, whether head weights
    come in float32 instead of bfloat16, and whether the page table names blocks of 8 keys inside pages.
    """

    heads: int = 64
    layout: str = "split64"
    float_weights: bool = False
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One shipped kernel, told from others by its compile-time choices.

    `rows` consecutive rows share a wave (gfx950) or a thread block (sm90); `shared`: rows say which sequence they are
    of (prefill, verify); `windowed`: rows begin at a key of their own; `fast`: inline assembly on matrix results;
    `layout`: of the keys; `float_weights`: float32 head weights; `blocks`: the page table names blocks inside pages.
    """

    name: str
    op: str
    backend: BackendName
    arch: str
    heads: int
    rows: int
    shared: bool = False
    windowed: bool = False
    fast: bool = True
    layout: str = "split64"
    float_weights: bool = False
    blocks: bool = False


OPS: tuple[str, ...] = (
    "quantize_query",
    "quantize_query_with_weights",
    "write_index_keys",
    "paged_logits",
    "rowgroup_logits",
    "topk",
    "topk_slots",
    "candidate_blocks",
    "decode_schedule",
    "prefill_schedule",
    "readback",
    "router_partials",
    "router_gate",
    "linear_float32",
    "store_kv",
    "norm_rope_store_kv",
    "dequantize_kv",
    "compress_tokens",
    "compress_kv",
    "compress_index_keys",
)

LOGITS = frozenset({"paged_logits", "rowgroup_logits"})
"""The scores of both forms, which are one kernel in every backend of ours."""

KV_ROWS = frozenset({"store_kv", "norm_rope_store_kv", "dequantize_kv", "compress_tokens", "compress_kv"})


def _backend(name: BackendName, module: str, ops: frozenset[str]) -> Backend:
    return Backend(name, f"dsv4_kernels.{module}", ops, absences.of(name))


BACKENDS: dict[str, Backend] = {
    b.name: b
    for b in (
        _backend(
            "aiter",
            "aiter_backend",
            frozenset({"quantize_query", "write_index_keys", "paged_logits", "rowgroup_logits"}),
        ),
        _backend("gfx950", "gfx950", LOGITS),
        _backend("gfx950_plain", "gfx950.plain", LOGITS),
        _backend("gfx950_rows", "gfx950.kv_rows", KV_ROWS),
        _backend("hopper", "hopper", frozenset({"paged_logits"})),
        _backend("portable", "portable", frozenset(OPS)),
        _backend("reference", "reference", frozenset(OPS)),
    )
}


def absence(backend: str, op: str) -> str:
    """Why `backend` does not offer `op`; empty if it does."""
    of = BACKENDS[backend]
    return "" if op in of.ops else of.absent.get(op, "does not implement it")


ROWS_PER_WAVE: dict[int, int] = {16: 4, 32: 4, 64: 2, 128: 1}
"""Rows that share a wave on gfx950, by heads: what their queries and weights leave of 256 registers."""


def logits_name(
    heads: int,
    rows: int,
    *,
    shared: bool,
    windowed: bool,
    fast: bool,
    layout: str = "split64",
    float_weights: bool = False,
    blocks: bool = False,
) -> str:
    """Name of the gfx950 paged-logits kernel with these compile-time choices."""
    keys = {"split64": "", "split8": "_page8"}.get(layout, f"_{layout}") + "_blocks" * blocks
    choices = keys + "_w32" * float_weights + "_shared" * shared + "_windowed" * windowed
    return f"paged_logits_h{heads}_r{rows}{choices}_{'fast' if fast else 'plain'}"


def logits_forms(shape: LogitsShape) -> tuple[tuple[bool, bool], ...]:
    """(shared, windowed) of the launches of a shape: single rows, rows of a sequence, and with windows.

    vLLM, whose records these are, opens no windows, and each row has candidates of its own.
    """
    if shape.blocks:
        return ((False, False),)
    records = shape.layout.startswith("record68")
    return ((False, False), (True, False)) if records else ((False, False), (True, False), (True, True))


def logits_variants(shape: LogitsShape) -> tuple[KernelVariant, ...]:
    """Every gfx950 kernel that launches of `shape` can ask for."""
    return tuple(
        _gfx950_logits(shape, ROWS_PER_WAVE[shape.heads] if shared else 1, shared, windowed, fast)
        for shared, windowed in logits_forms(shape)
        for fast in (True, False)
    )


def _gfx950_logits(shape: LogitsShape, rows: int, shared: bool, windowed: bool, fast: bool) -> KernelVariant:
    name = logits_name(
        shape.heads,
        rows,
        shared=shared,
        windowed=windowed,
        fast=fast,
        layout=shape.layout,
        float_weights=shape.float_weights,
        blocks=shape.blocks,
    )
    return KernelVariant(
        name=name,
        op="paged_logits",
        backend="gfx950" if fast else "gfx950_plain",
        arch="gfx950",
        heads=shape.heads,
        rows=rows,
        shared=shared,
        windowed=windowed,
        fast=fast,
        layout=shape.layout,
        float_weights=shape.float_weights,
        blocks=shape.blocks,
    )


def _hopper_logits(name: str, heads: int, rows: int, windowed: bool) -> KernelVariant:
    full = f"hopper_{name}_h{heads}{'_windowed' * windowed}"
    return KernelVariant(full, "paged_logits", "hopper", "sm90", heads, rows, shared=rows > 1, windowed=windowed)


LOGITS_SHAPES: tuple[LogitsShape, ...] = (
    *(
        shape
        for heads in ROWS_PER_WAVE
        for shape in (LogitsShape(heads), LogitsShape(heads, "split8"), LogitsShape(heads, float_weights=True))
    ),
    *(
        LogitsShape(heads, layout, float_weights=True, blocks=blocks)
        for heads in (32, 64)
        for layout in ("record68", "record68_p128")
        for blocks in (False, True)
    ),
)
"""Shapes that gfx950 kernels are compiled ahead of time for: SGLang's and the embedded engine's, then vLLM's."""

VARIANTS: tuple[KernelVariant, ...] = (
    *(variant for shape in LOGITS_SHAPES for variant in logits_variants(shape)),
    *(
        _hopper_logits(name, heads, rows, windowed)
        for heads in (32, 64)
        for name, rows, windowed in (
            ("brief", 1, False),
            ("rows", 1, False),
            ("rows", 1, True),
            ("groups", 4, False),
            ("groups", 4, True),
        )
    ),
)
"""Kernels of our own backends. Those of gfx950 are compiled ahead of time, Hopper's and the portable ones where they
serve; the reference has none.
"""


def variants(arch: str) -> tuple[KernelVariant, ...]:
    """The shipped kernels of an architecture (gfx950, sm90)."""
    return tuple(variant for variant in VARIANTS if variant.arch == arch)


def preference(device_type: str, arch: str = "") -> tuple[str, ...]:
    """Backends by preference on a device (`cpu`, `cuda`) of an architecture (`gfx950`, `sm90`, ...)."""
    if device_type == "cpu":
        order: tuple[str, ...] = ("reference",)
    elif arch.startswith("gfx950"):
        order = ("aiter", "gfx950", "gfx950_plain", "gfx950_rows", "portable", "reference")
    elif arch == "sm90":
        order = ("hopper", "portable", "reference")
    else:
        order = ("portable", "reference")
    return tuple(name for name in order if name in BACKENDS)
