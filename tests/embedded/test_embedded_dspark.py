"""DSpark in the engine: tokens and logits without drafts, whatever is drafted, and drafts as long as they are right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.embedded.dspark.tiny import write_tiny_drafter
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.geometry import WINDOW
from dsv4_serve.engines.embedded.request import SamplingParams, TokenOutput
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from embedded.dspark_harness import BLOCK, FULL, broken_chain, chain, lengths, recording_engine, teach_chain
from embedded.engine_harness import complete, run, running_engine, tokens
from embedded.harness import prompt
from embedded.tier_harness import cached_by_tier, exactly, sample

STEPS = 4
SCRIPTED = 1 + STEPS * FULL


@pytest.fixture(scope="module", params=["v4", "v41"])
def random_dir(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A model with a random drafter, which is hardly ever right."""
    directory = tmp_path_factory.mktemp("drafter")
    write_tiny_model(directory, family=request.param)
    write_tiny_drafter(directory)
    return directory


@pytest.fixture(scope="module", params=["v4", "v41"])
def chain_dir(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A model with a drafter that knows the chain."""
    directory = tmp_path_factory.mktemp("chain")
    write_tiny_model(directory, family=request.param)
    write_tiny_drafter(directory)
    teach_chain(directory)
    return directory


async def answers(
    engine: AsyncEngine, asks: list[list[int]], params: list[SamplingParams]
) -> list[list[tuple[Any, ...]]]:
    """What each prompt gives, all at once, with the logits as far as the answers show them."""
    found = await asyncio.gather(*(complete(engine, a, p) for a, p in zip(asks, params, strict=True)))
    return [exactly(outputs) for outputs in found]


async def plain(directory: Path, asks: list[list[int]], params: list[SamplingParams]) -> list[list[tuple[Any, ...]]]:
    async with running_engine(directory) as engine:
        return await answers(engine, asks, params)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_and_logits_are_those_without_drafts(random_dir: Path, temperature: float) -> None:
    """Requests that have no room for a draft among others; the index chooses, and rows lie on both sides of pages."""

    async def scenario() -> None:
        asks = [prompt(length, seed=length) for length in (30, 250, 20, 300, 10)]
        rooms = (6, 8, 1, 8, 2)
        params = [SamplingParams(m, temperature, 0.95, seed=n, logprobs=3) for n, m in enumerate(rooms)]
        async with recording_engine(random_dir) as (engine, _):
            assert await answers(engine, asks, params) == await plain(random_dir, asks, params)
            assert sample(engine, "dsv4_drafted_tokens_total", source="dspark") > 30
            assert sample(engine, "dsv4_indexer_launches_total", op="rowgroup_logits", phase="verify") > 0

    run(scenario())


@pytest.mark.parametrize("length", [60, 250])
def test_a_right_draft_is_taken_whole(chain_dir: Path, length: int) -> None:
    """With 250 tokens of prompt the first verified rows lie on both sides of a page's end."""

    async def scenario() -> None:
        ask = prompt(length, seed=1)
        params = SamplingParams(SCRIPTED, 0.0, logprobs=4, script=tuple(chain(40, SCRIPTED)))
        (cold,) = await plain(chain_dir, [ask], [params])
        async with recording_engine(chain_dir) as (engine, _):
            assert await answers(engine, [ask], [params]) == [cold]
            # One token comes from the prompt's last row, the others in steps of six.
            assert lengths(engine) == [0] * BLOCK + [STEPS]
            drafted, accepted = (f"dsv4_{name}_tokens_total" for name in ("drafted", "accepted"))
            assert (
                sample(engine, drafted, source="dspark") == sample(engine, accepted, source="dspark") == STEPS * BLOCK
            )

    run(scenario())


@pytest.mark.parametrize("right", range(BLOCK))
def test_a_draft_is_cut_where_it_goes_wrong(chain_dir: Path, right: int) -> None:
    async def scenario() -> None:
        ask, count = prompt(250, seed=2), 1 + 5 * (right + 1)
        text = [50, *broken_chain(50, right, count - 1)]
        params = SamplingParams(count, 0.0, logprobs=4, script=tuple(text))
        (cold,) = await plain(chain_dir, [ask], [params])
        async with recording_engine(chain_dir) as (engine, _):
            assert await answers(engine, [ask], [params]) == [cold]
            steps = lengths(engine)
            assert sum(steps[right + 1 :]) == 0
            # The last token of all may leave no room for a draft.
            assert steps[right] in (4, 5)
            assert sum(steps[:right]) == 0

    run(scenario())


def test_fewer_tokens_of_a_block_may_be_asked_for(chain_dir: Path) -> None:
    async def scenario() -> None:
        params = SamplingParams(13, 0.0, script=tuple(chain(40, 13)))
        async with recording_engine(chain_dir, draft_tokens=2) as (engine, _):
            assert [o[0] for o in (await answers(engine, [prompt(40)], [params]))[0]] == chain(40, 13)
            assert lengths(engine) == [0, 0, 4, 0, 0, 0]
            assert (engine.server_info()["speculative"], engine.server_info()["draft_tokens"]) == ("dspark", 2)

    run(scenario())


def test_retracted_requests_keep_their_tokens(random_dir: Path) -> None:
    async def scenario() -> None:
        asks = [prompt(250, seed=s) for s in range(4)]
        params = [SamplingParams(max_tokens=9, temperature=0.8, seed=s, logprobs=2) for s in range(4)]
        async with recording_engine(random_dir, max_total_tokens=1280) as (engine, _):
            assert await answers(engine, asks, params) == await plain(random_dir, asks, params)
            assert sample(engine, "dsv4_retracted_requests_total") >= 1

    run(scenario())


def test_the_end_of_the_context_ends_a_draft(chain_dir: Path) -> None:
    """The last block begins at the context's last positions and reaches beyond them."""

    async def scenario() -> None:
        ask, params = prompt(500, seed=3), [SamplingParams(12, 0.0, logprobs=3, script=tuple(chain(60, 12)))]
        async with running_engine(chain_dir, context_length=512) as engine:
            cold = await answers(engine, [ask], params)
        async with recording_engine(chain_dir, context_length=512) as (engine, recorder):
            assert await answers(engine, [ask], params) == cold
            # Six, then five of which the last has no token behind it.
            assert {text: len(draft) for text, draft in recorder.proposed.items()} == {501: 5, 507: 4}

    run(scenario())


def test_an_abort_between_verified_steps_leaves_others_alone(random_dir: Path) -> None:
    async def scenario() -> None:
        asks = [prompt(length, seed=length) for length in (20, 251, 60)]
        params = [SamplingParams(9, 0.7, seed=n, logprobs=2) for n in range(3)]
        async with recording_engine(random_dir) as (engine, _):
            doomed = engine.generate("doomed", prompt(253, seed=9), SamplingParams(400, 0.0))

            async def cut() -> list[TokenOutput]:
                taken = [await anext(doomed) for _ in range(5)]
                await doomed.aclose()
                return taken

            taken, found = await asyncio.gather(cut(), answers(engine, asks, params))
            assert len(taken) == 5
            assert found == await plain(random_dir, asks, params)

    run(scenario())


def test_drafts_do_not_depend_on_chunks_or_on_who_had_the_slot(random_dir: Path) -> None:
    """The drafter's context is the text's: the same however the prompt was cut, and whatever stood there before."""

    async def scenario() -> None:
        ask, params = prompt(200, seed=4), SamplingParams(max_tokens=5, temperature=0.0)
        proposed = []
        for chunk, before in ((512, 0), (64, 1)):
            async with recording_engine(random_dir, chunk_tokens=chunk, max_running_requests=1, prefix_cache=False) as (
                engine,
                recorder,
            ):
                for n in range(before):
                    await complete(engine, prompt(140 + n, seed=n), params)
                recorder.proposed.clear()
                await complete(engine, ask, params)
                proposed.append(recorder.proposed)
        assert len(proposed[0]) >= 2
        assert proposed[0] == proposed[1]

    run(scenario())


@pytest.mark.parametrize(("tier", "length"), [("gpu", 520), ("host", 520), ("gpu", 641)])
def test_behind_a_cached_prefix_drafts_begin_anew_and_tokens_do_not(random_dir: Path, tier: str, length: int) -> None:
    """Pages from the cache leave no hidden states: drafts are made from what was computed behind them, and are the
    cold ones only if that fills the window."""

    async def scenario() -> None:
        ask, params = prompt(length, seed=5), SamplingParams(max_tokens=4, temperature=0.0, logprobs=2)
        host = {"hicache": True, "host_bytes": 16 << 20} if tier == "host" else {}
        async with recording_engine(random_dir, **host) as (engine, recorder):
            cold = exactly(await complete(engine, ask, params))
            without_cache = dict(recorder.proposed)
            if tier == "host":
                await engine.forget_cache()
            recorder.proposed.clear()
            assert exactly(await complete(engine, ask, params)) == cold
            assert cached_by_tier(engine)[tier] == 512
            first = length + 1
            assert (recorder.proposed[first] == without_cache[first]) == (length >= 512 + WINDOW)
        assert [cold] == await plain(random_dir, [ask], [params])

    run(scenario())


def test_tokens_of_a_finished_request_are_told(chain_dir: Path) -> None:
    """A stop token inside a draft ends the request there."""

    async def scenario() -> None:
        text = chain(40, 13)
        params = SamplingParams(13, 0.0, script=tuple(text), stop_token_ids=frozenset({text[3]}))
        async with recording_engine(chain_dir) as (engine, _):
            found = await complete(engine, prompt(40), params)
            assert tokens(found) == text[:4]
            assert [output.finish_reason for output in found] == [None, None, None, "stop"]

    run(scenario())
