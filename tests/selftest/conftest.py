from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.models import TRAINED_TINY
from dsv4_serve.selftest.outcome import Outcome
from dsv4_serve.selftest.run import selftest

Run = Callable[..., dict[str, Outcome]]


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that nobody trained."""
    directory = tmp_path_factory.mktemp("random") / "model"
    write_tiny_model(directory, seed=1)
    return directory


@pytest.fixture(scope="session")
def run(random_model: Path) -> Run:
    """Runs the named probes on the committed model, or on one that nobody trained; outcomes by name."""

    def made(names: Sequence[str], trained: bool = True, **options: object) -> dict[str, Outcome]:
        chosen: dict[str, object] = {
            "model_path": TRAINED_TINY if trained else random_model,
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
