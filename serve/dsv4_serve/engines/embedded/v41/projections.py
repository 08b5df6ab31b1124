"""Queries and window rows of a V4.1 layer: no norm of query heads, rows through the product's store."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4_kernels import ops
from dsv4_kernels.kv_layout import V41
from dsv4_kernels.kv_pool import KVPool

from ..attention import head_geometry
from ..config import CommonConfig
from ..linear import ROW_MULTIPLE
from ..projections import HeadProjections
from ..rope import RopeTable


class RowStage:
    """Rows pass through it on their way into a window: stored by the product's operation, and read back.

    One stage serves all layers; it grows to the largest batch.
    """

    def __init__(self) -> None:
        self._pool: KVPool | None = None

    def through(
        self, kv: torch.Tensor, norm: torch.Tensor, eps: float, rope: RopeTable, positions: torch.Tensor
    ) -> torch.Tensor:
        """Norm, RoPE and storage as V4.1's window rows: kv float32 [T, 512] to what they read as, float32 [T, 512]."""
        rows = kv.shape[0]
        if self._pool is None or self._pool.slots < rows:
            self._pool = KVPool.allocate(V41, ROW_MULTIPLE, -(-rows // ROW_MULTIPLE), kv.device)
        slots = torch.arange(rows)
        ops.norm_rope_store_kv(self._pool, kv, norm, eps, rope.cos, rope.sin, positions, slots)
        return ops.dequantize_kv(self._pool, slots, dtype=torch.float32)


class V41Projections(HeadProjections):
    """See `HeadProjections`; `stage` stores the rows."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        prefix: str,
        config: CommonConfig,
        rope: RopeTable,
        stage: RowStage,
        further: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__(weights, prefix, head_geometry(config, norm=False), rope, lambda rows: rows, further)
        self._stage = stage

    def rows(self, projected: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._stage.through(projected, self._kv_norm, self._geometry.rms_norm_eps, self._rope, positions)
