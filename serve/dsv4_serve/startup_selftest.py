"""The self-test of a started engine, before it counts as ready, where the profile asks for one."""

from __future__ import annotations

import asyncio
from typing import Any

from dsv4_serve.engines.client import EngineUnreachableError
from dsv4_serve.front import Front
from dsv4_serve.logs import log
from dsv4_serve.models import model_directory
from dsv4_serve.selftest.index_formats import told
from dsv4_serve.selftest.outcome import ProbeFailed
from dsv4_serve.selftest.served import Served, exact, probe_served, sizes
from dsv4_serve.selftest.served_reference import ServedReference

# Of one request: the longest needle on a slow machine.
REQUEST_SECONDS = 600.0


async def run_startup_selftest(front: Front, seconds: float) -> str | None:
    """Every probe that can be asked by HTTP, within `seconds`; what failed, or None. Each outcome goes to the log."""

    async def post(path: str, body: dict[str, Any]) -> Any:
        try:
            return await front.client.post_json(path, body, REQUEST_SECONDS)
        except EngineUnreachableError as error:
            raise ProbeFailed(str(error)) from error

    profile = front.settings.profile
    reference = ServedReference(profile, model_directory(profile.model), sizes())
    served = Served(
        post,
        profile.model.name,
        profile.trained,
        profile.model.context_length,
        reference,
        exact(profile),
        told(profile),
    )
    failed = []
    try:
        async with asyncio.timeout(seconds):
            async for outcome in probe_served(served):
                log.info("self-test: %s", outcome.line)
                failed += [f"{outcome.probe}: {outcome.detail}"] if outcome.status == "failed" else []
    except TimeoutError:
        failed.append(f"not done within {seconds:.0f} s")
    return "; ".join(failed) or None
