"""The index formats that are compared, by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.pool import IndexSpec
from dsv4_serve.engines.embedded.config import IndexerDtype
from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.pools import INDEX_LAYOUTS
from dsv4_serve.errors import UsageError


@dataclass(frozen=True, slots=True)
class IndexVariant:
    """One way to store and score index keys. The convention is FP4's; other formats round to nearest even.

    `two_level` False (V4.1 alone) lets every indexer choose among all entries, not inside candidate blocks.
    """

    dtype: IndexerDtype
    hadamard: bool = True
    convention: str = "aiter"
    two_level: bool = True

    @property
    def name(self) -> str:
        """`bf16`, `fp8`, `fp4-aiter`; `-plain` is appended without the rotation, `-one-level` without blocks."""
        stem = f"fp4-{self.convention}" if self.dtype == "fp4" else self.dtype
        return stem + ("" if self.hadamard else "-plain") + ("" if self.two_level else "-one-level")

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


@dataclass(frozen=True, slots=True)
class VariantSet:
    """The formats that a model's index can have: what the others approximate, what they are compared with, what is
    served, and everything that is measured by default."""

    exact: IndexVariant
    baseline: IndexVariant
    product: IndexVariant
    all: tuple[IndexVariant, ...]

    def parse(self, name: str) -> IndexVariant:
        """The variant of that name. Raises UsageError that lists the known names."""
        known = {variant.name: variant for variant in (self.exact, *self.all)}
        if name not in known:
            raise UsageError(f"--variant {name!r}: accepted is one of {', '.join(known)}")
        return known[name]


DTYPES: tuple[IndexerDtype, ...] = ("bf16", "fp8", "fp4")
V4 = VariantSet(EXACT, BASELINE, PRODUCT, ALL)


def _v41(dtype: IndexerDtype, two_level: bool = True) -> IndexVariant:
    return IndexVariant(dtype, hadamard=False, convention="rne_v41", two_level=two_level)


V41 = VariantSet(
    _v41("float32"),
    _v41("bf16"),
    _v41("fp4"),
    tuple(_v41(dtype, two_level) for two_level in (True, False) for dtype in DTYPES),
)
"""V4.1 has no rotation, and one convention."""

VARIANTS = {"deepseek_v4": V4, "deepseek_v41": V41}
BASELINES = tuple(found.baseline.name for found in VARIANTS.values())


def variants_of(model: Path) -> VariantSet:
    """Those of the model in a directory. Raises ConfigError."""
    return VARIANTS[load_config(model)[0].model_type]
