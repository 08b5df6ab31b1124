"""Continuous batching: which tokens the next forward pass computes, and whose pages give way when none is free.

A step computes one token of every running request and, within a token budget, the next chunks of prompts. Chunks end at
page boundaries, so that each boundary can be kept for later prefix hits. When no page is free the youngest running
request is retracted: it waits again, at the head of the queue, with all its tokens and its random state.

With speculative decoding a request's token is followed by a draft, and the step gives as many tokens as were right.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from dsv4_kernels.counters import counted_as

from .batch import ForwardBatch, make_batch
from .causal_model import CausalModel
from .config import PAGE_TOKENS
from .draft import DraftSource
from .drafting import Drafting
from .emission import Emission, emit
from .geometry import TILE_TOKENS
from .integrity import require_integrity
from .options import EngineOptions
from .radix import Node, RadixCache
from .request import EngineError, PromptTooLong, QueueFull
from .running import Request
from .statistics import EngineStatistics
from .tiers.cache_tiers import CacheTiers
from .tiers.prefix_loader import PrefixLoader
from .work import Work

LOOK_AHEAD = 8
"""Waiting requests that may read from the disk at the same time; it bounds the memory of what was read."""


class Scheduler:
    """Owns the queues; `step` runs the model once. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        model: CausalModel,
        cache: RadixCache,
        tiers: CacheTiers,
        options: EngineOptions,
        statistics: EngineStatistics,
        draft: DraftSource | None = None,
        draft_tokens: int = 0,
    ) -> None:
        self._model, self._cache, self._options, self._statistics = model, cache, options, statistics
        self._pools, self._tiers = model.pools, tiers
        self._loader = PrefixLoader(model.pools, cache, tiers)
        self._drafting = Drafting(draft, draft_tokens, model.pools)
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
        with counted_as("prefill"):
            self._admit()
        work = self._plan()
        if not work:
            return
        decode = [w for w in work if w.request.decoding]
        prefill = [w for w in work if not w.request.decoding]
        batch = make_batch([row for w in decode for row in w.decode_rows], [w.chunk for w in prefill])
        with counted_as(batch.phase):
            self._run(batch, decode, prefill)

    def _run(self, batch: ForwardBatch, decode: list[Work], prefill: list[Work]) -> None:
        logits = self._model.forward(batch)
        emissions: list[Emission] = []
        row = 0
        for item in decode:
            emissions.append(Emission(item.request, row, item.draft))
            row += 1 + len(item.draft)
        for row, item in enumerate(prefill, batch.decode_rows):
            self._advance(item.request, item.request.computed + item.count)
            if item.request.computed == item.request.length:
                emissions.append(Emission(item.request, row))
        emit(logits, emissions)
        self._drafting.follow(emissions[: len(decode)], batch.segments)
        for emission in emissions:
            self._deliver(emission)

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every page, tail and slot that is out has exactly one owner."""
        require_integrity(self._pools, self._cache, self.running)

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
        self._drafting.start(request)
        if request.cached_tokens is None:
            request.cached_tokens = request.computed
            self._statistics.admitted(len(request.prompt_ids), cached)
        self.running.append(request)

    def _plan(self) -> list[Work]:
        """Every decoding request, oldest first, then prompt chunks within the budget."""
        decoding = [request for request in list(self.running) if request.decoding and self._make_room(request)]
        # Making room may have retracted requests that were planned before.
        work = self._drafting.work([request for request in decoding if request.slot])
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

    def _advance(self, request: Request, computed: int) -> None:
        """Count computed tokens; hand pages that became full to the prefix cache."""
        first, request.computed = request.computed // PAGE_TOKENS, computed
        if self._cache.enabled:
            for number in range(first, computed // PAGE_TOKENS):
                self._keep_page(request, number)

    def _keep_page(self, request: Request, number: int) -> None:
        parent = request.nodes[-1] if request.nodes else None
        end = (number + 1) * PAGE_TOKENS
        node = self._cache.insert(parent, request.tokens(number * PAGE_TOKENS, end), request.pages[number])
        request.pages[number] = node.page
        request.nodes.append(node)
        if node.tail is None:
            node.tail = self._cache.take_tail()
            if node.tail is not None:
                self._model.save_tail(request.slot, end, node.tail)
        self._tiers.page_filled(node)

    def _deliver(self, emission: Emission) -> None:
        """Count what a request's rows computed, end it if it is done, and hand its tokens on."""
        request = emission.request
        # All tokens but the newest were computed; a prompt's were counted before.
        self._advance(request, max(request.computed, request.length - 1))
        if emission.draft and emission.outputs:
            self._statistics.verified(len(emission.draft), len(emission.outputs))
        nodes = request.nodes
        if emission.finished:
            self._stop_running(request)
        for output in emission.outputs:
            self._statistics.generated(request)
            request.sink(output)
        if emission.failed:
            self._fail(request, nodes)

    def _fail(self, request: Request, nodes: list[Node]) -> None:
        """A page may hold what made its logits non-finite: the next request with this prefix computes it anew."""
        self._cache.discard(nodes)
        self._tiers.discard(nodes)
        self._statistics.nonfinite()
        request.sink(EngineError("the model produced non-finite logits for this request"))

    def _stop_running(self, request: Request) -> None:
        """Give back the slot and pages of a running request; its full pages stay cached."""
        self.running.remove(request)
        for page in request.pages[len(request.nodes) :]:
            self._pools.pages.give(page)
        self._cache.release(request.nodes)
        self._pools.slots.give(request.slot)
        request.pages, request.nodes, request.slot = [], [], 0
