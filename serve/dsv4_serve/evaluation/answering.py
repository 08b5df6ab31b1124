"""Who answers the questions: the embedded engine in this process, or any OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import httpx

from dsv4_serve.engines.embedded.api_schema import ChatRequest
from dsv4_serve.engines.embedded.chat_format import ChatFormat
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import EngineError, SamplingParams
from dsv4_serve.engines.embedded.tokenizer import EOS_ID, load_tokenizer
from dsv4_serve.errors import CommandError, UsageError

from .items import INSTRUCTION, Item
from .variants import IndexVariant

MAX_TOKENS = 64
"""Enough for three records, or for a text to repeat."""

Progress = Callable[[str], None]


class Answerer(Protocol):
    """Answers items at temperature 0, in their order."""

    async def answers(self, items: Sequence[Item]) -> list[str]: ...


def engine_options(model: Path, variant: IndexVariant, topk: int | None, context: int = 8192) -> EngineOptions:
    """The embedded engine over a model directory with the index stored as `variant`."""
    return EngineOptions(
        model_path=model,
        served_model_name=model.name,
        indexer_dtype=variant.dtype,
        hadamard=variant.hadamard,
        index_convention=variant.convention,
        index_topk=topk,
        context_length=context,
        max_total_tokens=2 * context,
        max_running_requests=8,
    )


class EngineAnswerer:
    """A started embedded engine; an asynchronous context manager."""

    def __init__(self, options: EngineOptions) -> None:
        self._engine = AsyncEngine.create(options)
        self._tokenizer = load_tokenizer(options.model_path)
        family, _ = load_config(options.model_path)
        self._format = ChatFormat(self._tokenizer, options.served_model_name, family.chat_version)
        self._name = options.served_model_name

    async def __aenter__(self) -> Self:
        self._engine.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.stop()

    async def answers(self, items: Sequence[Item]) -> list[str]:
        """The document is computed once: the first question about it runs alone, the others take it from the cache."""
        replies: dict[int, str] = {}
        for document in dict.fromkeys(item.document for item in items):
            places = [place for place, item in enumerate(items) if item.document == document]
            replies[places[0]] = await self._answer(items[places[0]])
            rest = await asyncio.gather(*(self._answer(items[place]) for place in places[1:]))
            replies.update(zip(places[1:], rest, strict=True))
        return [replies[place] for place in range(len(items))]

    async def _answer(self, item: Item) -> str:
        request = ChatRequest.model_validate(
            {"model": self._name, "messages": [{"role": "user", "content": item.prompt}]}
        )
        ids = self._format.prompt_ids(self._format.convert(request))
        params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, stop_token_ids=frozenset({EOS_ID}))
        text = b""
        try:
            async for output in self._engine.generate(f"eval-{id(item)}", ids, params):
                if output.finish_reason != "stop":
                    text += self._tokenizer.bytes_of(output.token_id)
        except EngineError as error:
            raise CommandError(f"the engine refused a question of task {item.task}: {error}") from error
        return text.decode(errors="replace")


class EndpointAnswerer:
    """Asks `POST {base_url}/chat/completions`, `concurrency` questions at a time."""

    def __init__(self, client: httpx.AsyncClient, model: str, progress: Progress, concurrency: int = 8) -> None:
        if concurrency < 1:
            raise UsageError(f"--concurrency {concurrency}: accepted is a positive integer")
        self._client, self._model, self._progress, self._done = client, model, progress, 0
        self._slots = asyncio.Semaphore(concurrency)

    async def answers(self, items: Sequence[Item]) -> list[str]:
        """Replies in order. Raises CommandError with what the endpoint said when it refuses one."""
        self._done = 0
        return list(await asyncio.gather(*(self._counted(item, len(items)) for item in items)))

    async def _counted(self, item: Item, total: int) -> str:
        reply = await self._answer(item)
        self._done += 1
        if self._done == total or self._done % max(1, total // 10) == 0:
            self._progress(f"answers: {self._done} of {total}")
        return reply

    async def _answer(self, item: Item) -> str:
        body = {
            "model": self._model,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "messages": [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": item.prompt}],
        }
        async with self._slots:
            try:
                response = await self._client.post("chat/completions", json=body)
            except httpx.HTTPError as error:
                raise CommandError(f"{self._client.base_url}: {type(error).__name__}: {error}") from error
        if response.status_code != httpx.codes.OK:
            raise CommandError(f"{self._client.base_url}: HTTP {response.status_code}: {response.text[:300]}")
        message = response.json()["choices"][0]["message"]
        return str(message.get("content") or "")
