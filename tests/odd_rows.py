"""Main KV rows of any shape, place and value: a backend against the reference on the CPU, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.kv_layout import KV_LAYOUTS, WIDTH
from dsv4_kernels.kv_pool import KVPool
from odd_tensors import DENSE, Device, Place, angles, generator, hard, memory, placed, same

EPS = 1e-6


def kv_pool(layout: str, page_rows: int, pages: int, place: Place, device: Device) -> KVPool:
    """Pages of 0xA5; `place` in units of 8 bytes."""
    of = KV_LAYOUTS[layout]
    bytes_ = torch.full((pages, of.page_bytes(page_rows)), 0xA5, dtype=torch.uint8)
    return KVPool(of, page_rows, placed(bytes_, Place(8 * place.start, 8 * place.gap), device))


def some_slots(rows: int, count: int, dice: torch.Generator) -> Tensor:
    """int64 [rows]: different slots of `count`, one in ten -1, and all past `count`."""
    slots = torch.full((rows,), -1)
    used = min(rows, count)
    slots[:used] = torch.randperm(count, generator=dice)[:used]
    slots[torch.rand(rows, generator=dice) < 0.1] = -1
    return slots


@dataclass(frozen=True)
class Rows:
    """Calls of `store_kv`, `norm_rope_store_kv` and `dequantize_kv`. `heads`: of the query; None: there is none."""

    layout: str
    page_rows: int = 2
    pages: int = 4
    pool: Place = DENSE
    rows: int = 5
    dtype: torch.dtype = torch.bfloat16
    weight_dtype: torch.dtype = torch.float32
    angle_dtype: torch.dtype = torch.float32
    out_dtype: torch.dtype = torch.bfloat16
    kv: Place = DENSE
    weight: Place = DENSE
    angles: tuple[Place, Place] = (DENSE, DENSE)
    integers: Place = DENSE
    heads: int | None = None
    query: Place = DENSE
    query_dtype: torch.dtype = torch.bfloat16
    positions: int = 40
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        got, want = self._run(backend, device), self._run(reference, "cpu")
        for name, ours, theirs in zip(("stored", "normalised and stored", "query", "read"), got, want, strict=True):
            assert same(ours, theirs), name

    def _run(self, of: Implementation, device: Device) -> tuple[Tensor, ...]:
        dice = generator(self.seed)
        count = self.page_rows * self.pages
        stored, normed, read = (kv_pool(self.layout, self.page_rows, self.pages, self.pool, device) for _ in range(3))
        kv = placed(hard(self.rows, WIDTH, dice).to(self.dtype), self.kv, device)
        slots = some_slots(self.rows, count, dice)
        of.store_kv(stored, kv, placed(slots, self.integers, device))
        weight = (torch.rand(WIDTH, generator=dice) + 0.5).to(self.weight_dtype)
        positions = torch.randint(0, self.positions, (self.rows,), generator=dice)
        query = None
        if self.heads is not None:
            values = hard(self.rows * self.heads, WIDTH, dice).view(self.rows, self.heads, WIDTH)
            query = placed(values.to(self.query_dtype), self.query, device)
        of.norm_rope_store_kv(
            normed,
            kv,
            placed(weight, self.weight, device),
            EPS,
            *angles(self.positions, self.angle_dtype, self.angles, device),
            placed(positions, self.integers, device),
            placed(slots, self.integers, device),
            query,
        )
        read.pages.copy_(torch.randint(0, 256, read.pages.shape, dtype=torch.uint8, generator=dice))
        wanted = torch.randint(-1, count, (self.rows,), generator=dice)
        values = of.dequantize_kv(read, placed(wanted, self.integers, device), self.out_dtype)
        turned = torch.empty(0) if query is None else _all_of(query)
        return memory(stored.pages), memory(normed.pages), turned, values


def _all_of(view: Tensor) -> Tensor:
    """[n]: all the memory of a view, in its type."""
    return memory(view).view(view.dtype)
