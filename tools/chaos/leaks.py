"""What a server holds while nobody asks it anything: pages, tasks, file descriptors, memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from serve.harness import Launcher, wait_until

# The engine closes connections that were idle for five seconds; they are no leak.
QUIET_SECONDS = 7.0
MAX_MORE_BYTES = 24 << 20
MAX_MORE_DESCRIPTORS = 4
MAX_MORE_TASKS = 2


@dataclass(frozen=True, slots=True)
class Held:
    """`pages_tokens`: tokens in the pools that no prefix cache could give back. Bytes are resident memory."""

    pages_tokens: float
    tasks: float
    descriptors: int
    engine_descriptors: int
    launcher_bytes: int
    engine_bytes: int


def held(launcher: Launcher, quiet_seconds: float = QUIET_SECONDS) -> Held:
    """Once the server has been quiet for a while.

    An engine's memory is that of the one which runs then: `tools.chaos.soak` says whether it grows.
    """
    wait_until(lambda: _idle(launcher), "nothing runs or waits in the engine", patience=120)
    time.sleep(quiet_seconds)
    found = _samples(launcher)
    main = (("region", "main"), ("tier", "gpu"))
    used, evictable = (found[(f"dsv4_kv_{name}_tokens", main)] for name in ("used", "evictable"))
    pid = launcher.process.pid
    return Held(
        used - evictable,
        found[("dsv4_front_tasks", ())],
        _descriptors(pid),
        _descriptors(launcher.engine_pid()),
        resident(pid),
        resident(launcher.engine_pid()),
    )


def leaks(before: Held, after: Held) -> list[str]:
    """What grew from one quiet moment to the other, in words."""
    found = []
    if after.pages_tokens:
        found.append(f"{after.pages_tokens:g} tokens of pages are held by no request")
    for name, most in (
        ("tasks", MAX_MORE_TASKS),
        ("descriptors", MAX_MORE_DESCRIPTORS),
        ("engine_descriptors", MAX_MORE_DESCRIPTORS),
        ("launcher_bytes", MAX_MORE_BYTES),
    ):
        more = getattr(after, name) - getattr(before, name)
        if more > most:
            found.append(f"{name}: {more:.0f} more than before, allowed {most}")
    return found


def _idle(launcher: Launcher) -> bool:
    if not launcher.ready():
        return False
    found = _samples(launcher)
    names = ("dsv4_running_requests", "dsv4_queued_requests", "dsv4_front_inflight_requests")
    return all(found.get((name, ()), 1) == 0 for name in names)


def _samples(launcher: Launcher) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = launcher.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), 0)
