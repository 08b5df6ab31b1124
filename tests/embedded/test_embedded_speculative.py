"""Speculative decoding: the tokens and logits of decoding one at a time, whatever is drafted, and its length."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv4_serve.engines.embedded.batch import make_batch
from dsv4_serve.engines.embedded.draft import DraftSequence, DraftSource, PromptLookup
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.geometry import MAX_DRAFT_TOKENS
from dsv4_serve.engines.embedded.options import EngineOptions, OptionError
from dsv4_serve.engines.embedded.request import SamplingParams
from embedded import dspark_harness
from embedded.engine_harness import complete, run, running_engine, tokens
from embedded.harness import Run, build_any, prompt
from embedded.tier_harness import exactly, sample

FULL = MAX_DRAFT_TOKENS + 1
PARAMS = SamplingParams(max_tokens=33, temperature=0.0, logprobs=4)


class Scripted(DraftSource):
    """Drafts by a function of the tokens so far and the room."""

    name = "scripted"
    longest = MAX_DRAFT_TOKENS

    def __init__(self, guess: Callable[[list[int], int], list[int]]) -> None:
        self._guess = guess

    def propose(self, sequences: Sequence[DraftSequence]) -> list[list[int]]:
        return [self._guess(list(sequence.tokens), sequence.room) for sequence in sequences]


def oracle(texts: Sequence[list[int]], wrong_at: int | None = None) -> Scripted:
    """Knows how each text goes on; with `wrong_at` it is mistaken at that place of every draft."""

    def guess(so_far: list[int], room: int) -> list[int]:
        (text,) = (text for text in texts if text[: len(so_far)] == so_far)
        draft = text[len(so_far) : len(so_far) + room]
        if wrong_at is not None and wrong_at < len(draft):
            draft[wrong_at] = (draft[wrong_at] - 17) % 256 + 18
        return draft

    return Scripted(guess)


def dice_draft(seed: int) -> Scripted:
    """Drafts anything, of any length."""
    dice = random.Random(seed)
    return Scripted(lambda so_far, room: [dice.randrange(18, 274) for _ in range(dice.randrange(room + 1))])


@asynccontextmanager
async def drafting_engine(directory: Path, draft: DraftSource | None, **options: Any) -> AsyncIterator[AsyncEngine]:
    """As `running_engine`, with a source of drafts."""
    chosen = {"context_length": 4096, "max_total_tokens": 8192, "max_running_requests": 8, **options}
    engine = AsyncEngine.create(EngineOptions(model_path=directory, served_model_name="tiny", **chosen), draft)
    engine.start()
    try:
        yield engine
        await engine.check_integrity()
    finally:
        await engine.stop()


def lengths(engine: AsyncEngine) -> list[int]:
    return dspark_harness.lengths(engine, FULL)


async def plain(directory: Path, ask: list[int], params: SamplingParams = PARAMS) -> Any:
    async with running_engine(directory, prefix_cache=False) as engine:
        return await complete(engine, ask, params)


@pytest.mark.parametrize("length", [60, 250])
def test_a_right_draft_is_taken_whole(each_tiny_dir: Path, length: int) -> None:
    """With 250 tokens of prompt the first verified rows lie on both sides of a page's end."""

    async def scenario() -> None:
        ask = prompt(length, seed=1)
        cold = await plain(each_tiny_dir, ask)
        async with drafting_engine(each_tiny_dir, oracle([ask + tokens(cold)])) as engine:
            found = await complete(engine, ask, PARAMS)
            assert exactly(found) == exactly(cold)
            # One token comes from the prompt's last row, the other 32 in four steps of eight.
            assert lengths(engine) == [0] * MAX_DRAFT_TOKENS + [4]
            assert sample(engine, "dsv4_drafted_tokens_total") == sample(engine, "dsv4_accepted_tokens_total") == 28

    run(scenario())


@pytest.mark.parametrize("wrong_at", range(MAX_DRAFT_TOKENS))
def test_a_draft_is_cut_where_it_goes_wrong(tiny_dir: Path, wrong_at: int) -> None:
    async def scenario() -> None:
        ask, kept = prompt(250, seed=2), wrong_at + 1
        cold = await plain(tiny_dir, ask)
        async with drafting_engine(tiny_dir, oracle([ask + tokens(cold)], wrong_at)) as engine:
            found = await complete(engine, ask, PARAMS)
            assert exactly(found) == exactly(cold)
            steps = lengths(engine)
            # Near the limit of tokens drafts are too short to hold the mistake.
            assert steps[kept - 1] == max(steps)
            assert sum(steps[kept:]) == 0

    run(scenario())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_whatever_is_drafted_tokens_and_logits_are_those_of_one_at_a_time(
    each_tiny_dir: Path, temperature: float
) -> None:
    """Six requests at once, long enough for the index to choose, over page ends; half of the drafts are right."""

    async def scenario() -> None:
        asks = [prompt(length, seed=length) for length in (30, 250, 380, 505, 509, 700)]
        params = [SamplingParams(24, temperature, top_p=0.95, seed=n, logprobs=3) for n in range(len(asks))]
        async with running_engine(each_tiny_dir) as engine:
            cold = await asyncio.gather(*(complete(engine, a, p) for a, p in zip(asks, params, strict=True)))
        right, wrong = oracle([a + tokens(c) for a, c in zip(asks, cold, strict=True)]), dice_draft(3)
        dice = random.Random(4)

        def mixed(so_far: list[int], room: int) -> list[int]:
            chosen = right if dice.random() < 0.5 else wrong
            return chosen.propose([DraftSequence(1, so_far, room)])[0]

        async with drafting_engine(each_tiny_dir, Scripted(mixed)) as engine:
            found = await asyncio.gather(*(complete(engine, a, p) for a, p in zip(asks, params, strict=True)))
            assert sample(engine, "dsv4_accepted_tokens_total") > 0
            for op in ("rowgroup_logits", "write_index_keys"):
                assert sample(engine, "dsv4_indexer_launches_total", op=op, phase="verify") > 0
        assert [exactly(f) for f in found] == [exactly(c) for c in cold]

    run(scenario())


@pytest.mark.parametrize("length", [505, 761])
def test_pages_and_tails_are_those_of_one_at_a_time(each_tiny_dir: Path, length: int) -> None:
    """Every byte that a later request may read, after rejected drafts on both sides of a page's end."""
    ask, params = prompt(length, seed=5), SamplingParams(max_tokens=24, temperature=0.0)

    async def pages(draft: DraftSource | None) -> list[dict[str, torch.Tensor]]:
        async with drafting_engine(each_tiny_dir, draft) as engine:
            text = ask + tokens(await complete(engine, ask, params))
            if draft is not None:
                assert sample(engine, "dsv4_drafted_tokens_total") > 24
            return [engine.tiers.copier.save(node.page, node.tail) for node in engine.cache.lookup(text)]

    one_at_a_time, verified = run(pages(None)), run(pages(dice_draft(6)))
    assert len(one_at_a_time) == len(verified) == length // 256 + 1
    for number, (wanted, found) in enumerate(zip(one_at_a_time, verified, strict=True)):
        assert list(wanted) == list(found)
        for region in wanted:
            assert torch.equal(wanted[region], found[region]), (number, region)


@pytest.mark.parametrize("start", [5, 250, 380, 507])
def test_rejected_rows_leave_no_trace_in_the_next_logits(each_tiny_dir: Path, start: int) -> None:
    """At the model: blocks of eight rows, all but a few of them wrong, then go on from the last right one."""
    text = prompt(start + 24, seed=7)
    model = build_any(each_tiny_dir)
    plain_run, drafted = Run(model, text), Run(model, text)
    for each in (plain_run, drafted):
        each.prefill(256, stop=start)
    wanted = plain_run.decode(start)
    at, kept = start, 0
    while at < len(text):
        kept = kept % FULL + 1
        rows = [drafted.row(min(at + n, len(text) - 1)) for n in range(FULL)]
        count = min(kept, len(text) - at)
        block = [
            replace(row, token_id=row.token_id if n < count else 18 + n, position=at + n)
            for n, row in enumerate(rows)
            if (at + n) // 256 < len(row.pages)
        ]
        logits = model.forward(make_batch(block, []))
        assert torch.equal(logits[:count], wanted[at - start : at - start + count]), at
        at += count


def test_an_end_inside_a_draft_ends_the_request(tiny_dir: Path) -> None:
    async def scenario() -> None:
        ask = prompt(90, seed=8)
        cold = await plain(tiny_dir, ask)
        text, stop = ask + tokens(cold), tokens(cold)[12]
        first = tokens(cold).index(stop)
        params = SamplingParams(max_tokens=33, temperature=0.0, stop_token_ids=frozenset({stop}))
        async with drafting_engine(tiny_dir, oracle([text])) as engine:
            found = await complete(engine, ask, params)
            assert tokens(found) == tokens(cold)[: first + 1]
            assert [output.finish_reason for output in found] == [None] * first + ["stop"]
            assert engine.server_info()["running"] == 0
            assert sample(engine, "dsv4_generated_tokens_total") == first + 1

    run(scenario())


def test_retracted_requests_keep_their_tokens_with_drafts(each_tiny_dir: Path) -> None:
    async def scenario() -> None:
        asks = [prompt(250, seed=s) for s in range(4)]
        params = [SamplingParams(max_tokens=16, temperature=0.8, seed=s) for s in range(4)]
        async with running_engine(each_tiny_dir) as engine:
            alone = [tokens(await complete(engine, a, p)) for a, p in zip(asks, params, strict=True)]
        async with drafting_engine(each_tiny_dir, dice_draft(9), max_total_tokens=1280) as engine:
            together = await asyncio.gather(*(complete(engine, a, p) for a, p in zip(asks, params, strict=True)))
            assert sample(engine, "dsv4_retracted_requests_total") >= 1
        assert [tokens(t) for t in together] == alone

    run(scenario())


def test_a_row_that_is_not_needed_may_be_anything(tiny_dir: Path) -> None:
    """Behind a wrong token the model computes nonsense: even a NaN there is no fault of the request."""

    async def scenario() -> None:
        ask = prompt(60, seed=10)
        cold = await plain(tiny_dir, ask)
        async with drafting_engine(tiny_dir, oracle([ask + tokens(cold)], wrong_at=1)) as engine:
            forward = engine.model.forward

            def spoiled(batch: Any) -> torch.Tensor:
                logits = forward(batch).clone()
                if batch.drafted:
                    logits[2:] = float("nan")
                return logits

            engine.model.forward = spoiled  # type: ignore[method-assign, assignment]
            assert tokens(await complete(engine, ask, PARAMS)) == tokens(cold)
            assert sample(engine, "dsv4_nonfinite_logits_total") == 0

    run(scenario())


def test_prompt_lookup_takes_what_followed_last_time() -> None:
    source = PromptLookup()

    def draft(tokens: list[int], room: int = 5) -> list[int]:
        return source.propose([DraftSequence(1, tokens, room)])[0]

    assert draft([1, 2, 3, 9, 9, 2, 3, 8, 7, 2, 3]) == [8, 7, 2, 3]
    assert draft([1, 2, 3, 4, 5, 6, 0, 2, 3, 4, 9, 1, 2, 3, 4]) == [5, 6, 0, 2, 3], "the longest ending wins"
    assert draft([1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4], room=2) == [5, 6]
    assert draft([7, 7, 7, 7]) == [7], "an ending may overlap with itself"
    assert draft([1, 2, 3, 4]) == []
    assert draft([5]) == []
    # 256 is byte 1 of one token and 1 is byte 0 of another: a find between tokens is none.
    assert draft([256, 0, 5, 1, 0]) == []


def test_the_option_looks_up_and_says_so(each_tiny_dir: Path) -> None:
    async def scenario() -> None:
        cycle = prompt(40, seed=11)
        # Random weights repeat nothing of themselves: the answer is forced to go on as the prompt did.
        params = SamplingParams(max_tokens=33, temperature=0.0, logprobs=4, script=tuple(cycle[:33]))
        cold = await plain(each_tiny_dir, cycle * 2, params)
        async with running_engine(each_tiny_dir, speculative="ngram", draft_tokens=3) as engine:
            assert exactly(await complete(engine, cycle * 2, params)) == exactly(cold)
            assert lengths(engine)[:5] == [0, 0, 0, 8, 0]
            assert (engine.server_info()["speculative"], engine.server_info()["draft_tokens"]) == ("ngram", 3)
            assert lengths(engine)[4:] == [0] * (FULL - 4)
        async with running_engine(each_tiny_dir) as engine:
            assert "dsv4_acceptance_length" not in engine.metrics_text()
            assert (engine.server_info()["speculative"], engine.server_info()["draft_tokens"]) == ("off", 0)

    run(scenario())


@pytest.mark.parametrize(
    ("option", "value", "accepted"), [("speculative", "eagle", "off, ngram or dspark"), ("draft_tokens", 8, "1 to 7")]
)
def test_what_it_cannot_do_is_refused(option: str, value: Any, accepted: str) -> None:
    with pytest.raises(OptionError, match=f"{option}={value!r}: accepted is {accepted}"):
        EngineOptions(Path("m"), "m", **{option: value})
