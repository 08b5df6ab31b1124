"""A prompt gives the same logits and tokens cold, from the cache, and after its pages were evicted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from dsv4_serve.engines.embedded.request import SamplingParams
from embedded.engine_harness import GREEDY, LogitsTap, complete, run, running_engine, tokens
from embedded.harness import prompt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("indexer_dtype", "length", "cached"), [("fp4", 3000, 2816), ("fp8", 900, 768), ("bf16", 900, 768)]
)
def test_cold_warm_and_evicted_are_bit_identical(tiny_dir: Path, indexer_dtype: str, length: int, cached: int) -> None:
    """The last page is never taken whole from the cache: one token is left to compute."""

    async def scenario() -> None:
        async with running_engine(tiny_dir, indexer_dtype=indexer_dtype, max_total_tokens=length + 1096) as engine:
            tap = LogitsTap(engine)
            ask = prompt(length, seed=11)
            cold = await complete(engine, ask)
            cold_logits = tap.take()[-8:]
            warm = await complete(engine, ask)
            warm_logits = tap.take()[-8:]
            # Two other long prompts need every page: the first prompt's are evicted.
            for seed in (12, 13):
                await complete(engine, prompt(length + 500, seed=seed))
            tap.take()
            again = await complete(engine, ask)
            again_logits = tap.take()[-8:]
            assert [o[0].cached_tokens for o in (cold, warm, again)] == [0, cached, 0]
            assert tokens(cold) == tokens(warm) == tokens(again)
            assert torch.equal(cold_logits, warm_logits)
            assert torch.equal(cold_logits, again_logits)

    run(scenario())


def test_a_conversation_continues_from_generated_pages(each_tiny_dir: Path) -> None:
    """Pages that were filled while decoding serve the next turn, with the tokens of a cold run."""

    async def scenario() -> None:
        first = prompt(400, seed=3)
        longer = SamplingParams(max_tokens=140, temperature=0.0)
        async with running_engine(each_tiny_dir) as engine:
            turn = tokens(await complete(engine, first, longer))
            follow_up = first + turn + prompt(50, seed=4)
            warm = await complete(engine, follow_up)
        async with running_engine(each_tiny_dir) as engine:
            cold = await complete(engine, follow_up)
        assert [warm[0].cached_tokens, cold[0].cached_tokens] == [512, 0]
        assert tokens(warm) == tokens(cold)

    run(scenario())


def test_shared_prefix_of_concurrent_requests(each_tiny_dir: Path) -> None:
    async def scenario() -> None:
        prefix = prompt(600, seed=8)
        asks = [prefix + prompt(30, seed=s) for s in range(4)]
        async with running_engine(each_tiny_dir) as engine:
            alone = [tokens(await complete(engine, ask)) for ask in asks]
            cached = await complete(engine, asks[3])
            assert cached[0].cached_tokens == 512
        async with running_engine(each_tiny_dir) as engine:
            together = await asyncio.gather(*(complete(engine, ask) for ask in asks))
            assert [tokens(t) for t in together] == alone

    run(scenario())


def test_disjoint_prompts_hit_nothing_and_repeats_hit_exactly_their_pages(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir) as engine:
            await complete(engine, prompt(700, seed=1))
            other = await complete(engine, prompt(700, seed=2))
            assert other[0].cached_tokens == 0
            for length, cached in ((700, 512), (513, 512), (512, 256), (256, 0)):
                outputs = await complete(engine, prompt(700, seed=1)[:length])
                assert outputs[0].cached_tokens == cached
            text = engine.metrics_text()
            assert 'dsv4_cached_tokens_total{tier="gpu"} 1280.0' in text
            assert "dsv4_prompt_tokens_total 3381.0" in text

    run(scenario())


def test_without_prefix_cache_nothing_is_kept(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir, prefix_cache=False) as engine:
            first = await complete(engine, prompt(600))
            second = await complete(engine, prompt(600))
            assert second[0].cached_tokens == 0
            assert tokens(first) == tokens(second)
            assert engine.server_info()["free_pages"] == 32

    run(scenario())


def test_few_tails_make_hits_shorter_not_wrong(each_tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(each_tiny_dir, cached_tails=2) as engine:
            ask = prompt(1600, seed=6)
            cold = await complete(engine, ask, GREEDY)
            warm = await complete(engine, ask, GREEDY)
            assert warm[0].cached_tokens in (512, 1280, 1536)
            assert tokens(cold) == tokens(warm)

    run(scenario())
