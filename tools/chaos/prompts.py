"""Prompts that share prefixes, each with the answer that an engine without any cache gives to it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.engines.embedded.config import PAGE_TOKENS
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.engines.embedded.tokenizer import load_tokenizer

ANSWER_TOKENS = 8
FAMILIES = 24
SHARED = (0, 280, 540)
"""Lengths in bytes of what the prompts of a family have in common: nothing, one page, two pages. Together they are
more than the device holds, so that the tiers below have something to give."""
OWN = (10, 200)
AT_THE_END_OF_A_PAGE = 3
"""Every third prompt fills its last page up to two tokens: its answer needs another page, which a running request may
have to give up."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and its cold greedy answer of ANSWER_TOKENS tokens."""

    text: str
    answer: str


def prompts(model: Path, context_length: int, count: int, seed: int) -> list[Prompt]:
    """`count` prompts with their cold answers, each computed alone in an engine without a prefix cache."""
    dice = random.Random(seed)
    families = ["".join(dice.choices("abcdefgh ", k=SHARED[n % len(SHARED)])) for n in range(FAMILIES)]
    texts = [_text(families[number % FAMILIES], number, dice) for number in range(count)]
    return asyncio.run(_with_answers(model, context_length, texts))


def _text(shared: str, number: int, dice: random.Random) -> str:
    head = f"{shared}{number}:"
    own = dice.randrange(*OWN)
    if number % AT_THE_END_OF_A_PAGE == 0:
        # One token a byte, and one that begins the text.
        own = (-len(head) - 1) % PAGE_TOKENS - 2
    return head + "".join(dice.choices("mnopqrs", k=own))


async def _with_answers(model: Path, context_length: int, texts: list[str]) -> list[Prompt]:
    options = EngineOptions(
        model, "cold", max_total_tokens=2 * context_length, context_length=context_length, prefix_cache=False, threads=1
    )
    engine = AsyncEngine.create(options)
    tokenizer = load_tokenizer(model)
    bos, eos = engine.model_config.bos_token_id, engine.model_config.eos_token_id
    greedy = SamplingParams(ANSWER_TOKENS, 0.0, stop_token_ids=frozenset({eos}))
    engine.start()
    try:
        found = []
        for text in texts:
            ids = [bos, *tokenizer.encode_text(text)]
            outputs = [output async for output in engine.generate("cold", ids, greedy)]
            parts = (tokenizer.bytes_of(o.token_id) for o in outputs if o.finish_reason != "stop")
            found.append(Prompt(text, b"".join(parts).decode(errors="replace")))
        return found
    finally:
        await engine.stop()
