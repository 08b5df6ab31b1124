"""The index formats that are compared, by name."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.pool import IndexSpec
from dsv4_serve.engines.embedded.config import IndexerDtype
from dsv4_serve.engines.embedded.pools import INDEX_LAYOUTS
from dsv4_serve.errors import UsageError


@dataclass(frozen=True, slots=True)
class IndexVariant:
    """One way to store and score index keys. The convention is FP4's; other formats round to nearest even."""

    dtype: IndexerDtype
    hadamard: bool = True
    convention: str = "aiter"

    @property
    def name(self) -> str:
        """`bf16`, `fp8`, `fp4-aiter`; `-plain` is appended without the Hadamard rotation."""
        stem = f"fp4-{self.convention}" if self.dtype == "fp4" else self.dtype
        return stem if self.hadamard else f"{stem}-plain"

    @property
    def spec(self) -> IndexSpec:
        """What the kernels call it."""
        return IndexSpec.named(INDEX_LAYOUTS[self.dtype], self.convention, hadamard=self.hadamard)


EXACT = IndexVariant("float32", hadamard=False)
"""Unrotated float32 keys and queries: what every other variant is an approximation of."""

BASELINE = IndexVariant("bf16")
PRODUCT = IndexVariant("fp4")

ALL: tuple[IndexVariant, ...] = (
    BASELINE,
    IndexVariant("fp8"),
    IndexVariant("fp8", hadamard=False),
    *(IndexVariant("fp4", rotated, name) for name in CONVENTIONS for rotated in (True, False)),
)


def parse_variant(name: str) -> IndexVariant:
    """The variant of that name. Raises UsageError that lists the known names."""
    known = {variant.name: variant for variant in (EXACT, *ALL)}
    if name not in known:
        raise UsageError(f"--variant {name!r}: accepted is one of {', '.join(known)}")
    return known[name]
