"""What the engines of a round counted, over all of them: their counters restart with each."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx

from serve.harness import Launcher

POLL_SECONDS = 0.5
# The launcher waits up to ten seconds for an engine that does not answer.
TIMEOUT_SECONDS = 60.0
NAMES = {
    "dsv4_cached_tokens_total{": "cached",
    "dsv4_kv_evicted_pages_total{": "evicted",
    "dsv4_kv_refused_pages_total{": "refused",
    "dsv4_retracted_requests_total": "retracted",
}


class Counted:
    """Increases by what is counted and its first label (the tier), "" without one.

    What an engine counted after the last look before its end is not in them.
    """

    def __init__(self, launcher: Launcher) -> None:
        self.of: dict[str, Counter[str]] = {name: Counter() for name in NAMES.values()}
        self._url = f"{launcher.admin}/metrics"
        self._last: dict[str, float] = {}

    async def watch(self) -> None:
        """Until cancelled."""
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as http:
            while True:
                self._take((await http.get(self._url)).text)
                await asyncio.sleep(POLL_SECONDS)

    def _take(self, text: str) -> None:
        for line in text.splitlines():
            name = next((name for start, name in NAMES.items() if line.startswith(start)), None)
            if name is None:
                continue
            series, _, number = line.rpartition(" ")
            value, before = float(number), self._last.get(series, 0.0)
            # Less than before: another engine counts from zero.
            increase = int(value - before if value >= before else value)
            self.of[name] += Counter({series.split('"')[1] if '"' in series else "": increase})
            self._last[series] = value
