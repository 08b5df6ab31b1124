"""The engine's process: started, watched, stopped; its lines go to our log."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dsv4_serve.flags import PREFIX
from dsv4_serve.logs import log, log_engine_line

PR_SET_PDEATHSIG = 1
OOM_SCORE = b"500"
STOP_SECONDS = 10.0
LAST_LINES_SECONDS = 2.0
TAIL_LINES = 12
MAX_LINE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine ended, and the last lines that it wrote."""

    returncode: int
    tail: tuple[str, ...]

    @property
    def how(self) -> str:
        return how_it_ended(self.returncode)

    def __str__(self) -> str:
        return f"{self.how}; its last line: {self.tail[-1]}" if self.tail else self.how


class EngineProcess:
    """A child in a process group of its own, which ends when the launcher ends, however that happens."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pump = asyncio.create_task(self._forward_lines())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> EngineProcess:
        """Start `command`; OSError when it cannot be executed."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env=engine_environ(os.environ, environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_tied_to(os.getpid()),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def gone(self) -> int:
        """The exit code, as soon as the engine has ended, by itself or by `stop`; what it left of its group ends, too.

        Of a process that was killed it is the signal, negative.
        """
        returncode = await self._process.wait()
        self.kill()
        return returncode

    async def death(self) -> Death:
        """As `gone`, with the last lines: what the engine left may keep them back for LAST_LINES_SECONDS."""
        returncode = await self.gone()
        await self._last_lines()
        return Death(returncode, tuple(self._tail))

    async def stop(self, grace: float = STOP_SECONDS) -> None:
        """SIGTERM to the group, SIGKILL to what is left of it after `grace` seconds."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            log.warning("the engine did not stop within %g s; killing it", grace)
        self.kill()
        await self._process.wait()
        await self._last_lines()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def _last_lines(self) -> None:
        # Not awaited itself: whoever cancels a wait must not cancel the pump, and a stray holder of the pipe could
        # keep it open for ever.
        await asyncio.wait({self._pump}, timeout=LAST_LINES_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            log.debug("the engine's group had ended before %s", number.name)

    async def _forward_lines(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        rest = b""
        while chunk := await stream.read(MAX_LINE_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._forward(line)
            if len(rest) > MAX_LINE_BYTES:
                self._forward(rest)
                rest = b""
        if rest:
            self._forward(rest)

    def _forward(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._tail.append(text)
            log_engine_line(text)


def how_it_ended(returncode: int) -> str:
    if returncode < 0:
        return f"the engine was killed by {signal.Signals(-returncode).name}"
    return f"the engine exited with code {returncode}"


def engine_environ(inherited: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: ours without the toggles, which reach the engine by the adapter alone."""
    return {name: text for name, text in inherited.items() if not name.startswith(PREFIX)} | dict(added)


def free_port() -> int:
    """A loopback port that was free a moment ago; the engine says so if another process takes it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tied_to(parent: int) -> Callable[[], None] | None:
    """A preexec_fn: the kernel ends the child with its parent, and first of all for memory. None without prctl."""
    if sys.platform != "linux":
        return None
    # Loaded before the fork: between fork and exec a child may not take locks.
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        _offer_to_oom_killer()

    return prepare


def _offer_to_oom_killer() -> None:
    """When memory runs out, the kernel shall take the engine, not the launcher that starts it again and tells why."""
    # A container may hide the file, and without it the kernel takes the largest process, which is the engine too.
    with contextlib.suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, OOM_SCORE)
        os.close(score)
