"""The engine: one thread that steps the scheduler, and the asynchronous face that the HTTP side uses."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import torch

from dsv4_kernels import backends

from .config import ModelConfig, load_model_config
from .exposition import StateCollector, exposition
from .linear import check_row_invariance
from .model import Model
from .options import EngineOptions, OptionError
from .pools import CachePools
from .radix import RadixCache
from .request import EngineDead, EngineError, SamplingParams, TokenOutput
from .running import Request
from .sampler import RequestSampler
from .scheduler import Scheduler
from .statistics import EngineStatistics
from .weights import load_weights

log = logging.getLogger(__name__)

Command = Callable[[], None]
Result = TypeVar("Result")


class AsyncEngine:
    """A loaded model that serves requests. Build it with `create`, then `start` it inside an event loop's program."""

    def __init__(self, config: ModelConfig, options: EngineOptions, model: Model, phases: dict[str, float]) -> None:
        self.model_config, self.options, self.startup_phases = config, options, phases
        self.context_length = context_length(config, options)
        self.statistics = EngineStatistics()
        self.cache = RadixCache(model.pools, options.prefix_cache)
        self.scheduler = Scheduler(model, self.cache, options, self.statistics)
        self.statistics.registry.register(StateCollector(model.pools, self.cache, self.scheduler))
        self.model, self._pools = model, model.pools
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._death: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @classmethod
    def create(cls, options: EngineOptions) -> AsyncEngine:
        """Load the model and allocate the pools (blocking); seconds by phase are in `startup_phases`.

        Raises ConfigError, WeightError, OptionError or RowInvarianceError with a message for the operator.
        """
        phases: dict[str, float] = {}
        with _Phase(phases, "config"):
            config = load_model_config(options.model_path)
            length = context_length(config, options)
        with _Phase(phases, "weights"):
            torch.set_num_threads(options.threads or 1)
            weights = load_weights(options.model_path, config)
            check_row_invariance({(w.shape[0], w.shape[1]) for w in weights.values() if w.dim() == 2})
        with _Phase(phases, "kernels"):
            backends.activate(torch.device("cpu"))
        with _Phase(phases, "pools"):
            model = Model(weights, config, options, CachePools(config, options, length), length)
        return cls(config, options, model, phases)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the engine thread; requests that still run get EngineDead."""
        self._stopping = True
        self._notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

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
            lambda item: _call(loop, queue, item),
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

    def server_info(self) -> dict[str, object]:
        """Effective configuration, capacities by region and the state of the queues."""
        used = self._pools.used_tokens()
        return {
            "engine": "embedded",
            "model": self.options.served_model_name,
            "model_path": str(self.options.model_path),
            "context_length": self.context_length,
            "indexer_dtype": self.options.indexer_dtype,
            "kv_dtype": self.options.kv_dtype,
            "hadamard": self.options.hadamard,
            "page_tokens": self._pools.page_tokens,
            "index_bytes_per_compressed_token": self._pools.index_bytes_per_token(),
            "max_total_tokens": self._pools.capacity_tokens,
            "max_running_requests": self.options.max_running_requests,
            "max_queued_requests": self.options.max_queued_requests,
            "chunk_tokens": self.options.chunk_tokens,
            "threads": self.options.threads or 1,
            "prefix_cache": self.options.prefix_cache,
            "backends": [vars_of(selection) for selection in backends.selections(torch.device("cpu"))],
            "regions": {
                r.name: {"tokens": r.tokens, "bytes": r.bytes, "used_tokens": used[r.name]}
                for r in self._pools.regions()
            },
            "free_pages": self._pools.pages.free,
            "running": len(self.scheduler.running),
            "queued": len(self.scheduler.waiting),
            "startup_phases": self.startup_phases,
        }

    def metrics_text(self) -> str:
        """Prometheus exposition of the engine's families."""
        return exposition(self.statistics)

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
            while not self._stopping:
                self._wait_for_work()
                self._run_commands()
                self.scheduler.step()
        except Exception as error:
            log.exception("the engine loop failed")
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


class _Phase:
    """Measures one phase of start-up."""

    def __init__(self, phases: dict[str, float], name: str) -> None:
        self._phases, self._name = phases, name

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._phases[self._name] = round(time.monotonic() - self._begin, 3)


def context_length(config: ModelConfig, options: EngineOptions) -> int:
    """Tokens of context that the engine serves. Raises OptionError when the model has fewer."""
    if options.context_length is None:
        return config.max_position_embeddings
    if options.context_length > config.max_position_embeddings:
        raise OptionError(
            f"context_length={options.context_length}: accepted is up to the model's {config.max_position_embeddings}"
        )
    return options.context_length


def vars_of(selection: object) -> dict[str, str]:
    """A backend selection as plain data."""
    return {name: str(getattr(selection, name)) for name in ("op", "requested", "selected", "reason")}


def _call(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Any], item: TokenOutput | EngineError) -> None:
    """Hand an item to a queue of another thread's loop; a loop that is closed has no reader any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, item)
