"""Cold, three warm replays, a flood that evicts everything, a replay: byte-identical at temperature 0."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dsv4_serve.engines.embedded.config import PAGE_TOKENS
from dsv4_serve.engines.embedded.request import TokenOutput
from dsv4_serve.selftest.outcome import ProbeFailed
from dsv4_serve.selftest.subject import Subject

WARM_REPLAYS = 3
ANSWER_TOKENS = 6
PROMPT_TOKENS = {1: 3 * PAGE_TOKENS + 40, 16: PAGE_TOKENS + 12}
"""By concurrency: alone a prompt long enough for the index to choose, sixteen at once just over a page."""
FLOOD_TOKENS = 4 * PAGE_TOKENS
Answer = list[tuple[int, float | None, tuple[tuple[int, float], ...]]]


async def cache_battery(subject: Subject, concurrency: int) -> str:
    """Raises ProbeFailed for the first answer that differs from its cold one, by tokens or log-probabilities."""
    length = PROMPT_TOKENS[concurrency]
    prompts = [random_prompt(length, 1000 * concurrency + n) for n in range(concurrency)]
    await subject.engine.forget_cache()
    cold = await subject.at_once(prompts, ANSWER_TOKENS)
    _cached("cold", cold, (0,))
    whole = (length - 1) // PAGE_TOKENS * PAGE_TOKENS
    # Sixteen prompts may be more than the pool: then some of them were evicted by the others.
    accepted = (whole,) if concurrency == 1 else (0, whole)
    for replay in range(1, WARM_REPLAYS + 1):
        warm = await subject.at_once(prompts, ANSWER_TOKENS)
        _cached(f"warm replay {replay}", warm, accepted)
        require_same(f"warm replay {replay}", cold, warm)
    await _flood(subject)
    again = await subject.at_once(prompts, ANSWER_TOKENS)
    _cached("replay after the flood", again, (0,))
    require_same("replay after the flood", cold, again)
    await subject.engine.check_integrity()
    return f"{concurrency} at once, {length} tokens each: cold, {WARM_REPLAYS} warm, after a flood"


async def _flood(subject: Subject) -> None:
    """Other prompts over the whole pool, so that nothing of before is left."""
    for number in range(subject.engine.model.pools.capacity_tokens // FLOOD_TOKENS + 1):
        await subject.complete(random_prompt(FLOOD_TOKENS, -1 - number), 1)


def random_prompt(tokens: int, seed: int) -> list[int]:
    """Random byte tokens; the first differs in no way from a text's."""
    dice = random.Random(seed)
    return [dice.randrange(18, 274) for _ in range(tokens)]


def _cached(run: str, answers: Sequence[Sequence[TokenOutput]], accepted: tuple[int, ...]) -> None:
    for number, answer in enumerate(answers):
        found = answer[0].cached_tokens
        if found not in accepted:
            told = " or ".join(map(str, accepted))
            raise ProbeFailed(f"{run}: prompt {number} took {found} tokens from the cache; expected {told}")


def require_same(run: str, cold: Sequence[Sequence[TokenOutput]], found: Sequence[Sequence[TokenOutput]]) -> None:
    """ProbeFailed for the first token or log-probability that differs from the cold answers'."""
    for number, (wanted, got) in enumerate(zip(cold, found, strict=True)):
        for place, (a, b) in enumerate(zip(_answer(wanted), _answer(got), strict=False)):
            if a != b:
                raise ProbeFailed(f"{run}: prompt {number}, token {place}: cold {a}, now {b}")
        if len(wanted) != len(got):
            raise ProbeFailed(f"{run}: prompt {number}: {len(wanted)} tokens cold, now {len(got)}")


def _answer(outputs: Sequence[TokenOutput]) -> Answer:
    return [(o.token_id, o.logprob, o.top_logprobs) for o in outputs]
