"""Many clients at once against the whole server: cancels, completions, and nothing left behind."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from serve.harness import MODEL, PATIENCE, Launcher, wait_until

REQUESTS, AT_ONCE = 60, 32


@pytest.mark.slow
def test_concurrent_streams_with_cancels_all_end_and_free_their_pages(served: Launcher) -> None:
    dice = random.Random(1)
    outcomes: list[str] = []

    async def one(http: httpx.AsyncClient, number: int, gate: asyncio.Semaphore) -> None:
        length, cancel = dice.randrange(1, 300), dice.random() < 0.3
        body = {"model": MODEL, "prompt": "a" * length, "max_tokens": 8, "seed": number, "stream": True}
        async with gate, http.stream("POST", served.url + "/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = []
            async for line in response.aiter_lines():
                lines.append(line)
                if cancel and len(lines) > 3:
                    outcomes.append("cancelled")
                    return
            assert "data: [DONE]" in lines
            outcomes.append("finished")

    async def crowd() -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as http:
            await asyncio.gather(*(one(http, n, gate) for n in range(REQUESTS)))

    asyncio.run(crowd())
    assert len(outcomes) == REQUESTS
    assert {"cancelled", "finished"} == set(outcomes)
    wait_until(lambda: served.engine_info()["running"] == 0, "every cancelled request is freed")
    assert served.engine_info()["queued"] == 0
