"""The operations as a backend offers them. `ops` checks their arguments and documents each."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.pooling import Compressor, TokenRuns


class Implementation(Protocol):
    """A module whose functions are these; arguments come checked."""

    def quantize_query(self, q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, spec: IndexSpec) -> Query: ...

    def quantize_query_with_weights(
        self,
        q: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        weights: Tensor,
        weight_scale: float,
        spec: IndexSpec,
    ) -> tuple[Query, Tensor]: ...

    def write_index_keys(
        self,
        pool: IndexPool,
        k: Tensor,
        norm_weight: Tensor,
        norm_eps: float,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
    ) -> None: ...

    def paged_logits(self, call: LogitsCall) -> Tensor: ...

    def rowgroup_logits(self, call: LogitsCall) -> Tensor: ...

    def topk(self, logits: Tensor, lengths: Tensor, k: int, by_position: bool) -> Tensor: ...

    def topk_slots(
        self,
        logits: Tensor,
        lengths: Tensor,
        k: int,
        page_table: Tensor,
        row_to_seq: Tensor | None,
        page_slots: int,
        by_position: bool,
    ) -> tuple[Tensor, Tensor]: ...

    def candidate_blocks(self, logits: Tensor, lengths: Tensor, count: int, block: int) -> Tensor: ...

    def decode_schedule(self, lengths: Tensor, max_seq_len: int, ctas: int, chunk: int) -> Tensor: ...

    def prefill_schedule(
        self, row_to_seq: Tensor, starts: Tensor, ends: Tensor, max_seq_len: int, ctas: int, chunk: int
    ) -> Tensor: ...

    def readback(self, pool: IndexPool, slots: Tensor) -> Tensor: ...

    def router_partials(self, x: Tensor, weight: Tensor, split: int) -> Tensor: ...

    def router_gate(
        self, partials: Tensor, bias: Tensor | None, k: int, routed_scaling: float, renormalise: bool
    ) -> tuple[Tensor, Tensor]: ...

    def linear_float32(self, x: Tensor, weight: Tensor, split: int) -> Tensor: ...

    def store_kv(self, pool: KVPool, rows: Tensor, slots: Tensor) -> None: ...

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
    ) -> None: ...

    def dequantize_kv(self, pool: KVPool, slots: Tensor, dtype: torch.dtype) -> Tensor: ...

    def compress_tokens(self, compressor: Compressor, projected: Tensor, runs: TokenRuns) -> Tensor: ...

    def compress_kv(
        self,
        pool: KVPool,
        compressor: Compressor,
        projected: Tensor,
        cos: Tensor,
        sin: Tensor,
        runs: TokenRuns,
        slots: Tensor,
    ) -> Tensor: ...

    def compress_index_keys(
        self,
        pool: IndexPool,
        compressor: Compressor,
        projected: Tensor,
        cos: Tensor,
        sin: Tensor,
        runs: TokenRuns,
        slots: Tensor,
    ) -> None: ...
