"""SGLang's HIP attention backend with a token pool of two C4 layers and requests in it: the metadata of whole steps.

The backend's metadata code, its schedules, the pool, the indexers and the key writer run as published. Stood in for,
because they are JIT code for a GPU:

- the planner of compressed keys: `compress_plans.py`.
- the kernel that pools tokens into a key: `random_keys`; which key goes where is the metadata's doing, and tested.
- the compressor's projection with float32 accumulation, and the schedule of FlashMLA, which attention alone reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.attention.dsv4 import attn_metadata_kernels, compress
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend
from sglang.srt.layers.attention.dsv4 import compressor, compressor_v2
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

import c4_layer
import c4_oracle
import compress_plans
import engine_context
from dsv4_kernels import aiter_tensors
from dsv4_kernels.reference.quantize import store

LAYERS = (0, 2)
"""Layers with a C4 indexer."""
RATIOS = [4, 128, 4]
CONTEXT, TOKENS, PAGE = 4096, 24576, 256
PAGES = 10
"""Pages of a request: the backend takes an index_topk of 512 or more, so only longer contexts are scored."""
FLAGS = (
    "--enable-deepseek-v4-fp4-indexer",
    "--max-total-tokens",
    str(TOKENS),
    "--max-running-requests",
    "32",
)


def eagle(drafts: int) -> tuple[str, ...]:
    """Flags of EAGLE with a chain of `drafts` tokens to verify."""
    chain = ("--speculative-num-steps", str(drafts - 1), "--speculative-num-draft-tokens", str(drafts))
    return ("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1", *chain)


def dspark(model: Path, block: int) -> tuple[str, ...]:
    """Flags of DSpark with blocks of `block` draft tokens, from a draft model like the target."""
    draft = ("--speculative-draft-model-path", str(model), "--speculative-dspark-block-size", str(block))
    return ("--speculative-algorithm", "DSPARK", *draft)


def install(monkeypatch: Any) -> None:
    """Put the stand-ins in place for one test, and have tensors of a step count as the device's."""
    monkeypatch.setattr(attn_metadata_kernels, "_inputs_on_cuda", lambda *args, **kwargs: True)
    monkeypatch.setattr(compress, "_jit_compress_plan_module", lambda: compress_plans.PLANNER)
    monkeypatch.setattr(hip_backend, "_create_flashmla_metadata", lambda: None)
    monkeypatch.setattr(compressor_v2, "compress_forward", random_keys)
    monkeypatch.setattr(compressor, "linear_bf16_fp32", c4_layer.projected)


def random_keys(*, plan: Any, out: Tensor, **rest: Any) -> Tensor:
    """A key for every row of a plan, told by where the key ends; nothing else of the tokens enters."""
    for row, length in enumerate(plan[1].view(torch.int32)[:, 0].tolist()):
        out[row] = torch.randn(out.shape[1], generator=torch.Generator().manual_seed(length + 1)).to(out.dtype)
    return out


class StepWorld:
    """A model's backend and `lengths[r]` committed tokens of request r, on pages of its own in shuffled order.

    `algorithm` is the engine's speculative one; `draft` makes it the draft model's backend instead of the target's. The
    pool holds the keys of committed tokens.
    """

    def __init__(self, arguments: Any, lengths: list[int], *, algorithm: str = "NONE", draft: bool = False) -> None:
        from sglang.srt.configs.model_config import ModelConfig

        self.lengths = lengths
        self.pool = engine_context.token_pool(arguments, TOKENS)
        self.pool.full_to_swa_index_mapping = torch.arange(TOKENS + PAGE) % self.pool.swa_size
        self.requests = torch.arange(1, len(lengths) + 1)
        config = ModelConfig.from_server_args(arguments)
        generator = torch.Generator().manual_seed(len(lengths))
        rows = ReqToTokenPool(len(lengths), CONTEXT, "cpu", False)
        self.pages = (torch.randperm(TOKENS // PAGE, generator=generator) + 1)[: len(lengths) * PAGES].view(-1, PAGES)
        rows.req_to_token[1:, : PAGES * PAGE] = self.token_slots().int()
        self.runner = SimpleNamespace(
            device="cpu",
            model_config=config,
            page_size=PAGE,
            req_to_token_pool=rows,
            token_to_kv_pool=self.pool,
            hisparse_coordinator=None,
            spec_algorithm=SpeculativeAlgorithm.from_string(algorithm),
            is_draft_worker=draft,
            model=torch.nn.Module(),
        )
        self.indexers = {n: c4_layer.c4_indexer(config.hf_config, n, generator) for n in LAYERS}
        for request, length in enumerate(lengths):
            self._store(request, length // 4, generator)

    def token_slots(self) -> Tensor:
        """int64 [R, 2560]: where each token of a request lies in the pool."""
        return (self.pages[:, :, None] * PAGE + torch.arange(PAGE)).flatten(1)

    def key_slots(self, request: int, keys: int) -> Tensor:
        return (self.pages[request, :, None] * 64 + torch.arange(64)).flatten()[:keys]

    def _store(self, request: int, keys: int, generator: torch.Generator) -> None:
        for layer in LAYERS:
            tensors = self.pool.get_index_k_fp4_payload_buffer(layer), self.pool.get_index_k_fp4_scale_buffer(layer)
            rows = torch.randn(128, keys, generator=generator)
            store(aiter_tensors.index_pool(*tensors, 64), rows, self.key_slots(request, keys))

    def backend(self) -> Any:
        """A new backend of the model runner, which takes its top-k from torch."""
        made = hip_backend.DeepseekV4HipRadixBackend(self.runner)
        made.dsa_topk_backend = DSATopKBackend.TORCH
        return made

    def batch(self, mode: ForwardMode, rows: int, lengths: list[int] | None = None, **more: Any) -> Any:
        """The forward batch of `rows` new tokens for each request; at decode its length counts the new token already,
        at verify it does not.
        """
        lengths = self.lengths if lengths is None else lengths
        first = torch.tensor(lengths) - (1 if mode.is_decode() else 0)
        positions = (first[:, None] + torch.arange(rows)).flatten()
        requests = self.requests[: len(lengths)]
        slots = self.token_slots()[: len(lengths)].gather(1, positions.view(-1, rows)).flatten()
        fields = {
            "forward_mode": mode,
            "batch_size": len(lengths),
            "req_pool_indices": requests,
            "seq_lens": torch.tensor(lengths),
            "seq_lens_cpu": torch.tensor(lengths),
            "seq_lens_sum": sum(lengths),
            "out_cache_loc": slots,
            "positions": positions,
            "spec_info": None,
            "extend_seq_lens": None,
            "extend_seq_lens_cpu": None,
            "encoder_swa_replay": False,
            "attn_cp_metadata": None,
        }
        return SimpleNamespace(**(fields | more))

    def forward(self, backend: Any, batch: Any) -> dict[int, Tensor]:
        """Page indices of each C4 layer for every row of the step, whose metadata the backend has."""
        picked = {}
        for layer, indexer in self.indexers.items():
            indexer(*self.inputs(layer, len(batch.positions)), batch, backend)
            picked[layer] = backend.forward_metadata.core_attn_metadata.c4_sparse_page_indices.clone()
        return picked

    @staticmethod
    def inputs(layer: int, rows: int) -> tuple[Tensor, Tensor]:
        """Hidden states and low-rank queries of a layer."""
        generator = torch.Generator().manual_seed(1000 * layer + rows)
        x = torch.randn(rows, 256, generator=generator).to(torch.bfloat16)
        return x, torch.randn(rows, 128, generator=generator).to(torch.bfloat16)

    def check(self, picked: dict[int, Tensor], batch: Any, every: int = 1) -> None:
        """Rows of each layer selected what the oracle does, which knows only their request and position.

        `every`: each n-th row of a request, another first one each.
        """
        positions, requests = batch.positions.tolist(), (batch.req_pool_indices - 1).tolist()
        rows_each = len(positions) // len(requests)
        for layer, indices in picked.items():
            x, q_lora = self.inputs(layer, len(positions))
            for number, request in enumerate(requests):
                rows = range(number * rows_each, (number + 1) * rows_each)
                slots = self.key_slots(request, (positions[rows[-1]] + 1) // 4)
                keys = c4_oracle.stored_keys(self.pool, layer, slots)
                for row in rows[number % every :: every]:
                    wanted = c4_oracle.best_slots(
                        self.indexers[layer], x[row], q_lora[row], positions[row], keys, slots
                    )
                    assert c4_oracle.chosen(indices[row]) == wanted, (layer, request, positions[row])


@contextmanager
def world_of(
    directory: Path, *flags: str, lengths: list[int], algorithm: str = "NONE", draft: bool = False
) -> Iterator[StepWorld]:
    """The world of a small model with these flags of the engine, published until the block ends."""
    model = engine_context.write_model(directory, compress_ratios=RATIOS, index_topk=512)
    with engine_context.engine(model, *FLAGS, *flags) as arguments:
        yield StepWorld(arguments, lengths, algorithm=algorithm, draft=draft)
