"""A rank above 0: reports to rank 0 once a second, and ends when rank 0 is gone."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping

import httpx
from pydantic import ValidationError

from dsv4_serve.errors import PreflightError
from dsv4_serve.failure import Failure
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.logs import log
from dsv4_serve.ranks.identity import Identity
from dsv4_serve.ranks.messages import Answer, Report
from dsv4_serve.ranks.roll import LOST_SECONDS

REPORT_SECONDS = 1.0
PROGRESS_SECONDS = 10.0


class Membership:
    """One rank's view of the company. `metrics` gives the engine's exposition, for rank 0 to merge."""

    unready: str | None = None

    def __init__(
        self,
        rank: int,
        url: str,
        identity: Identity,
        lifecycle: Lifecycle,
        metrics: Callable[[], Awaitable[str]],
        key: bytes | None,
        seconds: float,
    ) -> None:
        self._rank, self._url, self._identity = rank, f"{url}/ranks/{rank}", dict(identity)
        self._lifecycle, self._own_metrics, self._seconds = lifecycle, metrics, seconds
        self._token = secrets.token_hex(16)
        self._agreed = asyncio.Event()
        headers = {} if key is None else {"authorization": f"Bearer {key.decode()}"}
        self._http = httpx.AsyncClient(timeout=LOST_SECONDS / 3, trust_env=False, headers=headers)

    async def agree(self) -> None:
        """PreflightError when this machine differs from rank 0, or rank 0 cannot be reached in the time of a start."""
        loop = asyncio.get_running_loop()
        began = said = loop.time()
        while True:
            answer, why = await self._report("")
            if answer is not None and answer.verdict == "refused":
                raise PreflightError(f"rank 0 refuses this machine: {'; '.join(answer.reasons)}")
            if answer is not None and answer.verdict == "agreed":
                self._agreed.set()
                return
            waiting = f"waiting for rank 0: {why}" if answer is None else "waiting for the other ranks"
            self._lifecycle.explain(waiting)
            if loop.time() - began > self._seconds:
                raise PreflightError(f"{waiting}; given up after {self._seconds:g} s")
            if loop.time() - said > PROGRESS_SECONDS:
                said = loop.time()
                log.info("%s (%.0f s)", waiting, said - began)
            await asyncio.sleep(REPORT_SECONDS)

    async def lost(self) -> Failure:
        """Report for ever; returns once rank 0 is gone, with how it was last heard."""
        await self._agreed.wait()
        loop = asyncio.get_running_loop()
        heard, state = loop.time(), "starting"
        while True:
            answer, why = await self._report(await self._own_metrics())
            if answer is not None:
                heard, state = loop.time(), answer.state
                if answer.verdict == "refused":
                    return Failure("rank_lost", f"rank 0 refuses this machine: {'; '.join(answer.reasons)}")
                if answer.state == "dead":
                    return Failure("rank_lost", "rank 0 ended: its log says why")
            elif loop.time() - heard > LOST_SECONDS:
                return Failure("rank_lost", f"rank 0 has not answered for {LOST_SECONDS:g} s (it was {state}): {why}")
            await asyncio.sleep(REPORT_SECONDS)

    async def leave(self, reason: str) -> None:
        """Tell rank 0 that this rank ends, so that it need not wait for the silence."""
        await self._report("", state="dead", reason=reason)
        await self._http.aclose()

    def metrics(self) -> Mapping[int, str]:
        return {}

    async def _report(self, metrics: str, state: str | None = None, reason: str = "") -> tuple[Answer | None, str]:
        """(the answer, "") or (None, why there is none)."""
        report = Report(
            token=self._token,
            host=socket.gethostname(),
            identity=self._identity,
            state=state or self._lifecycle.state,
            reason=(reason or self._lifecycle.reason)[:2000],
            metrics=metrics,
        )
        try:
            answer = await self._http.post(self._url, content=report.model_dump_json())
            if answer.status_code == 401:
                raise PreflightError("rank 0 does not know this key: DSV4_RANKS_KEY_FILE must hold the same everywhere")
            answer.raise_for_status()
            return Answer.model_validate_json(answer.content), ""
        except (httpx.HTTPError, ValidationError) as error:
            return None, str(error) or type(error).__name__
