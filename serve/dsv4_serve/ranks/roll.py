"""What rank 0 knows of the other ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from dsv4_serve.ranks.identity import Identity, differences
from dsv4_serve.ranks.messages import Answer, Report

LOST_SECONDS = 15.0
"""A rank that has not reported for so long is lost: many times what a loaded machine takes for one report."""


@dataclass(slots=True)
class Member:
    """The last report of a rank, and when it came."""

    report: Report
    heard: float


class Roll:
    """Ranks 1 to `count` - 1 by their reports. `mine` is the identity of rank 0."""

    def __init__(self, count: int, mine: Identity, clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._mine, self._clock = count, mine, clock
        self.members: dict[int, Member] = {}
        self._refused: dict[int, list[str]] = {}

    def take(self, rank: int, report: Report, state: str) -> Answer:
        """Note a report; the answer says whether all are there and alike. `state` is rank 0's own."""
        if not 0 < rank < self._count:
            return Answer(verdict="refused", reasons=(f"rank {rank}: accepted is 1 to {self._count - 1}",), state=state)
        known = self.members.get(rank)
        if known is not None and known.report.token != report.token and not self._gone(known):
            taken = f"rank {rank} is already there, on {known.report.host}: DSV4_NODE_RANK of {report.host} is wrong"
            return Answer(verdict="refused", reasons=(taken,), state=state)
        self.members[rank] = Member(report, self._clock())
        found = differences(self._mine, report.identity, f"rank {rank} ({report.host})")
        self._refused.pop(rank, None)
        if found:
            self._refused[rank] = found
        return self._answer(state)

    @property
    def missing(self) -> list[int]:
        """Ranks that are not there: never heard, or heard and gone."""
        ranks = range(1, self._count)
        return [rank for rank in ranks if rank not in self.members or self._gone(self.members[rank])]

    @property
    def disagreements(self) -> list[str]:
        """Every difference of every rank that was heard."""
        return [told for rank in sorted(self._refused) for told in self._refused[rank]]

    @property
    def lost(self) -> str | None:
        """The first rank that was heard and is no more, with the reason."""
        for rank, member in sorted(self.members.items()):
            name = f"rank {rank} ({member.report.host})"
            if member.report.state == "dead":
                return f"{name} ended: {member.report.reason}"
            if self._age(member) > LOST_SECONDS:
                return f"{name} has not reported for {self._age(member):.0f} s"
        return None

    @property
    def unready(self) -> str | None:
        """The first rank that is missing or says that it is not ready."""
        if self.missing:
            return f"rank {self.missing[0]} has not come"
        for rank, member in sorted(self.members.items()):
            if member.report.state != "ready":
                told = member.report.reason or member.report.state
                return f"rank {rank} ({member.report.host}) is not ready: {told}"
        return None

    def metrics(self) -> dict[int, str]:
        """The engine's exposition of each rank that reports one."""
        return {rank: member.report.metrics for rank, member in sorted(self.members.items()) if member.report.metrics}

    def _answer(self, state: str) -> Answer:
        if self.disagreements:
            return Answer(verdict="refused", reasons=tuple(self.disagreements), state=state)
        return Answer(verdict="waiting" if self.missing else "agreed", state=state)

    def _gone(self, member: Member) -> bool:
        return member.report.state == "dead" or self._age(member) > LOST_SECONDS

    def _age(self, member: Member) -> float:
        return self._clock() - member.heard
