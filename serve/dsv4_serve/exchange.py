"""One request on its way through the front: what its log line, its limits and a drain need to know."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from dsv4_serve.openai_errors import ApiError


@dataclass(slots=True, eq=False)
class Exchange:
    """`status` is the one that it ended with; `moved` is when a byte last went either way (perf_counter).

    `streams`: the answer is a stream of events, so that an error can be told within it.
    """

    path: str
    request_id: str
    begun: float = field(default_factory=time.perf_counter)
    moved: float = field(default_factory=time.perf_counter)
    first_byte: float | None = None
    status: int | None = None
    sent: int = 0
    streams: bool = False
    reached_engine: bool = False
    problem: str | None = None
    cut: asyncio.Future[ApiError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def end(self, error: ApiError) -> None:
        """Have the front end it with `error`; the first call wins."""
        if not self.cut.done():
            self.cut.set_result(error)
