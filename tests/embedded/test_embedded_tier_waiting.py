"""Requests whose pages are still on the disk: read once, left alone by others, freed by those that go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.prefix_key import ROOT, prefix_key
from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.engines.embedded.tiers.io_thread import MAX_WAITING_WRITES
from dsv4_serve.engines.embedded.tiers.page_group import PageGroup
from embedded.engine_harness import complete, run, running_engine
from embedded.harness import prompt
from embedded.tier_harness import EXACT, cached_by_tier, exactly, sample

SMALL = {"max_total_tokens": 1024, "hicache": True}


def test_requests_that_wait_for_one_prefix_read_it_once(tiny_dir: Path, tmp_path: Path) -> None:
    """After a restart several requests share a prefix on the disk: the first one loads it, the others find it."""

    async def scenario() -> None:
        shared = prompt(520, seed=7)
        asks = [shared[:512] + prompt(20 + n, seed=n) for n in range(4)]
        options: dict[str, Any] = {"hicache": True, "host_bytes": 0, "disk_dir": tmp_path}
        async with running_engine(tiny_dir, **options) as engine:
            cold = [exactly(await complete(engine, ask, EXACT)) for ask in asks]
        async with running_engine(tiny_dir, **options) as engine:
            warm = await asyncio.gather(*(complete(engine, ask, EXACT) for ask in asks))
            assert cached_by_tier(engine) == {"gpu": 3 * 512, "host": 0, "disk": 512}
        assert [exactly(outputs) for outputs in warm] == cold

    run(scenario())


@asynccontextmanager
async def held_page(page: Path) -> AsyncIterator[None]:
    """Within it a read of this page file waits: a pipe stands in its place, which gives the bytes at the end.

    One read must wait when it ends, else this waits for one.
    """
    data = page.read_bytes()
    page.unlink()
    os.mkfifo(page)
    yield
    await asyncio.to_thread(page.write_bytes, data)
    page.unlink()
    page.write_bytes(data)


def first_page(directory: Path, ask: list[int]) -> Path:
    return directory / f"{prefix_key(ROOT, ask[:256]).hex()}.page"


async def queued(engine: AsyncEngine, requests: int) -> None:
    while engine.server_info()["queued"] != requests:
        await asyncio.sleep(0.01)


def test_a_request_that_leaves_while_its_pages_are_read_frees_everything(tiny_dir: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {**SMALL, "host_bytes": 0, "disk_dir": tmp_path}
        ask = prompt(600, seed=8)
        async with running_engine(tiny_dir, **options) as engine:
            cold = exactly(await complete(engine, ask, EXACT))
        async with running_engine(tiny_dir, **options) as engine:
            async with held_page(first_page(tmp_path, ask)):
                leaving = asyncio.create_task(complete(engine, ask, EXACT))
                await queued(engine, 1)
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
                await queued(engine, 0)
            assert cached_by_tier(engine)["disk"] == 0
            assert exactly(await complete(engine, ask, EXACT)) == cold

    run(scenario())


def test_others_go_on_while_a_request_waits_for_the_disk(tiny_dir: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {**SMALL, "host_bytes": 0, "disk_dir": tmp_path}
        ask = prompt(600, seed=9)
        async with running_engine(tiny_dir, **options) as engine:
            await complete(engine, ask)
        async with running_engine(tiny_dir, **options) as engine:
            async with held_page(first_page(tmp_path, ask)):
                waiting = asyncio.create_task(complete(engine, ask))
                await queued(engine, 1)
                assert len(await complete(engine, prompt(40))) == 8
                assert not waiting.done()
            assert (await waiting)[0].cached_tokens == 512

    run(scenario())


def test_a_disk_that_cannot_follow_costs_pages_not_time(tiny_dir: Path, tmp_path: Path) -> None:
    """The thread hangs in a read; what fits no more into its queue of writes is not kept, and is counted."""

    async def scenario() -> None:
        options: dict[str, Any] = {"hicache": True, "host_bytes": 0, "disk_dir": tmp_path}
        ask = prompt(300, seed=15)
        async with running_engine(tiny_dir, **options) as engine:
            await complete(engine, ask)
        async with running_engine(tiny_dir, **options) as engine:
            async with held_page(first_page(tmp_path, ask)):
                waiting = asyncio.create_task(complete(engine, ask))
                await queued(engine, 1)
                io = engine.tiers.io
                assert io is not None
                group = PageGroup(bytes(32), bytes(32), (), {})
                written = [io.write(replace(group, prefix=bytes([n % 256, n // 256]) * 16)) for n in range(300)]
                assert sum(written) == MAX_WAITING_WRITES
                await complete(engine, prompt(600, seed=16), SamplingParams(max_tokens=1))
                assert sample(engine, "dsv4_kv_unsaved_pages_total", reason="busy") == 2
            assert (await waiting)[0].cached_tokens == 256

    run(scenario())
