"""What the reference gives: the same model on the plain backend, alone, without a cache, one request after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsv4_kernels import backends
from dsv4_serve.engines.embedded.config import PAGE_TOKENS
from dsv4_serve.engines.embedded.logprobs import legacy_token
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import TokenOutput
from dsv4_serve.engines.embedded.tokenizer import ModelTokenizer
from dsv4_serve.selftest.plain_backend import PlainBackend
from dsv4_serve.selftest.steps import Step
from dsv4_serve.selftest.subject import Subject, started

ANSWER_TOKENS = 6


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and the reference's answer to it."""

    prompt: list[int]
    answer: list[Step]


def steps_of(outputs: Sequence[TokenOutput], tokenizer: ModelTokenizer) -> list[Step]:
    """Tokens by the names that `/v1/completions` gives them; of two with one name the likelier stays."""

    def name(token: int) -> str:
        return legacy_token(tokenizer.bytes_of(token))

    steps = []
    for output in outputs:
        likely: dict[str, float] = {}
        for token, logprob in output.top_logprobs:
            likely.setdefault(name(token), logprob)
        steps.append(Step(name(output.token_id), likely))
    return steps


async def reference_answers(options: EngineOptions, prompts: Sequence[list[int]]) -> list[Case]:
    """`ANSWER_TOKENS` tokens of each. Nothing else of this process may use the operations meanwhile.

    The context stays that of `options`: attention sums over as many slots as it has, in their order.
    """
    longest = max(len(prompt) for prompt in prompts) + ANSWER_TOKENS
    plain = replace(
        options,
        max_total_tokens=-(-longest // PAGE_TOKENS) * PAGE_TOKENS,
        kv_bytes=None,
        max_running_requests=1,
        prefix_cache=False,
        hicache=False,
        host_bytes=None,
        disk_dir=None,
        write_policy="write_through",
        speculative="off",
        device="cpu",
    )
    async with started(plain, False) as engine:
        with backends.stand_in(PlainBackend()):
            return [await _case(engine, prompt) for prompt in prompts]


async def _case(engine: Subject, prompt: list[int]) -> Case:
    outputs = await engine.complete(prompt, ANSWER_TOKENS)
    return Case(prompt, steps_of(outputs, engine.tokenizer))
