"""Continuous batching: which tokens the next forward pass computes, and whose pages give way when none is free.

A step computes one token of every running request and, within a token budget, the next chunks of prompts. Chunks end at
page boundaries, so that each boundary can be kept for later prefix hits. When no page is free the youngest running
request is retracted: it waits again, at the head of the queue, with all its tokens and its random state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch

from .batch import DecodeRow, PromptChunk, make_batch
from .config import PAGE_TOKENS
from .geometry import TILE_TOKENS
from .model import Model
from .options import EngineOptions
from .radix import Node, RadixCache
from .request import EngineError, FinishReason, PromptTooLong, QueueFull, TokenOutput
from .running import Request
from .sampler import sample
from .statistics import EngineStatistics
from .tiers.cache_tiers import CacheTiers
from .tiers.prefix_loader import PrefixLoader

LOOK_AHEAD = 8
"""Waiting requests that may read from the disk at the same time; it bounds the memory of what was read."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one request contributes to a step: `count` tokens from its position `computed`."""

    request: Request
    count: int


class Scheduler:
    """Owns the queues; `step` runs the model once. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        model: Model,
        cache: RadixCache,
        tiers: CacheTiers,
        options: EngineOptions,
        statistics: EngineStatistics,
    ) -> None:
        self._model, self._cache, self._options, self._statistics = model, cache, options, statistics
        self._pools, self._tiers = model.pools, tiers
        self._loader = PrefixLoader(model.pools, cache, tiers)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def check(self, request: Request, context_length: int) -> None:
        """Raise PromptTooLong when the request can never run here."""
        prompt, wanted = len(request.prompt_ids), request.params.max_tokens
        if prompt + wanted > context_length:
            raise PromptTooLong(
                f"the prompt has {prompt} tokens and max_tokens is {wanted}: together {prompt + wanted}, "
                f"the context is {context_length} tokens"
            )
        if request.pages_for_all > self._pools.pages.total:
            raise PromptTooLong(
                f"the prompt has {prompt} tokens and max_tokens is {wanted}: together {prompt + wanted}, "
                f"the cache holds {self._pools.capacity_tokens} tokens"
            )

    def submit(self, request: Request) -> None:
        """Queue a request. Raises QueueFull."""
        if len(self.waiting) >= self._options.max_queued_requests + self._options.max_running_requests:
            raise QueueFull(f"{len(self.waiting)} requests wait already; try again later")
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request wherever it is, without telling its sink."""
        if request in self.running:
            self._stop_running(request)
        elif request in self.waiting:
            self.waiting.remove(request)
            self._loader.abandon(request)

    @property
    def idle(self) -> bool:
        """Nothing can be done now: no request is here, or all wait for pages from the disk."""
        return not self.running and all(map(self._loader.on_its_way, islice(self.waiting, LOOK_AHEAD)))

    def step(self) -> None:
        """Admit, run the model once, sample, deliver."""
        self._admit()
        work = self._plan()
        if not work:
            return
        decode = [w for w in work if w.request.decoding]
        prefill = [w for w in work if not w.request.decoding]
        batch = make_batch([_decode_row(w) for w in decode], [_chunk(w) for w in prefill])
        logits = self._model.forward(batch)
        for item in work:
            self._advance(item)
        ordered = [*decode, *prefill]
        rows = [i for i, w in enumerate(ordered) if w.request.computed == w.request.length]
        if rows:
            self._sample(logits[rows], [ordered[i].request for i in rows])

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every page, tail and slot that is out has exactly one owner."""
        private = [p for r in self.running for p in r.pages[len(r.nodes) :]]
        _same("pages", [*self._cache.pages(), *private], self._pools.pages.outstanding())
        _same("tails", self._cache.tails(), self._pools.tails.outstanding())
        _same("slots", [r.slot for r in self.running], self._pools.slots.outstanding())
        held = sum(node.users for node in self._cache.nodes())
        if held != sum(len(r.nodes) for r in self.running):
            raise RuntimeError(f"the prefix cache counts {held} uses, the running requests hold another number")
        unheld = sum(node.users == 0 for node in self._cache.nodes())
        if unheld != self._cache.evictable_pages:
            raise RuntimeError(f"{unheld} pages are held by no request, the prefix cache counts another number")

    def _admit(self) -> None:
        passed_over = 0
        for request in list(self.waiting):
            if passed_over == LOOK_AHEAD or len(self.running) == self._options.max_running_requests:
                return
            if self._loader.on_its_way(request):
                passed_over += 1
                continue
            nodes = self._cache.match(request.tokens(0, request.length)) if self._cache.enabled else []
            missing = -(-(request.length + 1) // PAGE_TOKENS) - len(nodes)
            # A lone request always fits (see check), so this cannot wait for ever.
            if missing > self._pools.pages.free + self._cache.evictable_pages:
                self._cache.release(nodes)
                return
            self.waiting.remove(request)
            self._start(request, nodes, missing)

    def _start(self, request: Request, nodes: list[Node], missing: int) -> None:
        slot = self._pools.slots.take()
        assert slot is not None
        loaded = self._loader.load(request, nodes)
        cached = {"gpu": len(nodes) * PAGE_TOKENS, "host": 0, "disk": 0}
        for found in loaded:
            cached[found.tier] += PAGE_TOKENS
        nodes = [*nodes, *(found.node for found in loaded)]
        request.slot, request.nodes = slot, nodes
        request.pages = [node.page for node in nodes]
        request.computed = len(nodes) * PAGE_TOKENS
        for _ in range(missing - len(loaded)):
            page = self._cache.take_page()
            assert page is not None
            request.pages.append(page)
        self._model.reset_slot(slot)
        if nodes:
            assert nodes[-1].tail is not None
            self._model.restore_tail(slot, request.computed, nodes[-1].tail)
        if request.cached_tokens is None:
            request.cached_tokens = request.computed
            self._statistics.admitted(len(request.prompt_ids), cached)
        self.running.append(request)

    def _plan(self) -> list[Work]:
        """Every decoding request, oldest first, then prompt chunks within the budget."""
        work: list[Work] = []
        for request in list(self.running):
            if request.decoding and self._make_room(request):
                work.append(Work(request, 1))
        # Making room may have retracted requests that were planned before.
        work = [w for w in work if w.request.slot]
        budget = self._options.chunk_tokens
        for request in self.running:
            if request.decoding:
                continue
            count = min(request.length - request.computed, PAGE_TOKENS - request.computed % PAGE_TOKENS)
            if count > budget:
                count = budget - budget % TILE_TOKENS
            if not count:
                break
            work.append(Work(request, count))
            budget -= count
        return work

    def _make_room(self, request: Request) -> bool:
        """See to it that the next token has a page; False when the request itself was retracted."""
        while request.slot and request.computed // PAGE_TOKENS >= len(request.pages):
            page = self._cache.take_page()
            if page is not None:
                request.pages.append(page)
            else:
                self._retract(self.running[-1])
        return bool(request.slot)

    def _retract(self, request: Request) -> None:
        self._stop_running(request)
        request.computed = 0
        self.waiting.appendleft(request)
        self._statistics.retracted()

    def _advance(self, work: Work) -> None:
        """Count computed tokens; hand full pages to the prefix cache."""
        request = work.request
        request.computed += work.count
        if not self._cache.enabled or request.computed % PAGE_TOKENS or not work.count:
            return
        number = request.computed // PAGE_TOKENS - 1
        parent = request.nodes[-1] if request.nodes else None
        tokens = request.tokens(number * PAGE_TOKENS, request.computed)
        node = self._cache.insert(parent, tokens, request.pages[number])
        request.pages[number] = node.page
        request.nodes.append(node)
        if node.tail is None:
            node.tail = self._cache.take_tail()
            if node.tail is not None:
                self._model.save_tail(request.slot, request.computed, node.tail)
        self._tiers.page_filled(node)

    def _sample(self, logits: torch.Tensor, requests: list[Request]) -> None:
        finite = logits.isfinite().all(-1).tolist()
        for request, ok in zip(requests, finite, strict=True):
            if not ok:
                self._stop_running(request)
                self._statistics.nonfinite()
                request.sink(EngineError("the model produced non-finite logits for this request"))
        live = [(row, r) for row, (r, ok) in enumerate(zip(requests, finite, strict=True)) if ok]
        choices = sample(
            logits[[row for row, _ in live]], [r.sampler for _, r in live], [len(r.output_ids) for _, r in live]
        )
        for (_, request), choice in zip(live, choices, strict=True):
            request.output_ids.append(choice.token_id)
            reason = _finish_reason(request)
            if reason is not None:
                self._stop_running(request)
            self._statistics.generated(request)
            assert request.cached_tokens is not None
            request.sink(
                TokenOutput(choice.token_id, choice.logprob, choice.top_logprobs, reason, request.cached_tokens)
            )

    def _stop_running(self, request: Request) -> None:
        """Give back the slot and pages of a running request; its full pages stay cached."""
        self.running.remove(request)
        for page in request.pages[len(request.nodes) :]:
            self._pools.pages.give(page)
        self._cache.release(request.nodes)
        self._pools.slots.give(request.slot)
        request.pages, request.nodes, request.slot = [], [], 0


def _decode_row(work: Work) -> DecodeRow:
    request = work.request
    return DecodeRow(request.output_ids[-1], request.computed, request.slot, request.pages)


def _chunk(work: Work) -> PromptChunk:
    request = work.request
    tokens = request.tokens(request.computed, request.computed + work.count)
    return PromptChunk(tokens, request.computed, request.slot, request.pages)


def _finish_reason(request: Request) -> FinishReason | None:
    if request.output_ids[-1] in request.params.stop_token_ids:
        return "stop"
    return "length" if len(request.output_ids) >= request.params.max_tokens else None


def _same(what: str, owned: Iterable[int], out: frozenset[int]) -> None:
    owned = sorted(owned)
    if owned != sorted(out):
        raise RuntimeError(f"{what}: owned {owned}, out of the free list {sorted(out)}")
