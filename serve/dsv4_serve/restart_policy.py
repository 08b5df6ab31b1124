"""When an engine that stopped serving is started again, and when no longer."""

from __future__ import annotations

from dataclasses import dataclass

FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `limit` restarts in a row; an engine that served for `settled_seconds` begins a new row.

    The first restart of a row waits `first_delay` seconds, each later one twice as long, never above `longest_delay`.
    """

    limit: int = 5
    first_delay: float = 1.0
    longest_delay: float = 60.0
    settled_seconds: float = 300.0


class Restarts:
    """Counts restarts in a row and says how long to wait for the next."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.in_row = 0

    def next_delay(self, served_seconds: float) -> float | None:
        """Seconds to wait before the next start of an engine that served for `served_seconds`; None: no more."""
        if served_seconds >= self.policy.settled_seconds:
            self.in_row = 0
        if self.in_row >= self.policy.limit:
            return None
        self.in_row += 1
        return min(self.policy.first_delay * FACTOR ** (self.in_row - 1), self.policy.longest_delay)
