"""Prompt tokens that each tier of the cache gave, over all engines of a round: a counter that restarts with each."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx

from serve.harness import Launcher

POLL_SECONDS = 0.5
# The launcher waits up to ten seconds for an engine that does not answer.
TIMEOUT_SECONDS = 60.0
NAME = "dsv4_cached_tokens_total{"


class Hits:
    """Sums of increases by tier. What an engine counted after the last look before its end is not in them."""

    def __init__(self, launcher: Launcher) -> None:
        self.tokens: Counter[str] = Counter()
        self._url = f"{launcher.admin}/metrics"
        self._last: dict[str, float] = {}

    async def watch(self) -> None:
        """Until cancelled."""
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as http:
            while True:
                self._take((await http.get(self._url)).text)
                await asyncio.sleep(POLL_SECONDS)

    def _take(self, text: str) -> None:
        lines = [line for line in text.splitlines() if line.startswith(NAME)]
        found = {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in lines}
        for tier, value in found.items():
            # Less than before: another engine counts from zero.
            before = self._last.get(tier, 0.0)
            self.tokens[tier] += int(value - before if value >= before else value)
        self._last |= found
