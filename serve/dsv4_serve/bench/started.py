"""A server that the benchmark starts itself, for one side of a comparison, and ends again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dsv4_serve.bench.request import BenchError
from dsv4_serve.bench.session import Target

ADDRESSES = re.compile(r"on (http://\S+), admin on (http://\S+)")
READY = re.compile(r"ready on http://")
LAST_LINES = 5


@contextmanager
def started(name: str, options: Sequence[str], gpus: int) -> Iterator[Target]:
    """`dsv4 serve` with `options` on free ports, until the block ends. BenchError when it does not become ready."""
    command = [sys.executable, "-m", "dsv4_serve.cli", "serve", "--port", "0", "--admin-port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    addresses: re.Match[str] | None = None
    try:
        for line in process.stderr:
            lines.append(line.rstrip())
            addresses = ADDRESSES.search(line) or addresses
            if READY.search(line):
                break
        else:
            raise BenchError(f"{name}: the server ended before it was ready:\n" + "\n".join(lines[-LAST_LINES:]))
        assert addresses is not None, "a server is ready after it listens"
        # Nobody reads its log from here on, and a full pipe would stop it.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield Target(name, addresses[1], f"{addresses[2]}/metrics", gpus=gpus)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
