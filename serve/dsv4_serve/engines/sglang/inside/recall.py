"""Shadow recall: how many of the keys that an exact index would select the FP4 index selects, on live prompts.

Of sampled requests the BF16 keys of one C4 layer are kept from their first token to the end of their prompt. The last
row of each of their chunks is then scored twice: the FP4 logits that the engine just computed, and exact ones over the
kept keys. Requests that begin with a prefix hit have keys that nobody saw; they are counted and not sampled. Decode
runs in captured graphs, where nothing here runs; its keys are made and scored like those of a prompt.

On the device a sampled prompt costs, per chunk, a copy of one layer's keys and two top-k of one row; a request that is
not sampled costs a look at a list. Only the first tensor rank measures.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.sglang.inside import exact
from dsv4_serve.engines.sglang.inside.shadow_buffer import RATIO, ShadowBuffer

if TYPE_CHECKING:
    from torch import Tensor

PLACES, TOKENS, ONE_IN = 4, 65536, 16
"""Prompts at a time, tokens of the longest, and one in how many prompts is sampled."""


@dataclass
class Sampled:
    """A request whose keys are kept. `tokens` of its prompt have been through the layer."""

    request: Any
    place: int
    slots: Tensor | None = None
    tokens: int = 0


@dataclass(frozen=True)
class Row:
    """The last row of a sampled request in this step, and how many keys it sees."""

    sampled: Sampled
    row: int
    keys: int


class ShadowRecall:
    """The samples of one scheduler, for layer `layer` of its token pool."""

    def __init__(self, pool: Any, req_to_token: Tensor, topk: int, *, layer: int, one_in: int = ONE_IN) -> None:
        payload = pool.get_index_k_fp4_payload_buffer(layer)
        slots = payload.shape[0] * payload.shape[3]
        self.buffer = ShadowBuffer(PLACES, TOKENS // RATIO, slots, payload.device)
        self.outcomes: Counter[str] = Counter()
        self.measured: deque[Tensor] = deque(maxlen=4096)
        self._layer_at, self._req_to_token, self._topk, self._one_in = payload.data_ptr(), req_to_token, topk, one_in
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._samples: dict[str, Sampled] = {}
        self._rows: list[Row] = []
        self._prompts = 0
        self._query: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._scored = 0
        self._seen = False
        self.failed = False

    def begin(self, batch: Any) -> None:
        """A step is about to run: let go who left, take on who begins, and say where the step's keys will lie."""
        for rid, sampled in list(self._samples.items()):
            if sampled.request.finished() or sampled.request.to_finish is not None or sampled.request.is_retracted:
                self._close(rid, "left")
        self._rows, self._query, self._seen = [], None, False
        if not batch.forward_mode.is_extend_without_speculative() or batch.prefix_lens is None:
            return
        row = -1
        for request, prefix, count in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
            row += count
            held = self._samples.get(request.rid) or self._open(request, prefix)
            if held is not None:
                self._expect(held, prefix, count, row)

    def _open(self, request: Any, prefix: int) -> Sampled | None:
        # Later chunks begin behind the earlier ones, and a retracted request behind what it generated: no prefix hits.
        if request in self._known or request.output_ids:
            return None
        self._known.add(request)
        self._prompts += 1
        if prefix:
            self.outcomes["prefix_hit"] += 1
            return None
        if self._prompts % self._one_in:
            return None
        place = None if len(request.origin_input_ids) > TOKENS else self.buffer.take()
        if place is None:
            self.outcomes["no_room"] += 1
            return None
        self._samples[request.rid] = Sampled(request, place)
        return self._samples[request.rid]

    def _expect(self, sampled: Sampled, prefix: int, count: int, row: int) -> None:
        import torch

        if prefix != sampled.tokens:
            self._close(sampled.request.rid, "left")
            return
        first, last = prefix // RATIO, (prefix + count) // RATIO
        ends = torch.arange(first, last, device=self._req_to_token.device) * RATIO + RATIO - 1
        slots = self._req_to_token[sampled.request.kv.req_pool_idx, ends].long() // RATIO
        self.buffer.own(sampled.place, first, slots)
        sampled.slots = slots if sampled.slots is None else torch.cat([sampled.slots, slots])
        sampled.tokens = prefix + count
        self._rows.append(Row(sampled, row, last))

    def end(self) -> None:
        """The step was launched: let go of prompts that are complete, and of what ran where nothing here saw it."""
        for held in self._rows:
            request = held.sampled.request
            if not self._seen:
                self._close(request.rid, "unseen")
            elif held.sampled.tokens >= len(request.origin_input_ids):
                self._close(request.rid, "sampled")
        self._rows, self._query = [], None

    def _close(self, rid: str, outcome: str) -> None:
        sampled = self._samples.pop(rid, None)
        if sampled is not None:
            self.buffer.give_back(sampled.place, sampled.slots)
            self.outcomes[outcome] += 1

    def keys_written(self, payload: Tensor, k: Tensor, metadata: Any, norm: tuple[Any, ...]) -> None:
        """A layer stores the keys of `k` [n, 128] at `metadata`'s positions and slots."""
        if not self._rows or metadata is None or payload.data_ptr() != self._layer_at:
            return
        weight, eps, cos, sin = norm
        self.buffer.write(exact.index_keys(k, weight, eps, cos, sin, metadata.positions), metadata.slots)
        self._seen = True

    def query_made(self, q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """A layer made its queries of `q` [T, H, 128]; its scoring launches follow."""
        if self._rows:
            self._query = q, cos, sin, positions
            self._scored = 0

    def scored(self, payload: Tensor, weights: Tensor, logits: Tensor) -> None:
        """The next rows of the step have these FP4 `logits` [rows, n]; a step may be scored in several launches."""
        if not self._rows or self._query is None or payload.data_ptr() != self._layer_at:
            return
        start, count = self._scored, len(weights)
        self._scored += count
        for held in self._rows:
            at = held.row - start
            if 0 <= at < count and held.keys > self._topk:
                keys = self.buffer.keys(held.sampled.place, held.keys)
                found = exact.scores(self._exact_query(held.row), weights[at], keys)
                self.measured.append(exact.recall(logits[at, : held.keys], found, self._topk))

    def _exact_query(self, row: int) -> Tensor:
        """float32 [H, 128] of one row."""
        assert self._query is not None
        q, cos, sin, positions = self._query
        at = positions[row].long()
        return exact.rope(q[row].float(), cos[at].float(), sin[at].float())
