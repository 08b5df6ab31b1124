"""Joins the company that a profile asks for: alone, as rank 0, or as one of the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from dsv4_serve.errors import PreflightError
from dsv4_serve.front import Front
from dsv4_serve.listeners import Listener, bind
from dsv4_serve.logs import log
from dsv4_serve.metrics.exposition import exposition
from dsv4_serve.metrics.scrape import own_engine_families
from dsv4_serve.nodes import Nodes
from dsv4_serve.ranks.company import Alone, Company
from dsv4_serve.ranks.identity import identity
from dsv4_serve.ranks.meeting import Meeting, meeting_app
from dsv4_serve.ranks.member import Membership
from dsv4_serve.ranks.roll import Roll


@asynccontextmanager
async def company(front: Front, model_dir: Path) -> AsyncIterator[Company]:
    """The company of this launcher, for as long as the block lasts. PreflightError: the port or the key is wrong."""
    settings = front.settings
    nodes = Nodes.of(settings.profile.toggles())
    if nodes.count == 1:
        yield Alone()
        return
    assert nodes.address is not None, "the plan refuses several machines without an address"
    host, port = nodes.address.rpartition(":")[0], settings.resolved.count("DSV4_RANKS_PORT")
    key = _key(settings.resolved["DSV4_RANKS_KEY_FILE"])
    if key is None:
        log.warning("ranks meet at %s:%d without a key; DSV4_RANKS_KEY_FILE sets one", host, port)
    mine = identity(settings, front.adapter.environment(settings.profile), model_dir)
    if nodes.rank == 0:
        roll = Roll(nodes.count, mine)
        listener = Listener(meeting_app(roll, front.lifecycle, key), bind(host, port, "DSV4_RANKS_PORT"))
        try:
            yield Meeting(roll, front.lifecycle, front.metrics, settings.startup_seconds)
        finally:
            await listener.close()
        return

    async def text() -> str:
        return exposition(CollectorRegistry(), await own_engine_families(front)).decode()

    url = f"http://{host}:{port}"
    member = Membership(nodes.rank, url, mine, front.lifecycle, text, key, settings.startup_seconds)
    try:
        yield member
    finally:
        await member.leave(front.lifecycle.reason or "its launcher was stopped")


def _key(path: object) -> bytes | None:
    if path is None:
        return None
    try:
        key = Path(str(path)).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PreflightError(f"DSV4_RANKS_KEY_FILE={path}: cannot be read: {error}") from error
    if not key or not key.isascii() or " " in key:
        raise PreflightError(f"DSV4_RANKS_KEY_FILE={path}: accepted is one line of ASCII without spaces")
    return key.encode()
