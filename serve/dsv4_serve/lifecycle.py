"""Where a server stands between its start and its end: phases with seconds, ready or why not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["starting", "ready", "unhealthy", "restarting", "leaving", "draining", "dead"]
ENDING = ("leaving", "draining", "dead")


@dataclass(frozen=True, slots=True)
class Phase:
    """A finished phase of start-up. The engine's own phases lie within the launcher's `engine_boot`."""

    name: str
    seconds: float
    source: Literal["launcher", "engine"]


class Lifecycle:
    """One server's state. `reason` says why it is not ready; leaving, draining and dead only follow each other.

    A leaving server says that it is not ready and still takes requests: who sends them has yet to hear of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._started = clock()
        self.state: State = "starting"
        self.reason = "the engine has not been started yet"
        self.current: str | None = None
        self._served_since: float | None = None
        self.started_once = False
        self._own: list[Phase] = []
        self._engine: dict[str, float] = {}

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def takes_requests(self) -> bool:
        return self.state in ("ready", "leaving")

    @property
    def uptime(self) -> float:
        return self._clock() - self._started

    @property
    def served_seconds(self) -> float:
        """Since the engine last became ready; 0 when it never did."""
        return 0.0 if self._served_since is None else self._clock() - self._served_since

    @property
    def seconds_in_phase(self) -> float:
        return self._clock() - self._begun

    def begin(self, phase: str, reason: str) -> None:
        """Finish the running phase, unless it is this one, and begin it; `reason` is what readyz says meanwhile."""
        if phase != self.current:
            self._finish()
            self.current, self._begun = phase, self._clock()
        self.explain(reason)

    def explain(self, reason: str) -> None:
        """What readyz says from now on, unless the server is on its way out: then that is the reason."""
        if self.state not in ENDING:
            self.reason = reason

    def engine_phases(self, phases: Mapping[str, float]) -> None:
        self._engine = dict(phases)

    def set_ready(self) -> None:
        self._finish()
        self.started_once = True
        self._move("ready", "")
        self._served_since = self._clock()

    def set_unhealthy(self, reason: str) -> None:
        if self.state in ("ready", "unhealthy"):
            self._move("unhealthy", reason)

    def set_healthy(self) -> None:
        if self.state == "unhealthy":
            self._move("ready", "")

    def lose_engine(self, reason: str) -> None:
        """The engine takes no requests any more: none is sent to it, and whoever asks is told why.

        A server that leaves does not start another one, so that it drains from now on.
        """
        if self.state == "leaving":
            self._move("draining", f"the server is shutting down, and {reason}")
        else:
            self.set_unhealthy(reason)

    def set_restarting(self, reason: str) -> None:
        """The engine ended and another will be started; its phases begin anew."""
        self._finish()
        self._own, self._engine, self._served_since = [], {}, None
        self._move("restarting", reason)

    def set_leaving(self) -> None:
        self._move("leaving", "the server is about to shut down; requests are still taken")

    def set_draining(self) -> None:
        self._move("draining", "the server is shutting down; running requests finish, new ones are refused")

    def set_dead(self, reason: str) -> None:
        self._move("dead", reason)

    def phases(self) -> list[Phase]:
        """Finished phases: the launcher's, in order, then the engine's."""
        return self._own + [Phase(name, seconds, "engine") for name, seconds in self._engine.items()]

    def describe(self) -> dict[str, Any]:
        """The answer of /startupz."""
        finished = [{"name": p.name, "seconds": round(p.seconds, 3), "source": p.source} for p in self.phases()]
        running = {"name": self.current, "seconds": round(self.seconds_in_phase, 3)} if self.current else None
        return {
            "started": self.started_once,
            "state": self.state,
            "running_phase": running,
            "phases": finished,
        }

    def _finish(self) -> None:
        if self.current is not None:
            self._own.append(Phase(self.current, self.seconds_in_phase, "launcher"))
            self.current = None

    def _move(self, state: State, reason: str) -> None:
        if self.state in ENDING and (state not in ENDING or ENDING.index(state) < ENDING.index(self.state)):
            return
        self.state, self.reason = state, reason
