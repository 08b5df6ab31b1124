from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.models import TRAINED_TINY
from dsv4_serve.selftest.outcome import Outcome
from dsv4_serve.selftest.run import selftest

Run = Callable[..., dict[str, Outcome]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs the named probes on the committed model; outcomes by name."""

    def made(names: Sequence[str], trained: bool = True, **options: object) -> dict[str, Outcome]:
        chosen: dict[str, object] = {
            "model_path": TRAINED_TINY,
            "served_model_name": "tiny",
            "max_total_tokens": 2048,
            "max_running_requests": 16,
            "context_length": 2048,
        }

        async def every() -> dict[str, Outcome]:
            made_of = EngineOptions(**{**chosen, **options})  # type: ignore[arg-type]
            return {outcome.probe: outcome async for outcome in selftest(made_of, trained, names)}

        return asyncio.run(every())

    return made
