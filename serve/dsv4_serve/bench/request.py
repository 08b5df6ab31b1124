"""One streamed request, timed token by token as a client sees it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from dsv4_serve.errors import CommandError

PATH = "/v1/completions"


class BenchError(CommandError):
    """The server did not answer as a benchmark needs; the message says how."""


@dataclass(frozen=True, slots=True)
class Record:
    """Times in seconds. `expected_cached`: prompt tokens that an unlimited prefix cache would have had."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    expected_cached: int
    to_first: float
    total: float
    text: str

    @property
    def per_output_token(self) -> float:
        """Mean time between tokens; not the time between chunks, which merge."""
        return (self.total - self.to_first) / max(1, self.output_tokens - 1)


async def ask(http: httpx.AsyncClient, model: str, prompt: str, output_tokens: int, expected_cached: int = 0) -> Record:
    """Generate exactly `output_tokens`, at temperature 0. BenchError for anything but a whole answer."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begun = time.perf_counter()
    first: float | None = None
    parts: list[str] = []
    usage: dict[str, Any] | None = None
    try:
        async with http.stream("POST", PATH, json=body) as answer:
            if answer.status_code != 200:
                raise BenchError(f"POST {PATH}: {answer.status_code} {(await answer.aread()).decode()[:500]}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise BenchError(f"POST {PATH}: {event['error']['message']}")
                if event["choices"] and first is None:
                    first = time.perf_counter() - begun
                parts += [choice["text"] for choice in event["choices"]]
                usage = event.get("usage") or usage
    except httpx.HTTPError as error:
        raise BenchError(f"POST {PATH}: {type(error).__name__}: {error}") from error
    if first is None or usage is None:
        raise BenchError(f"POST {PATH}: the stream had {'no usage' if first else 'no token'}")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    total = time.perf_counter() - begun
    counts = (usage["prompt_tokens"], usage["completion_tokens"], cached)
    return Record(*counts, expected_cached, first, total, "".join(parts))
