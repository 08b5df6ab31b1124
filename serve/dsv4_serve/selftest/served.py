"""The probes that a served model answers by HTTP, whatever engine serves it: answers, needles, cold against cached.

Weights that are not trained are asked for logits instead. What cannot be seen from outside, the bytes of the index, is
reported as not run.
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
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.selftest.documents import NEEDLE_DEPTH, NEEDLE_TOKENS, PROBE_TOKENS, RECORD, as_text, document
from dsv4_serve.selftest.outcome import NotRun, Outcome, ProbeFailed
from dsv4_serve.selftest.served_reference import ServedReference
from dsv4_serve.selftest.steps import REPLAY_TOLERANCE, Step, compare

Post = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""(path, body) to the answer's JSON; ProbeFailed for anything but a 200."""

ANSWER_TOKENS = 24
CACHE_TOKENS = {1: 800, 16: 300}
CACHE_ANSWER_TOKENS = 6
WARM_REPLAYS = 3
CALIBRATION_RECORDS = 50
SHOWN = 300
FROM_OUTSIDE = ("layout", "index")
ASKED = {f"answer-{tokens}": tokens for tokens in PROBE_TOKENS} | {f"needle-{n // 1024}k": n for n in NEEDLE_TOKENS}
"""Tokens of the prompts by the probe that asks them."""


@dataclass(slots=True)
class Served:
    """A served model. `bytes_per_token` of a document is measured once; `context` None means that nobody said.

    `reference` has the logits to expect of weights that are not trained; `exact` says that an answer does not depend on
    what else is in its batch; `stored`, in words, how the engine stores index keys.
    """

    post: Post
    model: str
    trained: bool
    context: int | None
    reference: ServedReference
    exact: bool
    stored: str
    bytes_per_token: float = 0.0

    async def ask(self, records: dict[str, str], key: str, max_tokens: int = ANSWER_TOKENS) -> tuple[str, int]:
        """The answer to what `key`'s value is, and the tokens of the prompt."""
        question = f"{as_text(records)}\nWhat is the value of {key}?"
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "chat_template_kwargs": {"thinking": False},
        }
        answer = await self.post("/v1/chat/completions", body)
        try:
            message = answer["choices"][0]["message"]
            text = (message.get("reasoning_content") or "") + (message.get("content") or "")
            return text, int(answer["usage"]["prompt_tokens"])
        except (LookupError, TypeError, AttributeError) as error:
            raise ProbeFailed(f"an answer without a message and usage: {str(answer)[:SHOWN]}") from error

    async def steps(self, prompt: str | list[int], max_tokens: int) -> tuple[list[Step], int]:
        """A greedy completion, token by token with its alternatives, and its cached tokens."""
        body = {"model": self.model, "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "logprobs": 3}
        answer = await self.post("/v1/completions", body)
        try:
            found = answer["choices"][0]["logprobs"]
            cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            pairs = zip(found["tokens"], found["top_logprobs"], strict=True)
            steps = [Step(token, likely or {}) for token, likely in pairs]
        except (LookupError, TypeError, ValueError) as error:
            raise ProbeFailed(f"an answer without tokens and log-probabilities: {str(answer)[:SHOWN]}") from error
        return steps, int(cached)

    async def document(self, tokens: int, seed: int) -> dict[str, str]:
        """Records of about `tokens` tokens of this model."""
        if not self.bytes_per_token:
            sample = document(CALIBRATION_RECORDS * RECORD, 1)
            _, used = await self.ask(sample, next(iter(sample)), 1)
            self.bytes_per_token = len(as_text(sample)) / used
        return document(round(tokens * self.bytes_per_token), seed)


def sizes(names: Iterable[str] = ()) -> list[int]:
    """Tokens of the prompts that the named probes ask, of all without a name."""
    wanted = set(names)
    return [tokens for name, tokens in ASKED.items() if not wanted or name in wanted]


def exact(profile: Profile) -> bool:
    """The embedded engine is bit-exact by construction; kernels of the others sum as the batch has it."""
    return profile.engine.name == "embedded"


async def _answer(served: Served, tokens: int) -> str:
    _fits(served, tokens)
    if not served.trained:
        return await _logits(served, tokens)
    records = await served.document(tokens - 40, tokens)
    keys = list(records)
    used = 0
    for key in dict.fromkeys((keys[0], keys[len(keys) // 2], keys[-1])):
        used = await _expect(served, records, key)
    return f"{len(records)} records, {used} tokens, 3 answers right"


async def _needle(served: Served, tokens: int) -> str:
    _fits(served, tokens)
    if not served.trained:
        return await _logits(served, tokens)
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

    async def every() -> list[tuple[list[Step], int]]:
        return list(await asyncio.gather(*(served.steps(prompt, CACHE_ANSWER_TOKENS) for prompt in prompts)))

    cold = await every()
    cached, largest = 0, 0.0
    for replay in range(1, WARM_REPLAYS + 1):
        for number, ((wanted, _), (found, hit)) in enumerate(zip(cold, await every(), strict=True)):
            cached += hit
            if served.exact and found != wanted:
                raise ProbeFailed(f"warm replay {replay}, prompt {number}: cold {wanted}, now {found}")
            try:
                largest = max(largest, compare(found, wanted, REPLAY_TOLERANCE, "the cold answer"))
            except ProbeFailed as error:
                raise ProbeFailed(f"warm replay {replay}, prompt {number}: {error}") from error
    same = "the same to the last bit" if served.exact else f"within {largest:.2f} nats"
    return f"{concurrency} at once: cold, {WARM_REPLAYS} warm replays {same}, {cached} tokens from the cache"


def _fits(served: Served, tokens: int) -> None:
    if served.context is not None and tokens > served.context:
        raise NotRun(f"{tokens} tokens exceed the context of {served.context}")


async def _logits(served: Served, tokens: int) -> str:
    case = await served.reference.case(tokens)
    found, _ = await served.steps(case.prompt, len(case.answer))
    largest = compare(found, case.answer)
    return f"{len(case.prompt)} tokens: logits are the reference's, largest difference {largest:.1e}"


async def _from_outside(served: Served) -> str:
    how = "dsv4 selftest without --url probes them on this machine"
    raise NotRun(f"the engine stores index keys as {served.stored}, and bytes cannot be read by HTTP: {how}")


def _probes() -> Iterator[tuple[str, Callable[[Served], Awaitable[str]]]]:
    for name in FROM_OUTSIDE:
        yield name, _from_outside
    for name, tokens in ASKED.items():
        yield name, partial(_answer if tokens in PROBE_TOKENS else _needle, tokens=tokens)
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
