"""The machines that serve one model together, as seen from one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from dsv4_serve.failure import Failure


class Company(Protocol):
    """What a launcher needs of its fellows."""

    async def agree(self) -> None:
        """Wait until every rank is there and alike; PreflightError names what differs."""
        ...

    async def lost(self) -> Failure:
        """Returns once a fellow is gone: an engine over several machines cannot go on without one."""
        ...

    @property
    def unready(self) -> str | None:
        """Why the company as a whole cannot serve now, None when it can."""
        ...

    def metrics(self) -> Mapping[int, str]:
        """The engine's exposition by rank, of the other ranks that report one."""
        ...


class Alone:
    """A single machine: nobody to wait for, nobody to lose."""

    unready: str | None = None

    async def agree(self) -> None:
        return

    async def lost(self) -> Failure:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets this event")

    def metrics(self) -> Mapping[int, str]:
        return {}
