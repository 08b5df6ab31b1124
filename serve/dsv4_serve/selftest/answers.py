"""Answer probes and needles: a record in a document of a given length, asked for by its key.

Of weights that are not trained the logits of the same questions are held against the reference's.
"""

from __future__ import annotations

from dsv4_serve.engines.embedded.tokenizer import ModelTokenizer
from dsv4_serve.selftest.documents import NEEDLE_DEPTH, as_text, document
from dsv4_serve.selftest.logits import logits_probe
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.subject import BOS, Subject

ANSWER_TOKENS = 12


def question(tokenizer: ModelTokenizer, records: dict[str, str], key: str) -> list[int]:
    text = f"<｜User｜>{as_text(records)}\nWhat is the value of {key}?<｜Assistant｜></think>"
    return [BOS, *tokenizer.encode_markup(text)]


async def answer_probe(subject: Subject, tokens: int) -> str:
    """First, middle and last record of a document of `tokens`."""
    _fits(subject, tokens)
    records = document(tokens - 50, tokens)
    keys = list(records)
    if not subject.trained:
        return await logits_probe(subject, question(subject.tokenizer, records, keys[0]))
    for key in dict.fromkeys((keys[0], keys[len(keys) // 2], keys[-1])):
        await _ask(subject, records, key)
    return f"{len(records)} records, 3 answers right"


async def needle(subject: Subject, tokens: int) -> str:
    """A record near the start of a document of `tokens`."""
    _fits(subject, tokens)
    records = document(tokens - 100, tokens + 1)
    key = list(records)[int(NEEDLE_DEPTH * len(records))]
    if not subject.trained:
        return await logits_probe(subject, question(subject.tokenizer, records, key))
    await _ask(subject, records, key)
    return f"found {tokens} tokens back"


async def _ask(subject: Subject, records: dict[str, str], key: str) -> None:
    answer = subject.text(await subject.complete(question(subject.tokenizer, records, key), ANSWER_TOKENS))
    if records[key] not in answer:
        place = list(records).index(key)
        raise ProbeFailed(f"record {place} of {len(records)}, {key}: expected {records[key]}, the answer is {answer!r}")


def _fits(subject: Subject, tokens: int) -> None:
    if tokens > subject.context:
        raise NotRun(f"{tokens} tokens exceed the context of {subject.context}")
