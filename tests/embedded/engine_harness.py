"""Runs the asynchronous engine in tests: build, generate, compare."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import SamplingParams, TokenOutput

Result = TypeVar("Result")

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@asynccontextmanager
async def running_engine(directory: Path, **options: Any) -> AsyncIterator[AsyncEngine]:
    """A started engine over a model directory; its integrity is checked at the end, with nothing running."""
    options = {"context_length": 4096, "max_total_tokens": 8192, "max_running_requests": 8, **options}
    engine = AsyncEngine.create(EngineOptions(model_path=directory, served_model_name="tiny", **options))
    engine.start()
    try:
        yield engine
        await engine.check_integrity()
    finally:
        await engine.stop()


async def complete(
    engine: AsyncEngine, prompt_ids: list[int], params: SamplingParams = GREEDY, request_id: str = "r"
) -> list[TokenOutput]:
    """All tokens of one completion."""
    return [output async for output in engine.generate(request_id, prompt_ids, params)]


def tokens(outputs: list[TokenOutput]) -> list[int]:
    """Their ids."""
    return [output.token_id for output in outputs]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end."""
    return asyncio.run(asyncio.wait_for(work, timeout=240))


class LogitsTap:
    """Records the logits from which an engine samples, by wrapping its model's forward pass."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.rows: list[torch.Tensor] = []
        forward = engine.model.forward

        def tapped(batch: Any, every_row: bool = False) -> torch.Tensor:
            logits = forward(batch, every_row)
            self.rows += list(logits.clone())
            return logits

        engine.model.forward = tapped  # type: ignore[method-assign]

    def take(self) -> torch.Tensor:
        """What was recorded since the last call, [n, vocab]."""
        rows, self.rows = self.rows, []
        return torch.stack(rows)
