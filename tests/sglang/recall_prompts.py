"""Steps of prompts over SGLang's unmodified adapter and pool, as shadow recall sees them.

A prompt's step is what SGLang's scheduler and a C4 layer do: the scheduler names the batch, the layer writes its keys,
makes its queries and scores them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.compress import CompressorPrefillPlan
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams
from torch import Tensor

from dsv4_serve.engines.hooks import Hook, Hooks
from dsv4_serve.engines.sglang.inside import recall_hooks
from dsv4_serve.engines.sglang.inside.recall import ShadowRecall
from index_world import index_pool, yarn_angles

TOPK, PAGES = 16, 39
HOOKS = (
    Hook(recall_hooks.ADAPTER, "aiter_k_indexer_fp4_cache_write", recall_hooks._writing, "keys"),
    Hook(recall_hooks.ADAPTER, "aiter_q_indexer_fp4", recall_hooks._querying, "queries"),
    Hook(recall_hooks.ADAPTER, "aiter_fp4_paged_mqa_logits", recall_hooks._scoring, "scores"),
)


@contextmanager
def attached() -> Iterator[None]:
    """With the hooks of shadow recall in SGLang's adapter."""
    hooks = Hooks(HOOKS)
    hooks.attach()
    try:
        hooks.verify()
        yield
    finally:
        hooks.detach()


def request(rid: str, slot: int, tokens: int) -> Req:
    """SGLang's request of so many prompt tokens, in row `slot` of its request table."""
    made = Req(rid, "", array("q", [1] * tokens), SamplingParams(max_new_tokens=1))
    made.kv.req_pool_idx = slot
    return made


class Prompts:
    """A layer of a model with SGLang's pool of it, and requests on pages of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, spread: float = 1.0, **options: Any) -> None:
        self.index = index_pool()
        self.pool = SimpleNamespace(get_index_k_fp4_payload_buffer=self.index.get_index_k_fp4_payload_buffer)
        self.random = torch.Generator().manual_seed(11)
        self.spread = spread
        self.weight = torch.rand(128, generator=self.random) + 0.5
        pages = (torch.randperm(PAGES, generator=self.random) + 1).view(3, 13)
        tokens = (pages[:, :, None] * 256 + torch.arange(256)).flatten(1)
        self.pages, self.req_to_token = pages.int(), torch.cat([torch.zeros_like(tokens[:1]), tokens]).int()
        self.recall = ShadowRecall(self.pool, self.req_to_token, TOPK, layer=0, **({"one_in": 1} | options))
        monkeypatch.setattr(recall_hooks, "_current", self.recall)

    def step(self, *chunks: tuple[Req, int, int], corrupt: bool = False) -> None:
        """One prefill step of chunks (request, tokens before, tokens now); `corrupt` spoils the pool before scoring."""
        self.recall.begin(self.batch(*chunks))
        self.run(chunks, corrupt)
        self.recall.end()

    @staticmethod
    def batch(*chunks: tuple[Req, int, int], mode: ForwardMode = ForwardMode.EXTEND) -> Any:
        return ScheduleBatch(
            forward_mode=mode,
            reqs=[prompt for prompt, _, _ in chunks],
            prefix_lens=[prefix for _, prefix, _ in chunks],
            extend_lens=[count for _, _, count in chunks],
        )

    def run(self, chunks: tuple[tuple[Req, int, int], ...], corrupt: bool = False) -> None:
        positions = torch.cat([torch.arange(prefix, prefix + count) for _, prefix, count in chunks])
        requests = torch.cat([torch.full((count,), r.kv.req_pool_idx) for r, _, count in chunks])
        self._write(positions, requests)
        if corrupt:
            for tensor in (self.index.index_k_payload_buffer[0].view(torch.uint8), self.index.index_k_scale_buffer[0]):
                tensor.copy_(tensor.flip(-2) if tensor.shape[-1] == 16 else tensor.flip(-1))
        self._score(positions, self.pages[requests - 1])

    def _write(self, positions: Tensor, requests: Tensor) -> None:
        done = torch.nonzero((positions + 1) % 4 == 0).flatten()
        words = torch.zeros(len(done), 4, dtype=torch.int32)
        words[:, 0], words[:, 1] = positions[done].int() + 1, done.int()
        plan = CompressorPrefillPlan(4, words.view(torch.uint8), torch.empty(0, 8, dtype=torch.uint8))
        slots = self.req_to_token[requests, positions].long() // 4
        cos, sin = yarn_angles()
        hip.aiter_k_indexer_fp4_cache_write(
            k=(torch.randn(len(done), 128, generator=self.random) * self.spread).to(torch.bfloat16),
            norm_weight=self.weight,
            norm_epsilon=1e-6,
            cos=cos,
            sin=sin,
            plan=plan,
            out_loc=slots,
            k_payload=self.index.get_index_k_fp4_payload_buffer(0),
            k_scale=self.index.get_index_k_fp4_scale_buffer(0),
            write_metadata=hip.prepare_fp4_k_write_metadata(plan, slots, len(cos)),
        )

    def _score(self, positions: Tensor, table: Tensor) -> None:
        rows = len(positions)
        q = torch.randn(rows, 64, 128, generator=self.random).to(torch.bfloat16)
        weights = torch.randn(rows, 64, generator=self.random).to(torch.bfloat16)
        q_fp4, q_scale = hip.aiter_q_indexer_fp4(q, *yarn_angles(), positions)
        lengths = ((positions + 1) // 4).int()
        # Two launches, as over the logits budget.
        for part in (slice(0, rows // 2), slice(rows // 2, rows)):
            hip.aiter_fp4_paged_mqa_logits(
                q_fp4=q_fp4[part],
                q_scale=q_scale[part],
                k_payload=self.index.get_index_k_fp4_payload_buffer(0),
                k_scale=self.index.get_index_k_fp4_scale_buffer(0),
                weights=weights[part],
                page_table=table[part],
                c4_seq_lens=lengths[part],
                weight_scale=1.0,
                is_decode=False,
            )

    @property
    def measured(self) -> list[float]:
        return [float(value) for value in self.recall.measured]
