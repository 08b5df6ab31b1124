"""A memory limit of the kernel for a process that a test starts: a cgroup of its own, of whichever version is there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(limit: int) -> Iterator[Callable[[], None]]:
    """Gives what moves the calling process under the limit. Skips without the right to make cgroups, except in CI."""
    box, knob = _place()
    try:
        box.mkdir()
        (box / knob).write_text(str(limit))
    except OSError as error:
        message = f"no memory cgroup can be made: {error} (needs root)"
        assert os.environ.get("CI") != "true", message
        pytest.skip(message)

    def enter() -> None:
        (box / "cgroup.procs").write_text(str(os.getpid()))

    yield enter
    box.rmdir()


def _place() -> tuple[Path, str]:
    own = {line.split(":")[1]: line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    name = f"dsv4-test-{uuid.uuid4().hex[:8]}"
    if "memory" in own:
        return CGROUPS / "memory" / own["memory"].lstrip("/") / name, "memory.limit_in_bytes"
    # Version 2 allows processes in leaves only: beside our own, not below it.
    return CGROUPS / name, "memory.max"
