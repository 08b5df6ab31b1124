"""Requests with committed tokens on pages of a token pool, and SGLang's HIP attention backend over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

import engine_context

CONTEXT, PAGE = 4096, 256
PAGES = 10
"""Pages of a request."""


class RequestWorld:
    """`lengths[r]` committed tokens of request r, on pages of its own in shuffled order but for the first
    `shared_pages`, which are those of a common prefix.

    `algorithm` is the engine's speculative one; `draft` makes it the draft model's backend instead of the target's.
    """

    def __init__(
        self,
        arguments: Any,
        lengths: list[int],
        tokens: int,
        *,
        pages: int = PAGES,
        shared_pages: int = 0,
        algorithm: str = "NONE",
        draft: bool = False,
    ) -> None:
        from sglang.srt.configs.model_config import ModelConfig

        self.lengths = lengths
        self.pool = engine_context.token_pool(arguments, tokens)
        self.pool.full_to_swa_index_mapping = torch.arange(tokens + PAGE) % self.pool.swa_size
        self.requests = torch.arange(1, len(lengths) + 1)
        self.model = ModelConfig.from_server_args(arguments)
        self.generator = torch.Generator().manual_seed(len(lengths))
        rows = ReqToTokenPool(len(lengths), CONTEXT, "cpu", False)
        shuffled = torch.randperm(tokens // PAGE, generator=self.generator) + 1
        own = shuffled[shared_pages : shared_pages + len(lengths) * (pages - shared_pages)].view(len(lengths), -1)
        self.pages = torch.cat([shuffled[:shared_pages].expand(len(lengths), -1), own], 1)
        rows.req_to_token[1:, : pages * PAGE] = self.token_slots().int()
        self.runner = SimpleNamespace(
            device="cpu",
            model_config=self.model,
            page_size=PAGE,
            req_to_token_pool=rows,
            token_to_kv_pool=self.pool,
            hisparse_coordinator=None,
            spec_algorithm=SpeculativeAlgorithm.from_string(algorithm),
            is_draft_worker=draft,
            model=torch.nn.Module(),
        )

    def token_slots(self) -> Tensor:
        """int64 [R, pages * 256]: where each token of a request lies in the pool."""
        return (self.pages[:, :, None] * PAGE + torch.arange(PAGE)).flatten(1)

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
        positions = first[:, None] + torch.arange(rows)
        slots = self.token_slots()[: len(lengths)].gather(1, positions)
        return self._fields(mode, range(len(lengths)), lengths, positions.flatten(), slots.flatten(), more)

    def extend(self, requests: range, starts: list[int]) -> Any:
        """The forward batch of the committed tokens of some requests from `starts` on: a prefill."""
        lengths = [self.lengths[r] for r in requests]
        extends = [length - start for length, start in zip(lengths, starts, strict=True)]
        positions = torch.cat([torch.arange(s, n) for s, n in zip(starts, lengths, strict=True)])
        rows = torch.arange(requests.start, requests.stop).repeat_interleave(torch.tensor(extends))
        more = {
            "extend_seq_lens": torch.tensor(extends, dtype=torch.int32),
            "extend_seq_lens_cpu": extends,
            "extend_start_loc": torch.tensor([0, *extends[:-1]]).cumsum(0).int(),
        }
        return self._fields(ForwardMode.EXTEND, requests, lengths, positions, self.token_slots()[rows, positions], more)

    def _fields(
        self,
        mode: ForwardMode,
        requests: range,
        lengths: list[int],
        positions: Tensor,
        slots: Tensor,
        more: dict[str, Any],
    ) -> Any:
        fields = {
            "forward_mode": mode,
            "batch_size": len(lengths),
            "req_pool_indices": self.requests[requests.start : requests.stop],
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
            "return_logprob": False,
            "capture_hidden_mode": None,
        }
        return SimpleNamespace(**(fields | more))
