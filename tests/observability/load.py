"""A little load on a running server: prompts of several lengths, repeated ones, one refusal; until it is stopped."""

from __future__ import annotations

import threading
from types import TracebackType

import httpx

from serve.harness import MODEL, PATIENCE

LENGTHS = (60, 700, 1400)
REPEATED = "The quick brown fox jumps over the lazy dog. " * 5
"""A text that goes on as it did before, so that drafts by look-up are right."""


class Load:
    """One client that keeps asking. `failures` are answers with another status than expected."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.asked = 0
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
            # Every prompt comes again and again, so that it hits what its first time left behind.
            while not self._stop.is_set():
                for length in LENGTHS:
                    self._ask(http, MODEL, "".join(chr(97 + (i * i + length) % 26) for i in range(length)), 200)
                self._ask(http, MODEL, REPEATED, 200)
                self._ask(http, "nobody", "x", 404)
                self._stop.wait(0.5)

    def _ask(self, http: httpx.Client, model: str, prompt: str, expected: int) -> None:
        body = {"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0}
        answer = http.post(f"{self._url}/v1/completions", json=body)
        self.asked += 1
        if answer.status_code != expected:
            self.failures.append(f"{answer.status_code}: {answer.text}")
