"""Requests with index keys in SGLang's own pool, scored through its unmodified HIP adapter, and the oracle.

Contexts are shuffled over the pool's pages. Every expectation comes from `fp4_oracle`, which reads the pool's bytes
by written-out formulas in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import fp4_oracle as oracle
from dsv4_kernels import aiter_tensors, reference
from dsv4_kernels.layout import SPLIT64
from dsv4_kernels.reference.quantize import store

Kind = Literal["c4", "low_ratio", "page8"]

PAGES = 40
WIDTH = 8
"""Page-table columns: contexts of up to 512 compressed keys."""
UNROTATED = aiter_tensors.spec(SPLIT64, hadamard=False)


def yarn_angles() -> tuple[Tensor, Tensor]:
    """SGLang's bf16 cosines and sines of the compressed layers [4096, 32]."""
    from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis

    table = precompute_freqs_cis(64, 4096, 65536, 160000, 16, 32, 1)
    return table.real.to(torch.bfloat16), table.imag.to(torch.bfloat16)


def index_pool(page8: bool = False) -> Any:
    """SGLang's index pool of one layer, as its memory pool makes it on gfx950."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4IndexerPool

    pool = DeepSeekV4IndexerPool(
        size=(PAGES - 1) * 64,
        page_size=64,
        dtype=torch.uint8,
        index_head_dim=128,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
        use_fp4_indexer=True,
    )
    pool.index_k_page8 = page8
    pool.index_k_rne = True
    return pool


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True)
class Queries:
    """Rows ready to be scored: SGLang's packed queries and raw bf16 head weights."""

    q_fp4: Tensor
    q_scale: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.q_fp4)

    def values(self, row: int) -> oracle.F64:
        heads = self.q_fp4.shape[1]
        scales = self.q_scale[row].flatten().numpy()
        bytes_ = [[scales[oracle.query_scale_offset(0, h, c)] for c in range(4)] for h in range(heads)]
        codes = oracle.unpacked(self.q_fp4[row].view(torch.uint8).numpy())
        return oracle.dequantize(codes, np.array(bytes_, np.uint8))


class IndexWorld:
    """`lengths[r]` compressed keys of request r, on pages of its own in shuffled order, in one layer of a model.

    `c4` is DeepSeek-V4's indexer: 64 heads, keys and queries through SGLang's adapter. `low_ratio` and `page8` are
    V4.1's: 32 heads, pages of 64 and of 8 slots. Their keys and queries are packed by us, because SGLang's Triton
    packers take seconds in the interpreter; test_conformance_layout.py shows that the bytes are the same.
    """

    def __init__(self, lengths: list[int], kind: Kind = "c4", layer: int = 0) -> None:
        self.lengths, self.kind = lengths, kind
        self.heads = 64 if kind == "c4" else 32
        self.weight_scale = 128**-0.5 * 64**-0.5 if kind == "c4" else 1.0
        self.pool = index_pool(page8=kind == "page8")
        shuffled = torch.randperm(PAGES - 1, generator=torch.Generator().manual_seed(sum(lengths))) + 1
        self.page_table = shuffled[: len(lengths) * WIDTH].int().view(len(lengths), WIDTH)
        self.random = torch.Generator().manual_seed(layer)
        for request, length in enumerate(lengths):
            self._write(request, length)

    def _write(self, request: int, length: int) -> None:
        from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
        from sglang.kernels.ops.attention.dsv4.compress import CompressorDecodePlan

        slots = self.slots(request, length)
        keys = torch.randn(length, 128, generator=self.random).to(torch.bfloat16)
        if self.kind != "c4":
            tensors = (self.payload, self.scale)
            page8 = self.kind == "page8"
            if page8:
                tensors = hip.index_k_page8_views(*tensors)
            pool = aiter_tensors.index_pool(*tensors, 8 if page8 else 64)
            store(pool, keys.float().t().contiguous(), slots)
            return
        words = torch.zeros(length, 4, dtype=torch.int32)
        words[:, 0] = torch.arange(1, length + 1) * 4
        plan = CompressorDecodePlan(4, words.view(torch.uint8))
        cos, sin = yarn_angles()
        hip.aiter_k_indexer_fp4_cache_write(
            k=keys,
            norm_weight=torch.rand(128, generator=self.random) + 0.5,
            norm_epsilon=1e-6,
            cos=cos,
            sin=sin,
            plan=plan,
            out_loc=slots,
            k_payload=self.payload,
            k_scale=self.scale,
            write_metadata=hip.prepare_fp4_k_write_metadata(plan, slots, len(cos)),
        )

    @property
    def payload(self) -> Any:
        return self.pool.get_index_k_fp4_payload_buffer(0)

    @property
    def scale(self) -> Any:
        return self.pool.get_index_k_fp4_scale_buffer(0)

    def slots(self, request: int, length: int) -> Tensor:
        return (self.page_table[request].long()[:, None] * 64 + torch.arange(64)).flatten()[:length]

    def queries(self, rows: int) -> Queries:
        from sglang.kernels.ops.attention.dsv4.fp4_indexer_hip import aiter_q_indexer_fp4

        q = torch.randn(rows, self.heads, 128, generator=self.random).to(torch.bfloat16)
        weights = torch.randn(rows, self.heads, generator=self.random).to(torch.bfloat16)
        if self.kind == "c4":
            q_fp4, q_scale = aiter_q_indexer_fp4(q, *yarn_angles(), torch.arange(rows) + 1000)
            return Queries(q_fp4, q_scale, weights)
        query = reference.quantize_query(
            q, torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(rows, dtype=torch.int64), UNROTATED
        )
        assert query.payload is not None
        assert query.scale is not None
        return Queries(query.payload, query.scale, weights)

    @cached_property
    def keys(self) -> list[oracle.F64]:
        """Per request the dequantised keys [length, 128]."""
        payload, scale = self.payload.view(torch.uint8).flatten().numpy(), self.scale.flatten().numpy()
        name = "split8" if self.kind == "page8" else "split64"
        slots = [self.slots(request, length).numpy() for request, length in enumerate(self.lengths)]
        return [oracle.read_keys(name, payload, scale, s) if len(s) else np.zeros((0, 128)) for s in slots]

    def expected(self, queries: Queries, row: int, request: int) -> Tensor:
        """float64 [length] scores of all keys of a request."""
        weights = queries.weights[row].double().numpy()
        return torch.from_numpy(oracle.logits(queries.values(row), self.keys[request], weights, self.weight_scale))

    def score(self, queries: Queries, table: Tensor, lengths: list[int], **launch: Any) -> Tensor:
        """Logits by SGLang's entry to all launches."""
        from sglang.kernels.ops.attention.dsv4.fp4_indexer_hip import aiter_fp4_paged_mqa_logits

        logits: Tensor = aiter_fp4_paged_mqa_logits(
            q_fp4=queries.q_fp4,
            q_scale=queries.q_scale,
            k_payload=self.payload,
            k_scale=self.scale,
            weights=queries.weights,
            page_table=table,
            c4_seq_lens=int32(lengths),
            weight_scale=self.weight_scale,
            page8=self.kind == "page8",
            **launch,
        )
        return logits

    def check(self, logits: Tensor, queries: Queries, requests: list[int], lengths: list[int]) -> None:
        """Row t of `logits` has the scores of the first `lengths[t]` keys of request `requests[t]`."""
        assert logits.shape[0] == len(requests) == len(lengths)
        for row, (request, length) in enumerate(zip(requests, lengths, strict=True)):
            expected = self.expected(queries, row, request)[:length]
            torch.testing.assert_close(logits[row, :length].double(), expected, rtol=2e-6, atol=2e-6)
