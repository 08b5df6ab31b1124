"""A streamed request in the background."""

from __future__ import annotations

import threading

import httpx

from serve.harness import Launcher, chat_body


class Stream:
    """Started once its first bytes are there; `text` is complete once `join` returned."""

    def __init__(self, launcher: Launcher, tokens: int) -> None:
        self.url = launcher.url + "/v1/chat/completions"
        self.body = chat_body(stream=True, max_tokens=tokens)
        self.text = ""
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.started.wait(30)

    def _run(self) -> None:
        with (
            httpx.Client(timeout=60, trust_env=False) as client,
            client.stream("POST", self.url, json=self.body) as answer,
        ):
            for chunk in answer.iter_text():
                self.text += chunk
                self.started.set()

    def join(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()
