"""Answer probes and needles: a record in a document of a given length, asked for by its key."""

from __future__ import annotations

import random

from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.subject import BOS, Subject

PROBE_TOKENS = (50, 700, 2200)
NEEDLE_TOKENS = (2048, 10240, 81920)
ANSWER_TOKENS = 12
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RECORD = len("abc:123\n")
NEEDLE_DEPTH = 0.02
"""Needles lie near the start: no window reaches them, only the index does."""


def document(tokens: int, seed: int) -> dict[str, str]:
    """Distinct keys of three letters with values of three digits, about `tokens` bytes of them."""
    dice = random.Random(seed)
    records: dict[str, str] = {}
    while len(records) < max(2, tokens // RECORD):
        records["".join(dice.choices(LETTERS, k=3))] = f"{dice.randrange(1000):03}"
    return records


def question(subject: Subject, records: dict[str, str], key: str) -> list[int]:
    listed = "".join(f"{name}:{value}\n" for name, value in records.items())
    text = f"<｜User｜>Records:\n{listed}\nWhat is the value of {key}?<｜Assistant｜></think>"
    return [BOS, *subject.tokenizer.encode_markup(text)]


async def answer_probe(subject: Subject, tokens: int) -> str:
    """First, middle and last record of a document of `tokens`."""
    _askable(subject, tokens)
    records = document(tokens - 50, tokens)
    keys = list(records)
    for key in dict.fromkeys((keys[0], keys[len(keys) // 2], keys[-1])):
        await _ask(subject, records, key)
    return f"{len(records)} records, 3 answers right"


async def needle(subject: Subject, tokens: int) -> str:
    """A record near the start of a document of `tokens`."""
    _askable(subject, tokens)
    records = document(tokens - 100, tokens + 1)
    await _ask(subject, records, list(records)[int(NEEDLE_DEPTH * len(records))])
    return f"found {tokens} tokens back"


async def _ask(subject: Subject, records: dict[str, str], key: str) -> None:
    answer = subject.text(await subject.complete(question(subject, records, key), ANSWER_TOKENS))
    if records[key] not in answer:
        place = list(records).index(key)
        raise ProbeFailed(f"record {place} of {len(records)}, {key}: expected {records[key]}, the answer is {answer!r}")


def _askable(subject: Subject, tokens: int) -> None:
    if tokens > subject.context:
        raise NotRun(f"{tokens} tokens exceed the context of {subject.context}")
    if not subject.trained:
        raise NotRun("the profile says that the weights are not trained: answers mean nothing")
