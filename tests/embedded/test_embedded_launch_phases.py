"""Launches are counted by the phase of the pass that made them, whichever operation and model it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dsv4_kernels import counters
from dsv4_serve.engines.embedded.request import SamplingParams
from embedded.engine_harness import complete, run, running_engine
from embedded.harness import prompt

Launches = Counter[tuple[str, str]]


def launches(directory: Path, tokens: int, **options: bool | str) -> Launches:
    """Launches by (operation, phase) while a prompt of two pages and a bit is asked for so many tokens."""

    async def scenario() -> Launches:
        async with running_engine(directory, **options) as engine:
            before = counted()
            await complete(engine, prompt(530, seed=3), SamplingParams(tokens, 0.0, seed=0))
            return counted() - before

    return run(scenario())


def counted() -> Launches:
    found: Launches = Counter()
    for (op, phase, _), count in counters.snapshot().launches.items():
        found[op, phase] += count
    return found


@pytest.mark.parametrize("family", ["v4", pytest.param("v41", marks=pytest.mark.slow)])
def test_a_prompt_is_counted_as_prefill_and_each_token_after_it_as_decoding(
    family: str, request: pytest.FixtureRequest
) -> None:
    """Rows, entries and experts of prompts were counted as decoding: few layers know what pass they are part of."""
    directory: Path = request.getfixturevalue("tiny_dir" if family == "v4" else "tiny_v41_dir")
    of_the_prompt = launches(directory, 1)
    assert {phase for _, phase in of_the_prompt} == {"prefill"}
    assert of_the_prompt["write_index_keys", "prefill"] > 0
    with_four_more = launches(directory, 5)
    assert {key: n for key, n in with_four_more.items() if key[1] == "prefill"} == dict(of_the_prompt)
    in_one_step = {op: n // 4 for (op, phase), n in with_four_more.items() if phase == "decode"}
    if family == "v41":
        assert in_one_step["norm_rope_store_kv"] == in_one_step["router_gate"] == 6
    assert {op for op, _ in of_the_prompt} - set(in_one_step) <= {"store_kv"}
