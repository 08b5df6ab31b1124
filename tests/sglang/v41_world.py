"""SGLang's HIP attention backend and token pool of a small DeepSeek-V4.1 with requests in it: whole steps of its
low-ratio path.

Layer 0 reads the window alone; 1 owns KV of ratio 2; 2 owns KV of ratio 1 and publishes candidate blocks; 3 reads
layer 2's KV and scores inside its candidates. The backend's metadata, workspaces and compression in torch, the pools,
the layers' own modules, candidate blocks and the scoring code run as published. Stood in for, because they are JIT code
for a GPU or Triton that takes seconds in the interpreter, besides what `v41_layer.py` names:

- the writer of index keys and the store of FP4 rows: our operations, whose bytes are compared apart.
- the schedule of FlashMLA, which attention alone reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.attention.dsv4 import attn_metadata_kernels
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis
from sglang.kernels.ops.kvcache import dsv4_fp4_index_k_cache_hip as key_cache
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.layers.attention.dsv4 import dsv41_sparse
from sglang.srt.mem_cache import deepseek_v4_memory_pool as memory_pool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

import engine_context
import v41_layer
from dsv4_kernels import aiter_tensors, kv_layout, ops
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.reference.quantize import store
from request_world import CONTEXT, PAGE, RequestWorld

SOURCES, PRODUCER, CONSUMER = (1, 2), 2, 3
RATIOS = [0, 2, 1, 1]
TOPK, BLOCKS, BLOCK = 512, 128, 8
STATES = 8191
"""Different inputs; no two tokens of a request get the same one at the same position."""
CHANGES: dict[str, Any] = {
    "model_type": "deepseek_v41",
    "architectures": ["DeepseekV41ForCausalLM"],
    "num_hidden_layers": len(RATIOS),
    "compress_ratios": RATIOS,
    "index_n_heads": 32,
    "index_topk": TOPK,
    "kv_source_layer_ids": list(SOURCES),
    "index_source_layer_ids": [1, 2, 3],
    "candidate_source_layer_id": PRODUCER,
    "candidate_topk_blocks": BLOCKS,
    "candidate_block_size": BLOCK,
    "n_mtp_layers": 1,
    "dspark_noise_token_id": 2,
    "dspark_target_layer_ids": [3],
}
FREQS = precompute_freqs_cis(64, CONTEXT, 65536, 160000, 16, 32, 1)


def install(monkeypatch: Any, *, page8: bool = False) -> None:
    """Put the stand-ins in place for one test, have a step's tensors count as the device's, and ask for V4.1's rows."""
    monkeypatch.setenv("SGLANG_DSV4_KV_LAYOUT", "v41")
    monkeypatch.setenv("SGLANG_HIP_DSV41_INDEX_K_PAGE8", str(int(page8)))
    v41_layer.install(monkeypatch)
    monkeypatch.setattr(attn_metadata_kernels, "_inputs_on_cuda", lambda *args, **kwargs: True)
    monkeypatch.setattr(hip_backend, "_create_flashmla_metadata", lambda: None)
    monkeypatch.setattr(key_cache, "store_fp4_index_k_cache_split", store_keys)
    monkeypatch.setattr(memory_pool, "fused_store_cache", store_rows)


def store_keys(
    keys: Tensor, payload: Tensor, scale: Tensor, slots: Tensor, *, page_size: int, rne: bool, page8: bool
) -> None:
    """SGLang's writer of index keys: rows of groups that are not complete go to slot 0, which nobody reads."""
    assert rne
    if page8:
        payload, scale = hip.index_k_page8_views(payload, scale)
    real = slots > 0
    pool = aiter_tensors.index_pool(payload, scale, 8 if page8 else page_size)
    store(pool, keys[real].float().t().contiguous(), slots[real].long())


def store_rows(
    *, input: Tensor, cache: Tensor, indices: Tensor, page_size: int, type: str, layout: Any, freqs_cis: Tensor
) -> None:
    """SGLang's store of latents, turned in the same launch."""
    assert (type, layout.value) == ("flashmla", "v41_fp4")
    pool = KVPool(kv_layout.V41_FP4, page_size, cache.view(torch.uint8).flatten(1))
    slots = torch.where(indices > 0, indices.long(), -1)
    ops.store_kv(pool, dsv41_sparse.rope_tail(input, freqs_cis, 64), slots)


class V41World(RequestWorld):
    """Committed tokens are compressed by the layers themselves, in torch. A token's inputs follow from its slot in the
    pool. `fused` layers call SGLang's fused compressors in steps.
    """

    def __init__(self, arguments: Any, lengths: list[int], tokens: int, *, fused: bool = False, **more: Any) -> None:
        super().__init__(arguments, lengths, tokens, algorithm="DSPARK", **more)
        self._fused = fused
        self.layers = {n: self._layer(n) for n in (1, 2, 3)}
        self.tables = {
            n: torch.randn(STATES, 256 + 128, generator=self.generator).to(torch.bfloat16) for n in self.layers
        }
        self.common = more.get("shared_pages", 0) * PAGE
        self._commit()

    def _layer(self, number: int) -> Any:
        config, ratio = self.model.hf_config, RATIOS[number]
        indexer = dsv41_sparse.DeepseekV41Indexer(config, number, 512, None, "")
        indexer.weights_proj_hip_max_tokens = -1
        modules = [indexer]
        if number in SOURCES:
            modules.append(dsv41_sparse.DeepseekV41Compressor(256, 512, ratio, 1e-6, fused_compress=self._fused))
        for module in modules:
            module.requires_grad_(False)
            for name, parameter in module.named_parameters():
                spread, middle = (0.2, 1.0) if "norm" in name else (0.06, 0.0)
                parameter.data.copy_(torch.randn(parameter.shape, generator=self.generator) * spread + middle)
        return SimpleNamespace(
            layer_id=number,
            compress_ratio=ratio,
            indexer=indexer,
            compressor=modules[1] if number in SOURCES else None,
            freqs_cis=FREQS,
            rope_head_dim=64,
        )

    def _commit(self) -> None:
        """Prefill of all committed tokens by the layers' compressors; metadata of a prefill is tested with a chunk."""
        slots, positions, requests = [], [], []
        for request, length in enumerate(self.lengths):
            own = torch.arange(self.common if request else 0, length)
            slots.append(self.token_slots()[request, own])
            positions.append(own)
            requests.append(self.requests[request].expand(len(own)))
        at, position = torch.cat(slots), torch.cat(positions)
        core = SimpleNamespace(raw_out_loc=at, c1_out_loc=at, c2_out_loc=torch.where(position % 2 == 1, at // 2, -1))
        made = self.backend()
        made.forward_metadata = SimpleNamespace(core_metadata=core)
        for number in SOURCES:
            hidden, _ = self.inputs(number, at)
            made._low_ratio_compress_torch(self.layers[number], hidden, torch.cat(requests), position)

    def inputs(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [n, 256] and low-rank queries [n, 128] of the tokens at `slots` of the pool."""
        both = self.tables[layer][slots % STATES]
        return both[:, :256].contiguous(), both[:, 256:].contiguous()

    def run(self, backend: Any, number: int, batch: Any, **what: bool) -> None:
        """A layer's compressor and indexer over the step that the backend has the metadata of."""
        x, q_lora = self.inputs(number, batch.out_cache_loc)
        backend.forward_low_ratio_sources(
            layer=self.layers[number],
            x=x,
            q_lora=q_lora,
            positions=batch.positions,
            forward_batch=batch,
            **what,
        )

    def forward(self, backend: Any, batch: Any) -> dict[int, tuple[Tensor, Tensor]]:
        """Page indices and positions that each layer selects for every row of the step."""
        picked = {}
        for number in self.layers:
            self.run(backend, number, batch)
            core = backend.forward_metadata.core_metadata
            indices, raw = core.sparse_page_indices(RATIOS[number]), core.sparse_raw_indices(RATIOS[number])
            picked[number] = indices[:, :TOPK].clone(), raw[:, :TOPK].clone()
        return picked

    def verify(self, rows: int, **more: Any) -> Any:
        """The step that verifies `rows` tokens of each request."""
        info = SimpleNamespace(draft_token_num=rows, ragged_verify_layout=None)
        return self.batch(ForwardMode.TARGET_VERIFY, rows, spec_info=info, **more)

    def entry_slots(self, request: int, ratio: int, entries: int) -> Tensor:
        """Where the first entries of a request lie in the pools of a ratio."""
        return self.token_slots()[request, : entries * ratio : ratio] // ratio


@contextmanager
def world_of(
    directory: Path, lengths: list[int], drafts: int, *, tokens: int = 24576, **more: Any
) -> Iterator[V41World]:
    """The world of a small V4.1 whose steps verify `drafts` rows of a request, published until the block ends."""
    model = engine_context.write_model(directory, **(CHANGES | {"dspark_block_size": drafts - 1}))
    flags = ("--speculative-algorithm", "DSPARK", "--max-total-tokens", str(tokens))
    with engine_context.engine(model, *flags, "--max-running-requests", str(max(32, len(lengths)))) as arguments:
        yield V41World(arguments, lengths, tokens, **more)
