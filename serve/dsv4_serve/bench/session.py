"""Runs a workload against a server: a warm-up with another seed, then the clients, each with its conversations."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx

from dsv4_serve.bench.request import BenchError, Record, ask
from dsv4_serve.bench.server_metrics import Counters, read_counters
from dsv4_serve.bench.texts import Texts
from dsv4_serve.bench.workload import Workload

TIMEOUT = httpx.Timeout(None, connect=10.0)
CALIBRATION_WORDS_TOKENS = 400
WARM_UP_SEED = 7919


@dataclass(frozen=True, slots=True)
class Target:
    """A server: where it is, the model that it serves, where its metrics are, and how many GPUs it has."""

    name: str
    url: str
    metrics_url: str | None = None
    key: str | None = None
    gpus: int = 1
    page_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Session:
    """What one run at one concurrency gave. `counters` are the server's own, over the run; None without metrics."""

    concurrency: int
    seconds: float
    records: tuple[Record, ...]
    counters: Counters | None


class Bench:
    """A connection to one target. Use `opened`."""

    def __init__(self, target: Target, http: httpx.AsyncClient) -> None:
        self.target = target
        self._http = http
        self.answered = 0
        """Measured requests of the run under way."""
        self._model = ""
        self._tokens_per_word = 1.0

    async def prepare(self) -> None:
        """Learn the model's name, and how many tokens the server makes of a word."""
        try:
            answer = await self._http.get("/v1/models")
            answer.raise_for_status()
            self._model = answer.json()["data"][0]["id"]
        except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
            raise BenchError(f"{self.target.url}/v1/models: {type(error).__name__}: {error}") from error
        text = Texts(1, 1.0).of(CALIBRATION_WORDS_TOKENS)
        found = await ask(self._http, self._model, text, 2)
        self._tokens_per_word = found.prompt_tokens / CALIBRATION_WORDS_TOKENS

    async def run(self, workload: Workload, concurrency: int, seed: int) -> Session:
        """Warm up, unmeasured and with prompts of its own, then measure."""
        self.answered = 0
        warm = Texts(seed + WARM_UP_SEED, self._tokens_per_word)
        prompts = [warm.of(workload.prompt_tokens) for _ in range(concurrency)]
        await asyncio.gather(*(ask(self._http, self._model, prompt, 2) for prompt in prompts))
        before = await read_counters(self.target.metrics_url)
        shared = Texts(seed, self._tokens_per_word).of(workload.shared_tokens)
        begun = time.perf_counter()
        clients = [self._client(workload, shared, seed * 1000 + n + 1, first=n == 0) for n in range(concurrency)]
        records = [record for done in await asyncio.gather(*clients) for record in done]
        seconds = time.perf_counter() - begun
        after = await read_counters(self.target.metrics_url)
        counted = after.since(before) if before is not None and after is not None else None
        return Session(concurrency, seconds, tuple(records), counted)

    async def _client(self, workload: Workload, shared: str, seed: int, first: bool) -> list[Record]:
        texts = Texts(seed, self._tokens_per_word)
        records: list[Record] = []
        for number in range(workload.conversations):
            # Somebody has to bring the shared part; whoever is first cannot find it.
            known = 0 if first and number == 0 else workload.shared_tokens
            said = shared + texts.of(workload.prompt_tokens - workload.shared_tokens)
            for _ in range(workload.turns):
                record = await ask(self._http, self._model, said, workload.output_tokens, self._whole_pages(known))
                records.append(record)
                self.answered += 1
                known = record.prompt_tokens + record.output_tokens - 1
                said += record.text + " " + texts.of(workload.growth_tokens)
        return records

    def _whole_pages(self, tokens: int) -> int:
        return tokens // self.target.page_tokens * self.target.page_tokens


def opened(target: Target) -> httpx.AsyncClient:
    """The client that a Bench needs; close it."""
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    limits = httpx.Limits(max_connections=None, keepalive_expiry=900)
    return httpx.AsyncClient(base_url=target.url, headers=headers, timeout=TIMEOUT, limits=limits, trust_env=False)
