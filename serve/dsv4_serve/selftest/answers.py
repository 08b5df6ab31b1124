"""Answer probes and needles: a record in a document of a given length, asked for by its key."""

from __future__ import annotations

from dsv4_serve.selftest.documents import NEEDLE_DEPTH, as_text, document
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.subject import BOS, Subject

ANSWER_TOKENS = 12


def question(subject: Subject, records: dict[str, str], key: str) -> list[int]:
    text = f"<｜User｜>{as_text(records)}\nWhat is the value of {key}?<｜Assistant｜></think>"
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
