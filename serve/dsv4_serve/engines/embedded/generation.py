"""One request is one or more completions; each is a token stream of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from deepseek_recipe import ModelVersion

from .api_schema import MAX_SEED, ChatRequest, CompletionRequest
from .http_errors import context_length_exceeded, invalid, unknown_model
from .request import EngineError, SamplingParams, TokenOutput
from .tokenizer import ModelTokenizer

Item = TypeVar("Item")


class Engine(Protocol):
    """What the HTTP side uses of `AsyncEngine`."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...
    def generate(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams
    ) -> AsyncGenerator[TokenOutput, None]: ...
    def server_info(self) -> dict[str, object]: ...
    def metrics_text(self) -> str: ...
    def dead(self) -> str | None: ...


@dataclass(frozen=True)
class Served:
    """The engine and what a request must know of it. Lengths in tokens.

    `capacity` is the largest request that the pools can ever hold; it may be less than the context.
    """

    engine: Engine
    tokenizer: ModelTokenizer
    model_name: str
    vocab_size: int
    context_length: int
    capacity: int
    bos_token_id: int
    eos_token_id: int
    allow_script: bool = False
    chat_version: ModelVersion = ModelVersion.DeepseekV4Pro

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.model_name:
            raise unknown_model(name, self.model_name)


def sampling_params(
    served: Served, request: ChatRequest | CompletionRequest, prompt_tokens: int, logprobs: int | None
) -> list[SamplingParams]:
    """One for each of the request's `n` choices; without a token limit a choice may fill what there is."""
    room = min(served.context_length, served.capacity) - prompt_tokens
    wanted = request.token_limit or max(room, 1)
    if prompt_tokens + wanted > served.context_length:
        prompt_field = "messages" if isinstance(request, ChatRequest) else "prompt"
        raise context_length_exceeded(prompt_tokens, wanted, served.context_length, prompt_field)
    stop_ids = set(_known_ids(served, "stop_token_ids", request.stop_token_ids or []))
    if not request.ignore_eos:
        stop_ids.add(served.eos_token_id)
    return [
        SamplingParams(
            max_tokens=wanted,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(request.top_k or 0, 0),
            seed=None if request.seed is None else (request.seed + choice) % (MAX_SEED + 1),
            logprobs=logprobs,
            stop_token_ids=frozenset(stop_ids),
            script=_script(served, request.dsv4_script),
        )
        for choice in range(request.choices)
    ]


def known_prompt_ids(served: Served, ids: list[int]) -> list[int]:
    return _known_ids(served, "prompt", ids)


def _known_ids(served: Served, param: str, ids: list[int]) -> list[int]:
    unknown = next((token_id for token_id in ids if token_id >= served.vocab_size), None)
    if unknown is not None:
        message = f"{param} holds the token id {unknown}: accepted is 0 to {served.vocab_size - 1}"
        raise invalid(param, message)
    return ids


def _script(served: Served, script: str | list[int] | None) -> tuple[int, ...] | None:
    """A script ends with EOS, so that what the model would say after it is never part of a test."""
    if script is None:
        return None
    if isinstance(script, str):
        ids = served.tokenizer.encode_markup(script)
    else:
        ids = _known_ids(served, "dsv4_script", script)
    return (*ids, served.eos_token_id) if ids[-1:] != [served.eos_token_id] else tuple(ids)


async def tokens(
    engine: Engine, request_id: str, prompt_ids: list[int], params: SamplingParams
) -> AsyncGenerator[TokenOutput, None]:
    """The engine's stream to its last token. Closing it aborts the request; an engine's abort raises."""
    async with aclosing(engine.generate(request_id, prompt_ids, params)) as stream:
        async for output in stream:
            if output.finish_reason == "abort":
                break
            yield output
            if output.finish_reason is not None:
                return
    raise EngineError("The engine ended this request before it was complete.")


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """The items of all streams as they come. Closing this closes them all, as does an error in one."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield item
        return
    queue: asyncio.Queue[Item | _Ended] = asyncio.Queue()

    async def drain(stream: AsyncGenerator[Item, None]) -> None:
        error: BaseException | None = None
        try:
            async with aclosing(stream):
                async for item in stream:
                    queue.put_nowait(item)
        except Exception as failure:  # noqa: BLE001 - raised again where the items are consumed
            error = failure
        queue.put_nowait(_Ended(error))

    tasks = [asyncio.create_task(drain(stream)) for stream in streams]
    try:
        open_streams = len(streams)
        while open_streams:
            entry = await queue.get()
            if not isinstance(entry, _Ended):
                yield entry
                continue
            open_streams -= 1
            if entry.error is not None:
                raise entry.error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
