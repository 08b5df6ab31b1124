"""The real router in front of four embedded servers: where prefixes go, and what a loss or a restart costs.

One test, because four servers are as many as a small machine bears: workers of a parallel run would start four each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from router.router_fleet import Router, Server
from router.router_load import send, shuffled, under_load

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

FAMILIES, EACH = 6, 5
STREAMS = 3


async def hit_rate(servers: Sequence[Server], policy: str) -> float:
    before = [server.tokens() for server in servers]
    with Router(servers, policy) as router:
        statuses = await send(router.url, shuffled(FAMILIES, EACH, seed=3), salt=policy, at_once=2)
    assert statuses == [200] * FAMILIES * EACH
    gained = [(p - q, c - d) for (p, c), (q, d) in zip((s.tokens() for s in servers), before, strict=True)]
    return sum(cached for _, cached in gained) / sum(prompt for prompt, _ in gained)


async def cache_aware_routing_finds_more_than_round_robin(servers: list[Server]) -> None:
    """A family's first request is cold wherever it goes. Round robin makes it cold on nearly every server."""
    aware, blind = await hit_rate(servers, "cache_aware"), await hit_rate(servers, "round_robin")
    # The 256-token pages of a 600-character prefix: two of three pages, on all but the first request of a family.
    ceiling = (EACH - 1) / EACH
    print(f"share of prompt tokens from the cache: cache-aware {aware:.2f}, round robin {blind:.2f}")
    assert 0.8 * ceiling * 2 / 3 < aware < ceiling
    assert blind < 0.7 * aware


async def a_drained_server_costs_no_request(servers: list[Server]) -> None:
    with Router(servers, "cache_aware") as router:
        async with under_load(router.url, STREAMS) as load:
            await load.answered(3)
            assert await asyncio.to_thread(servers[0].drain) == 0
            await load.answered(6)
    assert set(load.statuses) == {200}
    servers[0].restart()


async def a_killed_server_costs_no_more_than_it_was_running(servers: list[Server]) -> None:
    """Nothing is lost silently: each request ends with its answer, an error status, or a broken stream."""
    with Router(servers, "cache_aware") as router:
        async with under_load(router.url, STREAMS) as load:
            await load.answered(3)
            await asyncio.to_thread(servers[1].kill)
            await load.answered(9)
            reported = len([status for status in load.statuses if status != 200])
            await load.answered(6)
    assert reported <= STREAMS
    assert set(load.statuses[-6:]) == {200}, "the router goes on with the other three"
    servers[1].restart()


async def a_rolling_restart_fails_no_request(servers: list[Server]) -> None:
    with Router(servers, "cache_aware") as router:
        async with under_load(router.url, STREAMS) as load:
            for server in servers:
                await load.answered(2)
                assert await asyncio.to_thread(server.drain) == 0
                await asyncio.to_thread(server.restart)
                # The router looks once a second.
                await asyncio.sleep(1.5)
            await load.answered(4)
    assert set(load.statuses) == {200}, load.statuses


async def test_four_servers_behind_the_router(servers: list[Server]) -> None:
    await cache_aware_routing_finds_more_than_round_robin(servers)
    await a_drained_server_costs_no_request(servers)
    await a_killed_server_costs_no_more_than_it_was_running(servers)
    await a_rolling_restart_fails_no_request(servers)
