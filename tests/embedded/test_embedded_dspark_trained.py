"""The committed models with their trained drafters: the same answers, in a third of the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_serve.engines.embedded.request import SamplingParams
from embedded.dspark_harness import recording_engine
from embedded.engine_harness import complete, run, running_engine, tokens
from embedded.tier_harness import sample

MODELS = Path(__file__).parents[2] / "configs" / "models"
BOS, EOS, USER, ASSISTANT, THINK_END, FIRST_BYTE = 0, 1, 3, 4, 6, 18
LIMIT_BYTES = 16 << 20


@pytest.fixture(params=["tiny-v4", "tiny-v41"])
def directory(request: pytest.FixtureRequest) -> Path:
    return MODELS / str(request.param)


def question(text: str) -> list[int]:
    """A chat's first request, as it is rendered without thinking."""
    return [BOS, USER, *(FIRST_BYTE + byte for byte in text.encode()), ASSISTANT, THINK_END]


def test_a_trained_drafter_is_right_about_stories(directory: Path) -> None:
    async def scenario() -> None:
        ask = question("Tell me a story about a fox.")
        params = SamplingParams(61, temperature=0.0, stop_token_ids=frozenset({EOS}))
        async with running_engine(directory) as engine:
            cold = tokens(await complete(engine, ask, params))
        async with recording_engine(directory) as (engine, _):
            assert tokens(await complete(engine, ask, params)) == cold
            name = "dsv4_acceptance_length"
            assert sample(engine, f"{name}_sum") / sample(engine, f"{name}_count") > 3

    run(scenario())


def test_the_model_directory_stays_small(directory: Path) -> None:
    assert sum(path.stat().st_size for path in directory.iterdir()) <= LIMIT_BYTES
