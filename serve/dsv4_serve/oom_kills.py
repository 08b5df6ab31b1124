"""How often the kernel's out-of-memory killer struck among the processes that share a process's memory limit."""

from __future__ import annotations

from pathlib import Path

CGROUPS = "sys/fs/cgroup"
COUNTER = "oom_kill"


class OomKills:
    """Counts from now on, in `pid`'s memory cgroup, or on the machine where there is none.

    The place is found once, while the process is alive. A process in its own cgroup namespace sees its cgroup as `/`.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        counting = (place for place in [*_cgroups(pid, root), root / "proc/vmstat"] if _counter(place) is not None)
        self._place = next(counting, None)
        self._before = self._count()

    @property
    def since(self) -> int:
        """How many since this was made; always 0 where the kernel does not count."""
        return self._count() - self._before

    def _count(self) -> int:
        return (_counter(self._place) or 0) if self._place is not None else 0


def _cgroups(pid: int, root: Path) -> list[Path]:
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        # The process has ended already, or this system has no cgroups: the machine's count is left.
        return []
    places = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            places.append(root / CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
        elif not controllers:
            places.append(root / CGROUPS / path.lstrip("/") / "memory.events")
    return places


def _counter(path: Path) -> int | None:
    try:
        fields = dict(line.split() for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return None
    return int(fields[COUNTER]) if COUNTER in fields else None
