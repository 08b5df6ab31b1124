"""Entries that an index source chose, read once a pass for all layers that attend to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_kernels import ops
from dsv4_kernels.kv_layout import WIDTH
from dsv4_kernels.kv_pool import KVPool

from ..batch import Segment
from ..decode_plan import DecodePlan
from ..entries import EntryStore

Read = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PoolRows:
    """A pool's rows as float32, by slot."""

    pool: KVPool

    @property
    def width(self) -> int:
        return WIDTH

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store float32 rows [n, 512] at int64 slots [n]."""
        ops.store_kv(self.pool, rows, slots)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The float32 rows [n, 512] at int64 slots [n]."""
        return ops.dequantize_kv(self.pool, slots, dtype=torch.float32)


class ChosenEntries(EntryStore):
    """An `EntryStore` whose readers of one pass all bring the same choice; `forget` ends the pass."""

    def __init__(self, pool: KVPool, ratio: int, slots: int) -> None:
        super().__init__(PoolRows(pool), ratio, slots)
        self._decoded: Read | None = None
        self._chunks: dict[int, Read] = {}

    def read_decode(self, plan: DecodePlan, page_table: torch.Tensor, chosen: torch.Tensor | None) -> Read:
        if self._decoded is None:
            self._decoded = super().read_decode(plan, page_table, chosen)
        return self._decoded

    def read_chunk(self, segment: Segment, chosen: torch.Tensor | None) -> Read:
        if segment.row not in self._chunks:
            self._chunks[segment.row] = super().read_chunk(segment, chosen)
        return self._chunks[segment.row]

    def forget(self) -> None:
        """Let go of what was read."""
        self._decoded = None
        self._chunks.clear()
