"""Rank 0: the port at which the other ranks report, and what their reports mean for this server."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from dsv4_serve.errors import PreflightError
from dsv4_serve.failure import Failure
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.logs import log
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.ranks.messages import Report
from dsv4_serve.ranks.roll import Roll

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 10.0


class Meeting:
    """Rank 0's view of the company."""

    def __init__(self, roll: Roll, lifecycle: Lifecycle, metrics: LauncherMetrics, seconds: float) -> None:
        self._roll, self._lifecycle, self._metrics, self._seconds = roll, lifecycle, metrics, seconds
        self._agreed = asyncio.Event()

    async def agree(self) -> None:
        """PreflightError when a rank differs, or when one has not come after the seconds of a start."""
        loop = asyncio.get_running_loop()
        began = said = loop.time()
        while self._roll.missing and not self._roll.disagreements:
            self._lifecycle.explain(f"waiting for {_ranks(self._roll.missing)}")
            if loop.time() - began > self._seconds:
                raise PreflightError(f"{_ranks(self._roll.missing)} did not come within {self._seconds:g} s")
            if loop.time() - said > PROGRESS_SECONDS:
                said = loop.time()
                log.info("waiting for %s (%.0f s)", _ranks(self._roll.missing), said - began)
            await asyncio.sleep(POLL_SECONDS)
        if self._roll.disagreements:
            # The others hear it with the answer to their next report, within a second or two.
            await asyncio.sleep(2.0)
            raise PreflightError(f"the machines differ: {'; '.join(self._roll.disagreements)}")
        log.info("all ranks are there and alike: %s", ", ".join(self._hosts()))
        self._agreed.set()

    async def lost(self) -> Failure:
        await self._agreed.wait()
        while True:
            for rank, member in self._roll.members.items():
                self._metrics.rank_up.labels(rank=str(rank)).set(member.report.state == "ready")
            reason = self._roll.lost
            if reason is not None:
                return Failure("rank_lost", reason)
            await asyncio.sleep(POLL_SECONDS)

    @property
    def unready(self) -> str | None:
        return self._roll.unready

    def metrics(self) -> Mapping[int, str]:
        return self._roll.metrics()

    def _hosts(self) -> list[str]:
        return [f"{rank} on {member.report.host}" for rank, member in sorted(self._roll.members.items())]


def meeting_app(roll: Roll, lifecycle: Lifecycle, key: bytes | None) -> FastAPI:
    """`POST /ranks/{rank}`: a report, answered with the verdict. With `key`, only who bears it is heard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/ranks/{rank}")
    async def report(rank: int, request: Request) -> JSONResponse:
        offered = request.headers.get("authorization", "").encode()
        if key is not None and not hmac.compare_digest(offered, b"Bearer " + key):
            return JSONResponse({"error": "DSV4_RANKS_KEY_FILE: the key is missing or another one"}, 401)
        try:
            told = Report.model_validate_json(await request.body())
        except ValidationError as error:
            return JSONResponse({"error": f"not a report: {error.errors(include_url=False, include_input=False)}"}, 422)
        return JSONResponse(roll.take(rank, told, lifecycle.state).model_dump(mode="json"))

    return app


def _ranks(missing: list[int]) -> str:
    names = ", ".join(map(str, missing))
    return f"rank {names}" if len(missing) == 1 else f"ranks {names}"
