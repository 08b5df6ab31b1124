"""What a step of vLLM's MXFP4 index needs around it, and an oracle of its scores written out from its description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.config.attention import AttentionConfig
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import rocm_paged_mxfp4_indexer as metadata
from vllm.v1.attention.ops import rocm_paged_mxfp4_indexer as rocm_ops
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker import workspace

from dsv4_kernels import counters
from dsv4_serve.engines.vllm import index_format, plugin, routes

CPU = torch.device("cpu")
PREFIX = "model.layers.2.attn.indexer.k_cache"
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
GAP = 4096
"""Bytes that other layers hold between two pages of the index."""


@dataclass(frozen=True)
class Model:
    """One model's index: `block` tokens a block of the cache, one key for `ratio` of them."""

    model_type: str = "deepseek_v4"
    heads: int = 64
    ratio: int = 4
    block: int = 256
    topk: int = 512
    next_n: int = 1
    context: int = 4096
    candidates: int = 0
    gathers: bool = False

    @property
    def entries(self) -> int:
        return self.block // self.ratio

    @property
    def run(self) -> int:
        return 32 if self.heads >= 32 else 16

    def config(self, dtype: str = "mxfp4", context_parallel: int = 1) -> Any:
        """As much of a VllmConfig as gate and builder read, with vLLM's own attention part."""
        model = SimpleNamespace(
            model_type=self.model_type,
            index_n_heads=self.heads,
            index_head_dim=128,
            qk_rope_head_dim=64,
            compress_ratios=[0, self.ratio],
            candidate_block_size=8 if self.candidates else 0,
            candidate_topk_blocks=self.candidates,
        )
        drafts = SimpleNamespace(num_speculative_tokens=self.next_n - 1, enable_adaptive_verification=False)
        return SimpleNamespace(
            attention_config=AttentionConfig(
                indexer_kv_dtype=dtype,
                indexer_sparse_logits=self.gathers,
                sparse_mla_prefill_workspace_factor=5,
            ),
            model_config=SimpleNamespace(hf_config=model, hf_text_config=model, max_model_len=self.context),
            cache_config=SimpleNamespace(block_size=self.block),
            device_config=SimpleNamespace(device="cpu"),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=1024, max_num_seqs=16),
            parallel_config=SimpleNamespace(
                decode_context_parallel_size=context_parallel,
                prefill_context_parallel_size=1,
                tensor_parallel_size=1,
                cp_kv_cache_interleave_size=1,
            ),
            speculative_config=drafts if self.next_n > 1 else None,
            num_speculative_tokens=self.next_n - 1,
            compilation_config=SimpleNamespace(cudagraph_mode=None),
        )

    def builder(self) -> Any:
        """vLLM's own builder of the step's metadata."""
        spec = MLAAttentionSpec(
            block_size=self.block, num_kv_heads=1, head_size=68, dtype=torch.uint8, tokens_per_state=self.ratio
        )
        v41 = self.model_type == "deepseek_v41"
        made = metadata.DeepseekV41RocmMxfp4IndexerMetadataBuilder if v41 else metadata.RocmMxfp4IndexerMetadataBuilder
        width = -(-self.context // self.block)
        return made(spec, [PREFIX], self.config(), CPU, block_table_width=width)


@contextmanager
def registered() -> Iterator[None]:
    """The plugin as vLLM loads it, and vLLM as published again behind it."""
    routes.forget()
    index_format.forget()
    plugin.register()
    try:
        yield
    finally:
        plugin.unregister()
        routes.forget()
        index_format.forget()


@contextmanager
def launched() -> Iterator[dict[tuple[str, str, str], int]]:
    """Launches of ours inside, filled in at the end."""
    before = counters.snapshot().launches
    found: dict[tuple[str, str, str], int] = {}
    yield found
    found |= {k: n - before.get(k, 0) for k, n in counters.snapshot().launches.items() if n > before.get(k, 0)}


def page_view(model: Model, pages: int) -> Tensor:
    """uint8 [pages, entries, 68] of zeros inside a larger pool: a page stride beyond the page, and an offset."""
    stride = model.entries * 68 + GAP
    return torch.zeros(pages * stride, dtype=torch.uint8).as_strided((pages, model.entries, 68), (stride, 68, 1), GAP)


def step(model: Model, lengths: list[int], queries: list[int], table: Tensor, slots: Tensor) -> CommonAttentionMetadata:
    """A batch of requests with `lengths` tokens, of which the last `queries` are new."""
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        num_reqs=len(lengths),
        num_actual_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
        block_table_tensor=table,
        slot_mapping=slots,
        seq_lens_cpu_upper_bound=seq_lens,
    )


@contextmanager
def forward(built: Mapping[str, Any], mode: CUDAGraphMode = CUDAGraphMode.NONE) -> Iterator[None]:
    """vLLM's forward pass around a layer."""
    workspace.reset_workspace_manager()
    workspace.init_workspace_manager(CPU)
    context = ForwardContext(
        no_compile_layers={}, attn_metadata=dict(built), slot_mapping={}, cudagraph_runtime_mode=mode
    )
    # The simulated machine has no allocator whose cache could be emptied.
    with override_forward_context(context), mock.patch("torch.accelerator.empty_cache"):
        yield
    workspace.reset_workspace_manager()


class Compiled:
    """The one compiled operation of vLLM that its index calls, by its published contract: the k best of few rows."""

    def __init__(self) -> None:
        self.library = torch.library.Library("_C", "FRAGMENT")  # type: ignore[no-untyped-call]
        self.library.define(  # type: ignore[no-untyped-call]
            "top_k_per_row_decode(Tensor logits, int next_n, Tensor seq_lens, Tensor(a!) indices, int rows, "
            "int stride0, int stride1, int k) -> ()"
        )
        self.library.impl("top_k_per_row_decode", self.top_k, "CPU")  # type: ignore[no-untyped-call]

    @staticmethod
    def top_k(logits: Tensor, n: int, lengths: Tensor, out: Tensor, rows: int, s0: int, s1: int, k: int) -> None:
        out.fill_(-1)
        for row in range(rows):
            best = expected_top(logits[row, : int(lengths.view(-1)[row])], k)
            out[row, : len(best)] = torch.tensor(best, dtype=torch.int32)


@dataclass
class Layer:
    """One index layer's keys and queries, made by vLLM's own functions over whatever the plugin chose."""

    model: Model
    pages: Tensor
    seed: int = 0

    def store(self, positions: Tensor, slots: Tensor) -> Tensor:
        """Random keys for a step's tokens; returns them before the norm."""
        k = torch.randn(len(positions), 128, generator=torch.Generator().manual_seed(self.seed)).bfloat16()
        weight, table = torch.linspace(0.5, 1.5, 128).bfloat16(), angles(self.model.context)
        rocm_ops.rocm_mxfp4_indexer_k_store(
            k, positions, table, weight, 1e-6, self.pages, slots, self.model.ratio, True, num_heads=self.model.heads
        )
        return k

    def queries(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(codes [T, H, 64], one int32 of scales a head [T, H], weights [T, H])."""
        of = torch.Generator().manual_seed(self.seed + 1)
        q = torch.randn(len(positions), self.model.heads, 128, generator=of).bfloat16()
        w = torch.randn(len(positions), self.model.heads, generator=of).bfloat16()
        (codes, scales), weights = rocm_ops.rocm_mxfp4_indexer_q_quant(
            positions, q, angles(self.model.context), w, 128**-0.5, self.model.heads**-0.5
        )
        return codes, scales, weights

    def keys(self, table: Tensor, count: int) -> Tensor:
        """float64 [count, 128] of a request whose pages are `table`, read by vLLM's words on a page."""
        entries = self.model.entries
        read = [read_key(self.pages, int(table[i // entries]), i % entries, self.model.run) for i in range(count)]
        return torch.stack(read) if read else torch.zeros(0, 128, dtype=torch.float64)


@cache
def compiled() -> Compiled:
    return Compiled()


def angles(positions: int) -> Tensor:
    """float32 [positions, 64]: cosines, then sines."""
    at = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return torch.cat([at.cos(), at.sin()], 1)


def read_key(pages: Tensor, page: int, slot: int, run: int) -> Tensor:
    """float64 [128]: a key, by vLLM's words: runs of values [chunk, token, byte], of scales [lane, token, byte]."""
    entries, lanes = pages.shape[1], 64 // run
    flat = pages[page].flatten()
    group, t = slot // run, slot % run
    values = flat[: entries * 64].view(-1, 4, run, 16)[group, :, t].flatten()
    scales = flat[entries * 64 :].view(-1, lanes, run, 4 // lanes)[group, :, t]
    bytes_ = torch.stack([scales[c % lanes, c // lanes] for c in range(4)])
    return decode(values, bytes_)


def decode(values: Tensor, scales: Tensor) -> Tensor:
    """float64 [..., 128] of e2m1 pairs [..., 64], low nibble first, and four powers of two."""
    codes = torch.stack([values & 15, values >> 4], -1).flatten(-2).long()
    plain = MAGNITUDES.double()[codes % 8] * torch.where(codes >= 8, -1.0, 1.0)
    return plain * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)


def expected_scores(q: Tensor, scales: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """float64 [keys] of one row: q uint8 [H, 64], scales uint8 [H, 4], weights [H], keys float64 [n, 128]."""
    return (decode(q, scales) @ keys.t()).relu().mul(weights.double()[:, None]).sum(0)


def expected_top(scores: Tensor, k: int) -> list[int]:
    """The columns of the k best, the lowest of equals, ascending."""
    order = sorted(range(len(scores)), key=lambda column: (-float(scores[column]), column))
    return sorted(order[:k])
