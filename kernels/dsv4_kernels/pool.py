"""A pool of index keys, and what a writer and a reader of one must agree on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import formats, layout
from dsv4_kernels.errors import ArgumentError, LayoutMismatchError
from dsv4_kernels.formats import Convention
from dsv4_kernels.layout import Layout, TensorSpec


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """How index keys and queries are stored: layout, quantisation convention, and whether the Hadamard
    rotation is applied.

    The convention matters for FP4 layouts only; the others round to nearest even.
    """

    layout: Layout = layout.SPLIT64
    convention: Convention = formats.CONVENTIONS["aiter"]
    hadamard: bool = True

    @classmethod
    def named(cls, layout_name: str, convention_name: str = "aiter", *, hadamard: bool = True) -> IndexSpec:
        """From names, e.g. `IndexSpec.named("split64")`. Raises ValueError that lists the known names."""
        return cls(layout.layout(layout_name), formats.convention(convention_name), hadamard)

    def require_query(self, other: IndexSpec) -> None:
        """Raise LayoutMismatchError unless a query quantised by `other` may be scored against keys stored by
        this one.
        """
        mine = (self.layout.format, self.convention.name, self.hadamard)
        theirs = (other.layout.format, other.convention.name, other.hadamard)
        if mine != theirs:
            names = ("format", "convention", "hadamard")
            told = ", ".join(f"{n} {a!r} against {b!r}" for n, a, b in zip(names, theirs, mine, strict=True) if a != b)
            raise LayoutMismatchError(f"query and pool differ in {told}")


def _check_pages(spec: TensorSpec, t: Tensor, pages: int) -> None:
    dense = tuple(t[0].stride()) == tuple(torch.empty(spec.shape, device="meta").stride()) if pages else True
    stride = t.stride(0) * t.element_size()
    if t.dtype != spec.dtype or tuple(t.shape) != (pages, *spec.shape) or not dense or stride < spec.bytes_per_page:
        found = f"{t.dtype} {list(t.shape)} strides {list(t.stride())}"
        raise ArgumentError(f"tensors[{spec.name!r}]", found, f"{spec.dtype} {[pages, *spec.shape]} with dense pages")
    if stride % 16 or t.storage_offset() * t.element_size() % 16:
        raise ArgumentError(f"tensors[{spec.name!r}]", f"a page stride of {stride} B", "pages aligned to 16 B")


@dataclass(frozen=True, slots=True)
class IndexPool:
    """Pages of index keys. `tensors[name]` is `[pages, ...]` as `spec.layout.tensors` says; a page is its
    unit of copying.
    """

    spec: IndexSpec
    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        specs = self.spec.layout.tensors
        if set(self.tensors) != {s.name for s in specs}:
            raise ArgumentError("tensors", sorted(self.tensors), f"exactly {sorted(s.name for s in specs)}")
        pages = self.tensors[specs[0].name].shape[0]
        for s in specs:
            _check_pages(s, self.tensors[s.name], pages)

    @classmethod
    def allocate(cls, spec: IndexSpec, pages: int, device: torch.device | str = "cpu") -> IndexPool:
        """A pool of `pages` pages, zeroed."""
        if pages < 1:
            raise ArgumentError("pages", pages, "an integer >= 1")
        tensors = {s.name: torch.zeros(pages, *s.shape, dtype=s.dtype, device=device) for s in spec.layout.tensors}
        return cls(spec, tensors)

    @property
    def payload(self) -> Tensor:
        """The tensor that holds the payload."""
        return self.tensors[self.spec.layout.payload_spec.name]

    @property
    def scale(self) -> Tensor:
        """The tensor that holds the scales; the payload's own in fused layouts."""
        return self.tensors[self.spec.layout.scale_spec.name]

    @property
    def payload_stride(self) -> int:
        """Bytes from one page of the payload to the next; more than a page's in a pool shared with other layers."""
        return self.payload.stride(0) * self.payload.element_size()

    @property
    def scale_stride(self) -> int:
        return self.scale.stride(0) * self.scale.element_size()

    @property
    def device(self) -> torch.device:
        return self.payload.device

    @property
    def pages(self) -> int:
        return self.payload.shape[0]

    @property
    def tokens(self) -> int:
        """Slots, that is compressed tokens that the pool can hold."""
        return self.pages * self.spec.layout.page_slots

    @property
    def bytes(self) -> int:
        """Bytes of the pages themselves, without what lies between the pages of a strided pool."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    @property
    def bytes_per_token(self) -> float:
        """Bytes allocated divided by slots: 68.0 in FP4."""
        return self.bytes / self.tokens

    @property
    def payload_bytes(self) -> int:
        return self.tokens * self.spec.layout.payload_bytes

    @property
    def scale_bytes(self) -> int:
        return self.tokens * self.spec.layout.scale_bytes


@dataclass(frozen=True, slots=True)
class Query:
    """Index queries of T rows and H heads, ready to be scored against a pool of the same format, convention
    and rotation.

    FP4: `payload` uint8 [T, H, 64] and `scale` uint8 [T, 1, 4, 16, 4], where head h's scale of group c stands
    at `[t, 0, c, h % 16, h // 16]` and unused places are zero. Other formats: `values` float32 [T, H, 128],
    rounded to the format.
    """

    spec: IndexSpec
    heads: int
    payload: Tensor | None = None
    scale: Tensor | None = None
    values: Tensor | None = None

    @property
    def rows(self) -> int:
        present = self.payload if self.payload is not None else self.values
        assert present is not None
        return present.shape[0]
