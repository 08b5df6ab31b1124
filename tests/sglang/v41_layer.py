"""Low-ratio indexer layers of SGLang's DeepSeek-V4.1: a producer of candidate blocks and a consumer, on one pool.

The layers' own modules, scoring, grouping and candidate code run as published. Stood in for, because they are JIT code
for a GPU or Triton that the interpreter gets wrong:

- the top-k kernel `topk_transform_paged_v2`: our `ops.topk_slots`.
- `index_q_rope_pack_flydsl`, whose rounding needs libdevice: SGLang's own torch form of the same two steps, and our
  packer, whose bytes equal its packer's (test_conformance_layout.py). Keys are made and stored the same way.
- the split-K projection of head weights (bf16 products in Triton): the plain projection that other machines use.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.attention.dsv4 import candidate_blocks_hip
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis
from sglang.srt.layers.attention.dsv4 import dsv41_sparse, low_ratio_backend_hip
from sglang.srt.layers.attention.dsv4.metadata import PagedIndexerMetadata
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

import index_world
from dsv4_kernels import aiter_tensors, ops
from dsv4_kernels.reference.quantize import store

HIDDEN, Q_LORA, LATENT = 256, 128, 512
TOPK, BLOCKS, BLOCK = 64, 16, 8
PRODUCER, CONSUMER = 20, 24
CONFIG = SimpleNamespace(
    index_n_heads=32,
    index_head_dim=128,
    qk_rope_head_dim=64,
    index_topk=TOPK,
    kv_source_layer_ids=[PRODUCER],
    candidate_source_layer_id=PRODUCER,
    candidate_topk_blocks=BLOCKS,
    candidate_block_size=BLOCK,
    q_lora_rank=Q_LORA,
    hidden_size=HIDDEN,
    rms_norm_eps=1e-6,
)
FREQS = precompute_freqs_cis(64, 4096, 65536, 160000, 16, 32, 1)


Inputs = dict[int, tuple[Tensor, Tensor]]
"""Hidden states and low-rank queries of each layer."""


def packed_query(
    q: Tensor, freqs: Tensor, positions: Tensor, rope_dim: int, *, num_heads: int
) -> tuple[Tensor, Tensor]:
    turned = dsv41_sparse._rope_fq4(q.view(-1, num_heads, 128), freqs[positions], rope_dim)
    none = torch.zeros(len(q), dtype=torch.int64)
    query = ops.quantize_query(turned, torch.ones(1, 32), torch.zeros(1, 32), none, spec=index_world.UNROTATED)
    assert query.payload is not None
    assert query.scale is not None
    return query.payload, query.scale


def topk_paged(
    scores: Tensor, lengths: Tensor, table: Tensor, out: Tensor, page: int, plan: None, raw: Tensor | None
) -> None:
    picked, slots = ops.topk_slots(scores, lengths, out.shape[1], table, page_slots=page)
    out.copy_(slots)
    if raw is not None:
        raw.copy_(picked)


def install(monkeypatch: Any) -> None:
    """Put the stand-ins in place for one test."""
    monkeypatch.setattr(candidate_blocks_hip, "topk_transform_paged_v2", topk_paged)
    monkeypatch.setattr(candidate_blocks_hip, "plan_topk_v2", lambda lengths: None)
    monkeypatch.setattr(low_ratio_backend_hip, "index_q_rope_pack_flydsl", packed_query)


class Pool:
    """SGLang's index pool as its token pool hands it to every layer that reads the producer's keys."""

    def __init__(self, page8: bool) -> None:
        self.page8 = page8
        self.index = index_world.index_pool(page8)

    def get_index_k_fp4_payload_buffer(self, layer: int) -> Any:
        return self.index.get_index_k_fp4_payload_buffer(0)

    def get_index_k_fp4_scale_buffer(self, layer: int) -> Any:
        return self.index.get_index_k_fp4_scale_buffer(0)

    def low_ratio_index_k_page8(self, layer: int) -> bool:
        return self.page8

    def write(self, keys: Tensor, slots: Tensor) -> None:
        tensors = self.get_index_k_fp4_payload_buffer(0), self.get_index_k_fp4_scale_buffer(0)
        if self.page8:
            tensors = hip.index_k_page8_views(*tensors)
        store(aiter_tensors.index_pool(*tensors, 8 if self.page8 else 64), keys.float().t().contiguous(), slots)


class V41Layers:
    """A producer and a consumer over the keys of requests with `lengths` tokens each, at ratio 1."""

    def __init__(self, lengths: list[int], page8: bool) -> None:
        generator = torch.Generator().manual_seed(3)
        self.lengths = lengths
        self.layers = {n: self._layer(n, generator) for n in (PRODUCER, CONSUMER)}
        self.pool = Pool(page8)
        self.page_table = (torch.randperm(39, generator=generator)[: len(lengths) * 8] + 1).int().view(-1, 8)
        self.backend = SimpleNamespace(
            token_to_kv_pool=self.pool,
            low_ratio_identity_skip=False,
            low_ratio_candidate_span=BLOCKS * BLOCK,
            max_context_len=4096,
            candidate_masks=None,
            index_topk=TOPK,
        )
        for request, length in enumerate(lengths):
            latent = torch.randn(length, LATENT, generator=generator).to(torch.bfloat16)
            keys = self.layers[PRODUCER].indexer.index_keys(latent, FREQS[:length])
            self.pool.write(keys, self.slots(request, length))

    @staticmethod
    def _layer(number: int, generator: torch.Generator) -> Any:
        indexer = dsv41_sparse.DeepseekV41Indexer(CONFIG, number, LATENT, None, "")
        indexer.requires_grad_(False)
        indexer.weights_proj_hip_max_tokens = -1
        for name, parameter in indexer.named_parameters():
            if not name.endswith("k_norm.weight"):
                parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
        return SimpleNamespace(layer_id=number, compress_ratio=1, indexer=indexer, freqs_cis=FREQS)

    def slots(self, request: int, length: int) -> Tensor:
        return (self.page_table[request].long()[:, None] * 64 + torch.arange(64)).flatten()[:length]

    def forward(
        self, inputs: dict[int, tuple[Tensor, Tensor]], rows: list[int], mode: ForwardMode
    ) -> dict[int, Tensor]:
        """Page indices of each layer, for the last `rows[r]` tokens of each request r."""
        requests = [r for r, n in enumerate(rows) for _ in range(n)]
        positions = torch.cat([torch.arange(length - n, length) for length, n in zip(self.lengths, rows, strict=True)])
        picked = {}
        for number, layer in self.layers.items():
            out = torch.full((len(requests), TOPK), -7, dtype=torch.int32)
            self.backend.forward_metadata = self._metadata(requests, positions, rows, out, mode)
            batch = SimpleNamespace(
                forward_mode=mode,
                seq_lens_cpu=torch.tensor(self.lengths),
                extend_seq_lens_cpu=rows,
                req_pool_indices=torch.arange(len(rows)),
            )
            decode = mode.is_decode()
            run = low_ratio_backend_hip.low_ratio_index_topk_hip_extend
            if decode:
                run = low_ratio_backend_hip.low_ratio_index_topk_hip_decode
            run(self.backend, layer, *inputs[number], positions, batch)
            picked[number] = out
        return picked

    def _metadata(self, requests: list[int], positions: Tensor, rows: list[int], out: Tensor, mode: ForwardMode) -> Any:
        scored = PagedIndexerMetadata(
            page_size=256,
            compressed_page_size=64,
            page_table=self.page_table[requests],
            compressed_seq_lens=(positions + 1).int(),
            use_topk_v2=False,
            compress_ratio=1,
        )
        page8 = frozenset({1} if self.pool.page8 else ())
        by_ratio = {1: scored}
        decode, prefill = {}, {}
        if mode.is_decode():
            decode = low_ratio_backend_hip.build_low_ratio_decode_workspaces(
                by_ratio, max_context_len=4096, num_requests=len(rows), page8_ratios=page8
            )
        else:
            prefill = low_ratio_backend_hip.refresh_low_ratio_prefill_workspaces(
                by_ratio, None, extend_lens=rows, max_context_len=4096, page8_ratios=page8
            )
        core = SimpleNamespace(sparse_page_indices=lambda ratio: out, sparse_raw_indices=lambda ratio: None)
        return SimpleNamespace(
            core_metadata=core,
            late_layer_tail=None,
            low_ratio_indexer_metadata=by_ratio.get,
            fp4_low_ratio_decode_workspaces=decode,
            fp4_low_ratio_prefill_workspaces=prefill,
        )
