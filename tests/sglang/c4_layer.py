"""One C4 indexer layer of SGLang as a model has it: its own modules, pool, metadata and backend code, one request.

Stood in for, because they are CUDA or HIP code that nothing here can run:

- `compress_forward`, SGLang's JIT kernel that pools 8 tokens into a compressed key: `Pooling` does it in torch.
- the compressor's projection with float32 accumulation, a cuBLAS call: `torch.nn.functional.linear` in float32.
- the plans of which token completes a key: written out here, one request's are plain.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.compress import CompressorDecodePlan, CompressorPrefillPlan
from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis
from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend
from sglang.srt.layers.attention.dsv4 import compressor, compressor_v2
from sglang.srt.layers.attention.dsv4.compressor_v2 import CompressorBackendMixin
from sglang.srt.layers.attention.dsv4.indexer import C4Indexer, C4IndexerBackendMixin
from sglang.srt.layers.attention.dsv4.metadata import PagedIndexerMetadata
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

MAX_POSITION = 4096


class Backend(C4IndexerBackendMixin, CompressorBackendMixin):  # type: ignore[misc]
    """The two mixins that the HIP attention backend takes its C4 indexer from, with what they read of it."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self.token_to_kv_pool = pool
        self.dsa_topk_backend = DSATopKBackend.TORCH
        self.hisparse_coordinator = None
        self.enable_deepseek_v4_fp4_indexer = True


class Pooling:
    """A key is, per dimension, the mean of 8 tokens weighted by the softmax of their scores.

    The 4 tokens before a key's own take the first half of the columns, its own 4 the second; before the request's
    start there is nothing.
    """

    def __init__(self) -> None:
        self.seen = torch.empty(0, 512)

    def __call__(
        self, *, kv_score_input: Tensor, ape: Tensor, plan: Any, head_dim: int, out: Tensor, **rest: Any
    ) -> Tensor:
        self.seen = torch.cat([self.seen, kv_score_input])
        bias = ape.view(2, 4, head_dim)
        for row, length in enumerate(plan[1].view(torch.int32)[:, 0].tolist()):
            if length % 4 == 0:
                out[row] = self._pool(length, bias, head_dim).to(out.dtype)
        return out

    def _pool(self, length: int, bias: Tensor, dim: int) -> Tensor:
        halves = [(max(0, length - 8), length - 4, 0), (length - 4, length, 1)]
        values, scores = [], []
        for start, stop, half in halves:
            rows = self.seen[start:stop]
            values.append(rows[:, half * dim : half * dim + dim])
            at = 2 * dim + half * dim
            scores.append(rows[:, at : at + dim] + bias[half, 4 - (stop - start) :])
        weights = torch.softmax(torch.cat(scores), 0)
        return (weights * torch.cat(values)).sum(0)


def rope_angles() -> tuple[Tensor, Tensor]:
    """The cosines and sines bf16 [4096, 32] of a model's compressed layers."""
    table = precompute_freqs_cis(64, MAX_POSITION, 65536, 160000, 16, 32, 1)
    return table.real.to(torch.bfloat16), table.imag.to(torch.bfloat16)


def c4_indexer(model_config: Any, layer: int, generator: torch.Generator) -> Any:
    """SGLang's indexer of a layer, with random weights loaded as its loader does it."""
    table = precompute_freqs_cis(64, MAX_POSITION, 65536, 160000, 16, 32, 1)
    cos, sin = rope_angles()
    indexer = C4Indexer(model_config, layer, table, fp4_cos=cos, fp4_sin=sin)
    indexer.requires_grad_(False)
    for name, parameter in indexer.named_parameters():
        spread = 0.5 if name.endswith("norm.weight") else 0.05
        values = torch.randn(parameter.shape, generator=generator) * spread + name.endswith("norm.weight")
        parameter.data.copy_(values)
    norm = indexer.compressor.norm
    indexer.compressor.load_norm_weight(norm.weight, norm.weight.data.clone())
    return indexer


def projected(x: Tensor, weight: Tensor) -> Tensor:
    """The compressor's projection with float32 accumulation."""
    return x.float() @ weight.float().T


class C4Layer:
    """The indexer of layer 1 and one request that grows: `extend` many tokens, then `decode` one at a time."""

    def __init__(self, model_config: Any, pool: Any, monkeypatch: Any) -> None:
        generator = torch.Generator().manual_seed(5)
        self.cos, self.sin = rope_angles()
        self.indexer = c4_indexer(model_config, 1, generator)
        self.backend = Backend(pool)
        last = pool.get_index_k_fp4_scale_buffer(1).shape[0] - 1
        self.pages = torch.randperm(last, generator=generator) + 1
        self.length = 0
        monkeypatch.setattr(compressor_v2, "compress_forward", Pooling())
        monkeypatch.setattr(compressor, "linear_bf16_fp32", projected)

    def slots(self, keys: int) -> Tensor:
        return (self.pages[:, None] * 64 + torch.arange(64)).flatten()[:keys]

    def extend(self, x: Tensor, q_lora: Tensor) -> Tensor:
        """Page indices int32 [T, index_topk] of a prefill of T tokens."""
        return self._forward(x, q_lora, ForwardMode.EXTEND)

    def decode(self, x: Tensor, q_lora: Tensor) -> Tensor:
        """Page indices int32 [1, index_topk] of one more token."""
        return self._forward(x, q_lora, ForwardMode.DECODE)

    def _forward(self, x: Tensor, q_lora: Tensor, mode: ForwardMode) -> Tensor:
        positions = torch.arange(self.length, self.length + len(x))
        self.length += len(x)
        metadata = self._metadata(positions, mode)
        self.backend.forward_metadata = metadata
        batch = SimpleNamespace(forward_mode=mode, attn_cp_metadata=None)
        self.indexer(x, q_lora, batch, self.backend)
        picked: Tensor = metadata.core_metadata.c4_sparse_page_indices
        return picked

    def _metadata(self, positions: Tensor, mode: ForwardMode) -> Any:
        lengths = ((positions + 1) // 4).int()
        table = self.pages[: -(-self.length // 256)].int().repeat(len(positions), 1)
        locations = torch.where((positions + 1) % 4 == 0, self.slots(self.length // 4 + 1)[positions // 4], 0)
        plan, rows = _plan(positions, mode)
        metadata = SimpleNamespace(
            core_metadata=SimpleNamespace(
                positions=positions,
                c4_sparse_page_indices=torch.full((len(positions), self.indexer.index_topk), -1, dtype=torch.int32),
                c4_sparse_raw_indices=None,
                c4_out_loc=locations,
            ),
            indexer_metadata=PagedIndexerMetadata(
                page_size=256,
                compressed_page_size=64,
                page_table=table,
                compressed_seq_lens=lengths,
                use_topk_v2=False,
            ),
            c4_compress_metadata=plan,
            fp4_k_write_metadata=hip.prepare_fp4_k_write_metadata(plan, locations, MAX_POSITION),
            fp4_q_positions=positions,
            fp4_decode_workspace=None,
            fp4_prefill_workspace=None,
        )
        assert rows == len(plan[1])
        if mode.is_decode():
            metadata.fp4_decode_workspace = hip.prepare_fp4_decode_workspace(table, lengths)
        else:
            metadata.fp4_prefill_workspace = hip.prepare_fp4_prefill_workspace(table, lengths)
        return metadata


def _plan(positions: Tensor, mode: ForwardMode) -> tuple[Any, int]:
    """Which rows complete a key: every row at decode, those that do at prefill, by sequence length and row number."""
    decode = mode.is_decode()
    rows = torch.arange(len(positions)) if decode else torch.nonzero((positions + 1) % 4 == 0).flatten()
    words = torch.zeros(len(rows), 4, dtype=torch.int32)
    words[:, 0] = positions[rows].int() + 1
    words[:, 1] = rows.int()
    plan = words.view(torch.uint8)
    if decode:
        return CompressorDecodePlan(4, plan), len(rows)
    return CompressorPrefillPlan(4, plan, torch.empty(0, 8, dtype=torch.uint8)), len(rows)
