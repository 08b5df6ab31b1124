"""The probes that a served model answers by HTTP, whatever engine serves it: answers, needles, cold against cached.

What they cannot see from outside (the bytes of the index, the reference backend's logits) is reported as not run.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsv4_serve.errors import UsageError
from dsv4_serve.selftest.documents import NEEDLE_DEPTH, NEEDLE_TOKENS, PROBE_TOKENS, RECORD, as_text, document
from dsv4_serve.selftest.outcome import NotRun, Outcome, ProbeFailed

Post = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""(path, body) to the answer's JSON; ProbeFailed for anything but a 200."""

ANSWER_TOKENS = 24
CACHE_TOKENS = {1: 800, 16: 300}
CACHE_ANSWER_TOKENS = 6
WARM_REPLAYS = 3
CALIBRATION_RECORDS = 50
FROM_OUTSIDE = ("layout", "index")


@dataclass(slots=True)
class Served:
    """A served model. `bytes_per_token` of a document is measured once; `context` None means that nobody said."""

    post: Post
    model: str
    trained: bool
    context: int | None
    bytes_per_token: float = 0.0

    async def ask(self, records: dict[str, str], key: str, max_tokens: int = ANSWER_TOKENS) -> tuple[str, int]:
        """The answer to what `key`'s value is, and the tokens of the prompt."""
        question = f"{as_text(records)}\nWhat is the value of {key}?"
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        answer = await self.post("/v1/chat/completions", body)
        message = answer["choices"][0]["message"]
        text = (message.get("reasoning_content") or "") + (message.get("content") or "")
        return text, int(answer["usage"]["prompt_tokens"])

    async def complete(self, prompt: str) -> tuple[Any, int]:
        """Text and log-probabilities of a greedy completion, as one comparable value, and its cached tokens."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "temperature": 0,
            "max_tokens": CACHE_ANSWER_TOKENS,
            "logprobs": 3,
        }
        answer = await self.post("/v1/completions", body)
        choice = answer["choices"][0]
        cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return (choice["text"], choice["logprobs"]), int(cached)

    async def document(self, tokens: int, seed: int) -> dict[str, str]:
        """Records of about `tokens` tokens of this model."""
        if not self.bytes_per_token:
            sample = document(CALIBRATION_RECORDS * RECORD, 1)
            _, used = await self.ask(sample, next(iter(sample)), 1)
            self.bytes_per_token = len(as_text(sample)) / used
        return document(round(tokens * self.bytes_per_token), seed)


async def _answer(served: Served, tokens: int) -> str:
    _askable(served, tokens)
    records = await served.document(tokens - 40, tokens)
    keys = list(records)
    used = 0
    for key in dict.fromkeys((keys[0], keys[len(keys) // 2], keys[-1])):
        used = await _expect(served, records, key)
    return f"{len(records)} records, {used} tokens, 3 answers right"


async def _needle(served: Served, tokens: int) -> str:
    _askable(served, tokens)
    records = await served.document(tokens - 80, tokens + 1)
    used = await _expect(served, records, list(records)[int(NEEDLE_DEPTH * len(records))])
    return f"found {used} tokens back"


async def _expect(served: Served, records: dict[str, str], key: str) -> int:
    answer, used = await served.ask(records, key)
    if records[key] not in answer:
        place = list(records).index(key)
        raise ProbeFailed(f"record {place} of {len(records)}, {key}: expected {records[key]}, the answer is {answer!r}")
    return used


async def _cache(served: Served, concurrency: int) -> str:
    """Prompts that nobody asked before, so that the first answers are cold; then the same again."""

    dice = random.Random(secrets.randbits(64))
    prompts = ["".join(dice.choices("abcdefghij ", k=CACHE_TOKENS[concurrency])) for _ in range(concurrency)]

    async def every() -> list[tuple[Any, int]]:
        return list(await asyncio.gather(*(served.complete(prompt) for prompt in prompts)))

    cold = await every()
    cached = 0
    for replay in range(1, WARM_REPLAYS + 1):
        for number, ((wanted, _), (found, hit)) in enumerate(zip(cold, await every(), strict=True)):
            cached += hit
            if found != wanted:
                raise ProbeFailed(f"warm replay {replay}, prompt {number}: cold {wanted}, now {found}")
    return f"{concurrency} at once: cold, {WARM_REPLAYS} warm replays, {cached} tokens from the cache"


def _askable(served: Served, tokens: int) -> None:
    if served.context is not None and tokens > served.context:
        raise NotRun(f"{tokens} tokens exceed the context of {served.context}")
    if not served.trained:
        raise NotRun("the weights are not said to be trained: answers mean nothing")


async def _from_outside(served: Served) -> str:
    raise NotRun("bytes of the index cannot be read by HTTP: dsv4 selftest without --url, or preflight's known answers")


def _probes() -> Iterator[tuple[str, Callable[[Served], Awaitable[str]]]]:
    for name in FROM_OUTSIDE:
        yield name, _from_outside
    for tokens in PROBE_TOKENS:
        yield f"answer-{tokens}", partial(_answer, tokens=tokens)
    for tokens in NEEDLE_TOKENS:
        yield f"needle-{tokens // 1024}k", partial(_needle, tokens=tokens)
    for concurrency in CACHE_TOKENS:
        yield f"cache-{concurrency}", partial(_cache, concurrency=concurrency)


PROBES = dict(_probes())


async def probe_served(served: Served, names: Iterable[str] = ()) -> AsyncIterator[Outcome]:
    """Run the named probes, all by default, in their order. UsageError for an unknown name."""
    wanted = list(names)
    for name in wanted:
        if name not in PROBES:
            raise UsageError(f"--probe {name!r}: by URL, accepted is one of {', '.join(PROBES)}")
    for name, probe in PROBES.items():
        if wanted and name not in wanted:
            continue
        begun = time.monotonic()
        try:
            status, detail = "passed", await probe(served)
        except NotRun as reason:
            status, detail = "not run", str(reason)
        except ProbeFailed as error:
            status, detail = "failed", str(error)
        yield Outcome(name, status, detail, round(time.monotonic() - begun, 3))  # type: ignore[arg-type]
