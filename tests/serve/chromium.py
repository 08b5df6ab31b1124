"""Headless Chromium over its DevTools protocol: open a page in real time, evaluate, take a picture."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def require_chromium() -> str:
    """Chromium's path; skips the test without it, except in CI, where its absence is a failure."""
    path = shutil.which("chromium")
    if path is None:
        message = "chromium is not installed (make deps)"
        assert os.environ.get("CI") != "true", message
        pytest.skip(message)
    return path


class Page:
    """One tab. `requests` holds the URLs that it asked for."""

    def __init__(self, width: int = 1180, height: int = 860) -> None:
        self.size = (width, height)
        self.requests: list[str] = []
        self._stack = ExitStack()
        self._number = 0

    async def __aenter__(self) -> Self:
        profile = self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        command = [require_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        assert process.stderr is not None
        self._stack.enter_context(process.stderr)
        found = next(filter(None, (re.search(r"listening on ws://(\S+?)/", line) for line in process.stderr)))
        self._http = aiohttp.ClientSession()
        async with self._http.get(f"http://{found[1]}/json/list") as answer:
            [tab] = [each for each in await answer.json() if each["type"] == "page"]
        self._socket = await self._http.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)
        for domain in ("Page", "Network", "Runtime"):
            await self.call(f"{domain}.enable")
        await self.resize(*self.size)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._socket.close()
        await self._http.close()
        self._stack.close()

    async def resize(self, width: int, height: int) -> None:
        """The size of the page itself, in pixels."""
        mode = {"deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **mode)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        answer = await self._receive(lambda message: message.get("id") == number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str, scheme: str = "light") -> None:
        """Load `url` to its end, for someone who prefers the colour scheme `scheme`."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.requests.clear()
        await self.call("Page.navigate", url=url)
        await self._receive(lambda message: message.get("method") == "Page.loadEventFired")

    async def _receive(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = await self._socket.receive_json()
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if wanted(message):
                return message

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def screenshot(self, path: Path) -> None:
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))
