"""What goes wrong on purpose: the engine killed, stopped, paused; files of the disk tier damaged."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from serve.harness import Launcher

PAUSE_SECONDS = 1.0
BETWEEN_SECONDS = (0.5, 2.5)
DAMAGED_FILES = 3

Fault = Callable[[], Awaitable[None]]


class Mischief:
    """Faults in turn, each after a random wait and only at a server that is ready; `done` counts them."""

    def __init__(self, launcher: Launcher, disk: Path | None, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._launcher, self._disk = launcher, disk
        self._dice = random.Random(seed)
        self._faults: dict[str, Fault] = {"kill": self._kill, "pause": self._pause, "hang": self._hang}
        if disk is not None:
            self._faults |= {"corrupt": self._corrupt, "truncate": self._truncate}

    async def run(self, limit: int) -> None:
        """Until cancelled, or until `limit` faults were made. It ends between two faults, never within one."""
        names = list(self._faults)
        for number in range(limit):
            await asyncio.sleep(self._dice.uniform(*BETWEEN_SECONDS))
            name = names[number % len(names)]
            await asyncio.shield(self._faults[name]())
            self.done[name] += 1
            await self._until_ready()

    async def _kill(self) -> None:
        os.kill(self._launcher.engine_pid(), signal.SIGKILL)
        await self._until_another(self._launcher.engine_pid())

    async def _hang(self) -> None:
        """Stopped and never continued: the launcher has to find out."""
        pid = self._launcher.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        await self._until_another(pid)

    async def _pause(self) -> None:
        """Stopped for less than what counts as a hang: nobody may lose anything."""
        pid = self._launcher.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)

    async def _corrupt(self) -> None:
        for path in self._files():
            data = bytearray(path.read_bytes())
            for _ in range(8):
                data[self._dice.randrange(len(data))] ^= 0xFF
            path.write_bytes(data)

    async def _truncate(self) -> None:
        for path in self._files():
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size // 2)

    def _files(self) -> list[Path]:
        assert self._disk is not None
        found = [path for path in sorted(self._disk.rglob("*")) if path.is_file() and path.stat().st_size]
        return self._dice.sample(found, min(DAMAGED_FILES, len(found)))

    async def _until_another(self, pid: int) -> None:
        while self._launcher.engine_pid() == pid:
            await asyncio.sleep(0.1)

    async def _until_ready(self) -> None:
        while not await asyncio.to_thread(self._launcher.ready):
            await asyncio.sleep(0.1)
