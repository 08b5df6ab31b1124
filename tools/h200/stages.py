"""Programs run beside each other until a deadline; whatever they printed by then is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finished:
    """A program's exit status (None: the deadline ended it), seconds, and its two outputs."""

    status: int | None
    seconds: float
    output: str
    errors: str


class Stage:
    """Programs started together, their outputs in files under `folder`."""

    def __init__(self, folder: Path, began: float) -> None:
        self.folder, self.began = folder, began
        self.running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start `python arguments...`."""
        with self._file(name, "out").open("wb") as out, self._file(name, "err").open("wb") as err:
            process = subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=err)
        self.running[name] = process, time.monotonic()

    def wait(self, names: list[str], until: float) -> None:
        """Until those programs ended, or `until` seconds after the run began, when they are killed."""
        for name in names:
            process, _ = self.running[name]
            try:
                process.wait(timeout=max(0.1, self.began + until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def finished(self, name: str) -> Finished:
        process, started = self.running[name]
        killed = process.returncode is None or process.returncode < 0
        output, errors = (self._file(name, kind).read_text(errors="replace") for kind in ("out", "err"))
        return Finished(None if killed else process.returncode, time.monotonic() - started, output, errors)

    def _file(self, name: str, kind: str) -> Path:
        return self.folder / f"{name}.{kind}"
