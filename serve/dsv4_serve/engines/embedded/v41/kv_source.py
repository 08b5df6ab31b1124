"""A layer that owns compressed KV: its compressor, the entries, and the index keys made of the same latents."""

from __future__ import annotations

import torch

from dsv4_kernels import ops
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pool import IndexPool
from dsv4_kernels.pooling import POOLINGS, Compressor

from ..geometry import MAX_DRAFT_TOKENS
from ..indexer import IndexObserver
from ..linear import Projection
from ..rope import RopeTable
from .config import V41Config
from .forward_pass import ForwardPass
from .pools import V41Pools


class KVSource:
    """Weights under `prefix` (the layer's attention), state of open pairs, and the pools that the layer owns.

    `input_projection` [columns, hidden] is what `store` reads of the layer's input.
    """

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        prefix: str,
        config: V41Config,
        layer: int,
        rope: RopeTable,
        pools: V41Pools,
    ) -> None:
        self.ratio, self._rope, self._rms = config.compress_ratios[layer], rope, config.rms_norm_eps
        self.entries: KVPool = pools.entries[layer]
        self.index: IndexPool = pools.index[layer]
        pooling = POOLINGS[self.ratio]
        ring = None
        if pooling.gated:
            slots, device = pools.working_slots, self.entries.device
            ring = pooling.ring(slots, config.head_dim, drafts=MAX_DRAFT_TOKENS, device=device)
        norm = weights[prefix + "compressor.norm.weight"]
        self._compressor = Compressor(pooling, norm, self._rms, ring=ring)
        self._wk = Projection(weights[prefix + "indexer.wk.weight"])
        self._key_norm = weights[prefix + "indexer.k_norm.weight"]
        parts = ["wkv", "wgate"] if pooling.gated else ["wkv"]
        self.input_projection = torch.cat([weights[f"{prefix}compressor.{part}.weight"] for part in parts])
        self.observers: list[IndexObserver] = []
        """Each sees every key that is stored, for `dsv4 eval`."""

    @property
    def entries_per_page(self) -> int:
        return self.entries.page_rows

    def store(self, projected: torch.Tensor, of: ForwardPass) -> None:
        """Take the projected tokens [T, columns], and store the entries and index keys that they complete."""
        pooling = self._compressor.pooling
        # Ratio 1 is a plain projection in bfloat16, as published; pooling is in float32.
        values = projected if pooling.gated else projected.bfloat16()
        slots, cos, sin = of.entry_slots(self.ratio), self._rope.cos, self._rope.sin
        latents = ops.compress_kv(self.entries, self._compressor, values, cos, sin, of.runs, slots)
        # Index keys and queries are bfloat16 before they are quantised, as published.
        keys = self._wk(latents.float()).bfloat16()
        first = (of.runs.positions - (self.ratio - 1)).clamp(min=0)

        def write(pool: IndexPool) -> None:
            ops.write_index_keys(pool, keys, self._key_norm, self._rms, cos, sin, first, slots)

        write(self.index)
        for observer in self.observers:
            observer.stored(write)
