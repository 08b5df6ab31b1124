"""Load with shared prefixes: families of requests that begin alike."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from serve.harness import chat_body

PREFIX_CHARACTERS = 600


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: the beginning it shares with its family, and its own end."""

    family: int
    number: int

    def prompt(self, salt: str) -> str:
        rng = random.Random(f"{salt}:{self.family}")
        prefix = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=PREFIX_CHARACTERS))
        return f"{prefix} question {self.number}"


def shuffled(families: int, each: int, seed: int) -> list[Ask]:
    """Every family's requests in order, families mixed."""
    order = [family for family in range(families) for _ in range(each)]
    random.Random(seed).shuffle(order)
    seen = dict.fromkeys(range(families), 0)
    asks = []
    for family in order:
        asks.append(Ask(family, seen[family]))
        seen[family] += 1
    return asks


async def ask(client: httpx.AsyncClient, url: str, prompt: str) -> int:
    """Status of one streamed answer; 0 when the connection broke or the stream ended early."""
    body = chat_body(prompt, max_tokens=4, temperature=0, stream=True)
    try:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
    except httpx.TransportError:
        return 0
    finished = answer.status_code != 200 or lines[-1:] == ["data: [DONE]"]
    return answer.status_code if finished else 0


async def send(url: str, asks: Sequence[Ask], salt: str, at_once: int) -> list[int]:
    """Statuses of all, `at_once` at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(client: httpx.AsyncClient, asked: Ask) -> int:
        async with gate:
            return await ask(client, url, asked.prompt(salt))

    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        return list(await asyncio.gather(*(one(client, asked) for asked in asks)))


@dataclass(slots=True)
class Load:
    """Requests without end, until stopped; every one leaves a status."""

    statuses: list[int] = field(default_factory=list)

    async def answered(self, more: int) -> None:
        """Wait until `more` further requests have ended."""
        goal = len(self.statuses) + more
        while len(self.statuses) < goal:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def under_load(url: str, streams: int) -> AsyncIterator[Load]:
    """`streams` clients that ask one question after the other; all have their answer when the block ends."""
    load, stopping = Load(), asyncio.Event()

    async def client_loop(number: int) -> None:
        count = 0
        async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
            while not stopping.is_set():
                load.statuses.append(await ask(client, url, Ask(number, count % 3).prompt("load")[-200:]))
                count += 1

    tasks = [asyncio.create_task(client_loop(number)) for number in range(streams)]
    try:
        yield load
    finally:
        stopping.set()
        await asyncio.gather(*tasks)
