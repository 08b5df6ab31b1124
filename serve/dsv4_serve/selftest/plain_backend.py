"""The reference backend without its pages: an engine on it must give the logits that it gives on any other.

What is stored is a table of numbers, so whatever is wrong in the bytes, addresses, scores or selections of the backend
that serves shows as a difference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.kv_layout import WIDTH
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pooling import Compressor, TokenRuns
from dsv4_kernels.reference import kv_rows
from dsv4_serve.selftest.plain_index import PlainIndex


class PlainBackend(PlainIndex):
    """The index, main KV rows, and the reference's operations for all that stores nothing. See `dsv4_kernels.ops`."""

    # These store nothing.
    compress_tokens = staticmethod(reference.compress_tokens)
    router_partials = staticmethod(reference.router_partials)
    router_gate = staticmethod(reference.router_gate)
    linear_float32 = staticmethod(reference.linear_float32)
    decode_schedule = staticmethod(reference.decode_schedule)
    prefill_schedule = staticmethod(reference.prefill_schedule)

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[int, Tensor] = {}

    def store_kv(self, pool: KVPool, rows: Tensor, slots: Tensor) -> None:
        kept = slots >= 0
        self._table_of(pool)[slots[kept]] = kv_rows.decode(
            pool.layout, *kv_rows.encode(pool.layout, rows[kept].float())
        )

    def norm_rope_store_kv(
        self,
        pool: KVPool,
        kv: Tensor,
        norm_weight: Tensor,
        norm_eps: float,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
        query: Tensor | None,
    ) -> None:
        normed = kv_rows.to_bfloat16(kv_rows.rms_norm(kv.float(), norm_weight.float(), norm_eps)).float()
        self.store_kv(pool, kv_rows.rope_tail(normed, *kv_rows.angles(cos, sin, positions)), slots)
        if query is not None:
            # Stores nothing and turns the query, which is the reference's part of this.
            nowhere = torch.full_like(slots, -1)
            reference.norm_rope_store_kv(pool, kv, norm_weight, norm_eps, cos, sin, positions, nowhere, query)

    def compress_kv(
        self,
        pool: KVPool,
        compressor: Compressor,
        projected: Tensor,
        cos: Tensor,
        sin: Tensor,
        runs: TokenRuns,
        slots: Tensor,
    ) -> Tensor:
        latents = reference.compress_tokens(compressor, projected, runs)
        ratio = compressor.pooling.ratio
        closing = runs.closing(ratio)
        turned = kv_rows.rope_tail(
            latents[closing].float(), *kv_rows.angles(cos, sin, runs.positions[closing] - (ratio - 1))
        )
        self.store_kv(pool, turned, slots[closing])
        return latents

    def dequantize_kv(self, pool: KVPool, slots: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.zeros(len(slots), WIDTH, dtype=dtype)
        kept = slots >= 0
        out[kept] = self._table_of(pool)[slots[kept]].to(dtype)
        return out

    def _table_of(self, pool: KVPool) -> Tensor:
        """float32 [slots, 512] of a pool; zeros where nothing was written, as in its pages."""
        table = self._rows.get(pool.pages.data_ptr())
        if table is None:
            table = self._rows[pool.pages.data_ptr()] = torch.zeros(pool.slots, WIDTH)
        return table
