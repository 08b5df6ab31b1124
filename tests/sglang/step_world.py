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
from typing import Any

import torch
from sglang.kernels.ops.attention.dsv4 import attn_metadata_kernels, compress
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.layers.attention.dsv4 import compressor, compressor_v2
from torch import Tensor

import c4_layer
import c4_oracle
import compress_plans
import engine_context
from dsv4_kernels import aiter_tensors
from dsv4_kernels.reference.quantize import store
from request_world import RequestWorld

LAYERS = (0, 2)
"""Layers with a C4 indexer."""
RATIOS = [4, 128, 4]
TOKENS = 24576
"""The backend takes an index_topk of 512 or more, so requests have pages for contexts of 2,560 tokens."""
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


class StepWorld(RequestWorld):
    """The world of a model with two C4 layers, whose pool holds the keys of committed tokens."""

    def __init__(self, arguments: Any, lengths: list[int], *, algorithm: str = "NONE", draft: bool = False) -> None:
        super().__init__(arguments, lengths, TOKENS, algorithm=algorithm, draft=draft)
        self.indexers = {n: c4_layer.c4_indexer(self.model.hf_config, n, self.generator) for n in LAYERS}
        for request, length in enumerate(lengths):
            self._store(request, length // 4, self.generator)

    def key_slots(self, request: int, keys: int) -> Tensor:
        return (self.pages[request, :, None] * 64 + torch.arange(64)).flatten()[:keys]

    def _store(self, request: int, keys: int, generator: torch.Generator) -> None:
        for layer in LAYERS:
            tensors = self.pool.get_index_k_fp4_payload_buffer(layer), self.pool.get_index_k_fp4_scale_buffer(layer)
            rows = torch.randn(128, keys, generator=generator)
            store(aiter_tensors.index_pool(*tensors, 64), rows, self.key_slots(request, keys))

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
