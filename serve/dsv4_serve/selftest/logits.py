"""Where answers mean nothing: the logits of an engine against those of the reference, over the same prompts."""

from __future__ import annotations

from dsv4_serve.selftest.reference import ANSWER_TOKENS, reference_answers, steps_of
from dsv4_serve.selftest.steps import compare
from dsv4_serve.selftest.subject import Subject


async def logits_probe(subject: Subject, prompt: list[int]) -> str:
    """ProbeFailed for the first log-probability that is not the reference's."""
    found = steps_of(await subject.complete(prompt, ANSWER_TOKENS), subject.tokenizer)
    (case,) = await reference_answers(subject.engine.options, [prompt])
    largest = compare(found, case.answer)
    return f"{len(prompt)} tokens: logits are the reference's, largest difference {largest:.1e}"
