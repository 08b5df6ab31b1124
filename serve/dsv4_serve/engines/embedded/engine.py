"""The engine: one thread that steps the scheduler, and the asynchronous face that the HTTP side uses."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from .build import Built, build, tensors_on
from .draft import DraftSource
from .exposition import StateCollector, exposition
from .info import describe
from .options import EngineOptions
from .outbox import Outbox
from .radix import RadixCache
from .request import EngineDead, EngineError, SamplingParams, TokenOutput
from .running import Request
from .sampler import RequestSampler
from .scheduler import Scheduler
from .statistics import EngineStatistics
from .tiers.cache_tiers import CacheTiers, tier_names
from .tiers.fingerprint import tier_fingerprint

log = logging.getLogger(__name__)

Command = Callable[[], None]
Result = TypeVar("Result")


class AsyncEngine:
    """A loaded model that serves requests. Build it with `create`, then `start` it inside an event loop's program."""

    def __init__(self, built: Built, options: EngineOptions, draft: DraftSource | None = None) -> None:
        self.model_config, self.context_length, self.model = built.config, built.context_length, built.model
        self.options, self.startup_phases = built.options, built.phases
        self.chat_version = built.family.chat_version
        self.draft_tokens = 0 if draft is None else min(options.draft_tokens or draft.longest, draft.longest)
        self._commands: deque[Command] = deque()
        self._outbox = Outbox()
        self._wake = threading.Condition()
        self.statistics = EngineStatistics(("gpu", *tier_names(options)), None if draft is None else draft.name)
        self.tiers = CacheTiers(self.model.pools, options, self._fingerprint, self.statistics.tiers, self._notify)
        self.cache = RadixCache(self.model.pools, options.prefix_cache, self.tiers.node_lost)
        self.scheduler = Scheduler(
            self.model, self.cache, self.tiers, options, self.statistics, draft, self.draft_tokens
        )
        self.statistics.registry.register(StateCollector(self.model.pools, self.cache, self.tiers, self.scheduler))
        self._stopping = False
        self._clean = True
        self._death: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @classmethod
    def create(cls, options: EngineOptions, draft: DraftSource | None = None) -> AsyncEngine:
        """Load the model and allocate the pools (blocking); see `build` for the errors.

        `draft` is a source other than that of `options.speculative`.
        """
        built = build(options)
        return cls(built, options, draft or built.draft)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the engine thread; requests that still run get EngineDead."""
        self._stopping = True
        self._notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self.tiers.close, list(self.cache.nodes()) if self._clean else [])

    def dead(self) -> str | None:
        """Why the engine loop ended, or None while it lives."""
        return self._death

    async def generate(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams
    ) -> AsyncGenerator[TokenOutput, None]:
        """The tokens of one completion as they come. Closing the generator aborts the request.

        Raises QueueFull, PromptTooLong or EngineDead before the first token, EngineError later.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[TokenOutput | EngineError] = asyncio.Queue()
        request = Request(
            request_id,
            list(prompt_ids),
            params,
            RequestSampler(params, secrets.randbits(62)),
            self._outbox.sink(loop, queue),
        )
        self.scheduler.check(request, self.context_length)
        self._command(lambda: self._submit(request))
        finished = False
        try:
            while not finished:
                item = await queue.get()
                if isinstance(item, EngineError):
                    finished = True
                    raise item
                finished = item.finish_reason is not None
                yield item
        finally:
            if not finished:
                self._command(lambda: self.scheduler.abort(request), quiet=True)

    async def check_integrity(self) -> None:
        """Raise RuntimeError unless every page, tail and slot has exactly one owner; runs between two steps."""
        await self._between_steps(self.scheduler.check_integrity)

    async def forget_cache(self) -> int:
        """Evict every cached page that no running request holds; returns how many."""
        return await self._between_steps(self.cache.forget)

    async def drain_tiers(self) -> None:
        """Wait until the disk tier has every page that it was given."""
        await asyncio.to_thread(self.tiers.drain)

    def server_info(self) -> dict[str, object]:
        """Effective configuration, capacities by region and the state of the queues."""
        queues = {"running": len(self.scheduler.running), "queued": len(self.scheduler.waiting)}
        tiers = self.tiers.usage()
        effective = describe(self.options, self.context_length, self.model.pools, tiers, self.draft_tokens)
        return {**effective, **queues, "startup_phases": self.startup_phases}

    def metrics_text(self) -> str:
        """Prometheus exposition of the engine's families."""
        return exposition(self.statistics)

    def _fingerprint(self) -> str:
        return tier_fingerprint(self.options, self.model_config, self.context_length, self.model.pools)

    def _submit(self, request: Request) -> None:
        try:
            self.scheduler.submit(request)
        except EngineError as error:
            request.sink(error)

    async def _between_steps(self, action: Callable[[], Result]) -> Result:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            try:
                result = action()
            except RuntimeError as error:
                loop.call_soon_threadsafe(future.set_exception, error)
            else:
                loop.call_soon_threadsafe(future.set_result, result)

        self._command(run)
        return await future

    def _command(self, command: Command, quiet: bool = False) -> None:
        """Run something on the engine thread before its next step."""
        with self._wake:
            if self._death is None:
                self._commands.append(command)
                self._wake.notify()
                return
        if not quiet:
            raise EngineDead(self._death)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        reason = "the engine was stopped"
        try:
            with tensors_on(self.options.device):
                while not self._stopping:
                    self._wait_for_work()
                    self._run_commands()
                    self.scheduler.step()
                    self._outbox.flush()
        except Exception as error:
            log.exception("the engine loop failed")
            self._clean = False
            reason = f"the engine loop failed: {type(error).__name__}: {error}"
        self._die(reason)

    def _wait_for_work(self) -> None:
        with self._wake:
            while not self._commands and self.scheduler.idle and not self._stopping:
                self._wake.wait()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _die(self, reason: str) -> None:
        with self._wake:
            self._death = reason
        self._run_commands()
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            request.sink(EngineDead(reason))
        self._outbox.flush()
