"""Runs the real launcher as a process, by default with the stand-in as its engine, and talks to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

STANDIN_COMMAND = (sys.executable, str(Path(__file__).with_name("standin_launcher.py")))
COMMAND = (sys.executable, "-m", "dsv4_serve.cli")
LISTENING = re.compile(r"on (http://\S+), admin on (http://[^\s\"]+)")
# Generous: a loaded machine is slow, and a passing test does not wait for it.
PATIENCE = 60.0
MODEL = "dsv4-tiny"


def wait_until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"still not after {patience} s: {what}"
        time.sleep(0.02)


class Launcher:
    """A running `dsv4 serve`. `log` holds its lines; `url` and `admin` its addresses; `before` runs in its process."""

    def __init__(
        self,
        model_dir: Path,
        options: Sequence[str] = (),
        standin: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        wait: bool = True,
        command: Sequence[str] = STANDIN_COMMAND,
        before: Callable[[], None] | None = None,
    ) -> None:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("DSV4_")}
        quick = ["--leave-seconds", "0", "--settle-seconds", "0"]
        arguments = ["serve", "--port", "0", "--admin-port", "0", "--model", str(model_dir), *quick, *options]
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=inherited | {"STANDIN_ARGS": json.dumps(list(standin))} | (environment or {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.http = httpx.Client(timeout=PATIENCE, trust_env=False)
        wait_until(lambda: self._addresses() is not None or self._ended(), "the launcher listens")
        self.url, self.admin = self._addresses() or ("", "")
        if wait:
            wait_until(self.ready, "the launcher is ready")

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
        self.exit_code()

    @property
    def text(self) -> str:
        return "\n".join(self.log)

    def ready(self) -> bool:
        assert not self._ended(), f"the launcher ended:\n{self.text}"
        try:
            return self.get("/readyz").status_code == 200
        except httpx.TransportError:
            # It may be ending right now; the next call tells with its log.
            return False

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(self.url + path, **options)

    def chat(self, prompt: str = "hello", **fields: Any) -> httpx.Response:
        return self.http.post(self.url + "/v1/chat/completions", json=chat_body(prompt, **fields))

    def engine_info(self) -> dict[str, Any]:
        effective: dict[str, Any] = self.get("/manifest").json()["engine"]["effective"]
        return effective

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def engine_pid(self) -> int:
        found = re.findall(r"starts as process (\d+)", self.text)
        assert found, self.text
        return int(found[-1])

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def _addresses(self) -> tuple[str, str] | None:
        found = LISTENING.search(self.text)
        return (found[1], found[2]) if found else None

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.log.append(line.rstrip("\n"))


def chat_body(prompt: str = "hello", **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": MODEL, "max_tokens": 4, "messages": [message]} | fields
