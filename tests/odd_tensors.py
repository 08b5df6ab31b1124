"""Tensors that lie oddly in memory, and values of every class: what differential tests of operations are fed with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Device = torch.device | str

NANS = (0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0x7FC00000 - (1 << 31), -1)
"""Bits of float32 NaN: the usual one, NVIDIA's, a signalling one, and two that are negative."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor with `start` elements of its memory before it and `gap` elements between two rows."""

    start: int = 0
    gap: int = 0


DENSE = Place()


def placed(x: Tensor, place: Place = DENSE, device: Device = "cpu") -> Tensor:
    """A view that equals `x`, in memory of its own. What lies around is NaN, 0xA5 in bytes, 3 in other integers: an
    operation that reads it gives something else.
    """
    strides = [1]
    for size in reversed(x.shape[1:]):
        strides.insert(0, strides[0] * size + place.gap)
    extent = sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True)) + 1 if x.numel() else 0
    foreign = torch.nan if x.dtype.is_floating_point else 0xA5 if x.dtype == torch.uint8 else 3
    memory = torch.full((place.start + extent + 16,), foreign, dtype=x.dtype, device=device)
    view = memory.as_strided(tuple(x.shape), tuple(strides), place.start)
    view.copy_(x)
    return view


def memory(view: Tensor) -> Tensor:
    """uint8 [n] on the CPU: all the memory that a view lies in."""
    return torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage()).cpu()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def hard(rows: int, width: int, dice: torch.Generator, *, finite: bool = False) -> Tensor:
    """float32 [rows, width], each row of one class: over many octaves, halfway between codes, zeros of both signs,
    denormals, up to the largest, all the same, ties, and unless `finite` with what is not a number.
    """
    x = torch.randn(rows, width, generator=dice)
    for row, kind in enumerate(torch.randint(0, 8 if finite else 9, (rows,), generator=dice).tolist()):
        x[row] = _of_kind(kind, x[row], dice)
    return x


def _of_kind(kind: int, x: Tensor, dice: torch.Generator) -> Tensor:
    power = 2.0 ** int(torch.randint(-30, 31, (), generator=dice))
    if kind == 0:
        return x
    if kind == 1:
        return x * power
    if kind == 2:
        return torch.randint(-48, 49, x.shape, generator=dice) / 8 * power
    if kind == 3:
        return torch.where(x > 0, 0.0, -0.0)
    if kind == 4:
        return torch.where(x > 0.5, x, x * 1e-41)
    if kind == 5:
        return (torch.rand(x.shape, generator=dice) * 2 - 1) * 3.4e38
    if kind == 6:
        return torch.full_like(x, float(x[0]) * power) if x.numel() else x
    if kind == 7:
        return torch.randint(-2, 3, x.shape, generator=dice).float()
    strange = torch.tensor([*NANS, 0x7F800000, 0x7F800000 - (1 << 31)], dtype=torch.int32).view(torch.float32)
    picked = strange[torch.randint(0, len(strange), x.shape, generator=dice)]
    return torch.where(torch.rand(x.shape, generator=dice) < 0.02, picked, x)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but that one NaN is as good as another."""
    a, b = a.cpu(), b.cpu()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    integer = {2: torch.int16, 4: torch.int32}[a.element_size()]
    bits = a.contiguous().view(integer) == b.contiguous().view(integer)
    return bool((bits | (a.isnan() & b.isnan())).all())


def angles(positions: int, dtype: torch.dtype, places: tuple[Place, Place], device: Device) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, 32]."""
    angle = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    return placed(cos, places[0], device), placed(sin, places[1], device)
