"""Continuous batching under pressure: retraction, cancels, a full queue, and no page left behind."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.request import EngineDead, EngineError, PromptTooLong, QueueFull, SamplingParams
from embedded.engine_harness import GREEDY, complete, run, running_engine, tokens
from embedded.harness import prompt


def test_retracted_requests_finish_with_the_tokens_they_would_have_had(each_tiny_dir: Path) -> None:
    """Four requests grow into eight pages and get five: some are sent back to the queue while they decode."""

    async def scenario() -> None:
        asks = [prompt(250, seed=s) for s in range(4)]
        params = [SamplingParams(max_tokens=16, temperature=0.8, seed=s) for s in range(4)]
        async with running_engine(each_tiny_dir) as engine:
            alone = [tokens(await complete(engine, a, p)) for a, p in zip(asks, params, strict=True)]
        async with running_engine(each_tiny_dir, max_total_tokens=1280) as engine:
            together = await asyncio.gather(*(complete(engine, a, p) for a, p in zip(asks, params, strict=True)))
            text = engine.metrics_text()
        assert [tokens(t) for t in together] == alone
        retracted = next(line for line in text.splitlines() if line.startswith("dsv4_retracted_requests_total"))
        assert float(retracted.split()[1]) >= 1

    run(scenario())


def test_seeds_make_tokens_independent_of_neighbours(each_tiny_dir: Path) -> None:
    async def scenario() -> None:
        params = SamplingParams(max_tokens=12, temperature=1.0, top_p=0.9, top_k=50, seed=7)
        async with running_engine(each_tiny_dir, prefix_cache=False) as engine:
            alone = tokens(await complete(engine, prompt(90), params))
            crowd = [complete(engine, prompt(40 + 7 * s, seed=s), SamplingParams(max_tokens=20)) for s in range(6)]
            in_crowd, *_ = await asyncio.gather(complete(engine, prompt(90), params), *crowd)
            assert tokens(in_crowd) == alone
            other = tokens(await complete(engine, prompt(90), SamplingParams(max_tokens=12, seed=8)))
            assert other != alone

    run(scenario())


@pytest.mark.slow
def test_two_hundred_requests_with_random_cancels_leave_nothing_behind(tiny_dir: Path) -> None:
    """32 at a time, a third of them cancelled somewhere; every other one completes, and all pages come back."""
    dice = random.Random(0)
    finished = cancelled = 0

    async def one(engine: AsyncEngine, number: int, gate: asyncio.Semaphore) -> None:
        nonlocal finished, cancelled
        length, wanted = dice.randrange(1, 400), dice.randrange(1, 24)
        stop_after = dice.randrange(wanted) if dice.random() < 0.33 else None
        async with gate:
            params = SamplingParams(max_tokens=wanted, seed=number)
            stream = engine.generate(f"r{number}", prompt(length, seed=number % 20), params)
            reasons = []
            async for output in stream:
                reasons.append(output.finish_reason)
                if len(reasons) - 1 == stop_after:
                    await stream.aclose()
                    cancelled += 1
                    return
            assert reasons == [None] * (wanted - 1) + ["length"]
            finished += 1

    async def scenario() -> None:
        async with running_engine(tiny_dir, max_running_requests=16, max_total_tokens=4096) as engine:
            gate, tasks_before = asyncio.Semaphore(32), len(asyncio.all_tasks())
            await asyncio.gather(*(one(engine, n, gate) for n in range(200)))
            await engine.check_integrity()
            assert engine.server_info()["running"] == engine.server_info()["queued"] == 0
            assert await engine.forget_cache() > 0
            assert engine.server_info()["free_pages"] == 16
            assert len(asyncio.all_tasks()) == tasks_before

    run(scenario())
    assert finished + cancelled == 200
    assert cancelled > 30


def test_cancelling_a_task_frees_its_request(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir, prefix_cache=False) as engine:
            task = asyncio.create_task(complete(engine, prompt(300), SamplingParams(max_tokens=3000)))
            while engine.server_info()["running"] == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await complete(engine, prompt(8))
            assert engine.server_info()["free_pages"] == 32

    run(scenario())


def test_full_queue_is_refused_and_nothing_queued_is_lost(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir, max_running_requests=1, max_queued_requests=2) as engine:
            results = await asyncio.gather(
                *(complete(engine, prompt(64, seed=s)) for s in range(12)), return_exceptions=True
            )
            refused = [r for r in results if isinstance(r, QueueFull)]
            served = [r for r in results if isinstance(r, list)]
            assert len(refused) + len(served) == 12
            assert len(served) >= 3
            assert refused
            assert "wait already" in str(refused[0])

    run(scenario())


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "says"),
    [(4000, 97, "the context is 4096 tokens"), (900, 200, "the cache holds 1024 tokens")],
)
def test_what_can_never_run_is_refused_with_its_numbers(
    each_tiny_dir: Path, prompt_tokens: int, max_tokens: int, says: str
) -> None:
    async def scenario() -> None:
        async with running_engine(each_tiny_dir, max_total_tokens=1024) as engine:
            with pytest.raises(PromptTooLong, match=says) as error:
                await complete(engine, prompt(prompt_tokens), SamplingParams(max_tokens=max_tokens))
            assert f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}" in str(error.value)

    run(scenario())


def test_a_failing_step_ends_the_engine_and_tells_everyone(tiny_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir) as engine:

            def broken(*_: object) -> None:
                raise ZeroDivisionError("made to fail")

            engine.model.forward = broken  # type: ignore[method-assign, assignment]
            with pytest.raises(EngineDead, match="ZeroDivisionError: made to fail"):
                await complete(engine, prompt(20))
            assert engine.dead() == "the engine loop failed: ZeroDivisionError: made to fail"
            with pytest.raises(EngineDead):
                await complete(engine, prompt(20))
            raise AssertionError("left on purpose: integrity cannot be asked of a dead engine")

    with pytest.raises(AssertionError, match="left on purpose"):
        run(scenario())
    assert "the engine loop failed" in caplog.text


def test_non_finite_logits_fail_the_request_not_the_engine(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir, prefix_cache=False) as engine:
            forward = engine.model.forward
            engine.model.forward = lambda batch: forward(batch) * float("nan")  # type: ignore[method-assign, assignment, misc]
            with pytest.raises(EngineError, match="non-finite logits"):
                await complete(engine, prompt(20))
            engine.model.forward = forward  # type: ignore[method-assign]
            assert len(await complete(engine, prompt(20), GREEDY)) == 8

    run(scenario())
