"""Random work over small tiers with faults on the disk: every answer is the cold one, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.embedded.engine import AsyncEngine
from embedded.engine_harness import complete, run, running_engine
from embedded.harness import prompt
from embedded.tier_harness import EXACT, GROUP, exactly, sample

STEPS = 20
DEVICE_PAGES, HOST_GROUPS, DISK_GROUPS = 5, 3, 6


def family() -> list[list[int]]:
    """Prompts of which several share one page, two pages, or nothing."""
    one, two = prompt(256, seed=1), prompt(512, seed=2)
    tails = [prompt(40 + 60 * n, seed=10 + n) for n in range(6)]
    return [one + tails[0], one + tails[5], one + two[:256] + tails[1], two + tails[2], two + tails[3], prompt(700, 3)]


def truncate(page: Path, dice: random.Random) -> None:
    page.write_bytes(page.read_bytes()[: dice.randrange(page.stat().st_size)])


def flip_a_byte(page: Path, dice: random.Random) -> None:
    data = bytearray(page.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    page.write_bytes(data)


def take_away(page: Path, dice: random.Random) -> None:
    page.unlink()


def swap_for_another(page: Path, dice: random.Random) -> None:
    """The right format, but another prefix's page."""
    page.write_bytes(dice.choice(sorted(page.parent.glob("*.page"))).read_bytes())


def rename_the_format(page: Path, dice: random.Random) -> None:
    page.write_bytes(page.read_bytes().replace(b'"fingerprint":"', b'"fingerprint":"0', 1))


FAULTS: tuple[Callable[[Path, random.Random], None], ...] = (
    truncate,
    flip_a_byte,
    take_away,
    swap_for_another,
    rename_the_format,
)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_no_fault_and_no_order_of_events_changes_an_answer(tiny_dir: Path, tmp_path: Path, policy: str) -> None:
    dice = random.Random(policy)
    asks = family()
    options: dict[str, Any] = {
        "max_total_tokens": DEVICE_PAGES * 256,
        "hicache": True,
        "host_bytes": HOST_GROUPS * GROUP,
        "disk_dir": tmp_path,
        "disk_bytes": DISK_GROUPS * GROUP,
        "write_policy": policy,
    }
    hits, refused = dict.fromkeys(("gpu", "host", "disk"), 0.0), 0.0

    async def ask(engine: AsyncEngine, number: int) -> None:
        assert exactly(await complete(engine, asks[number], EXACT)) == cold[number], f"prompt {number}"

    async def leave(engine: AsyncEngine, number: int) -> None:
        task = asyncio.create_task(complete(engine, asks[number], EXACT))
        await asyncio.sleep(dice.random() * 0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def step(engine: AsyncEngine) -> None:
        chosen = [dice.randrange(len(asks)) for _ in range(dice.choice((1, 1, 2)))]
        await asyncio.gather(*(ask(engine, number) for number in chosen))
        if dice.random() < 0.3:
            await leave(engine, dice.randrange(len(asks)))
        if dice.random() < 0.6:
            await engine.drain_tiers()
            pages = sorted(tmp_path.glob("*.page"))
            assert len(pages) <= DISK_GROUPS
            for page in dice.sample(pages, min(len(pages), dice.randrange(2))):
                dice.choice(FAULTS)(page, dice)
        await engine.check_integrity()

    async def reference() -> list[object]:
        async with running_engine(tiny_dir, prefix_cache=False) as engine:
            return [exactly(await complete(engine, each, EXACT)) for each in asks]

    async def one_run(steps: int) -> None:
        nonlocal refused
        async with running_engine(tiny_dir, **options) as engine:
            for _ in range(steps):
                await step(engine)
            await engine.drain_tiers()
            for tier in hits:
                hits[tier] += sample(engine, "dsv4_cached_tokens_total", tier=tier)
            refused += sample(engine, "dsv4_kv_refused_pages_total")
        index = tmp_path / "index"
        # As a process that was killed while it wrote would leave it.
        index.write_bytes(index.read_bytes()[: -dice.randrange(1, 80)])

    cold = run(reference())
    for _ in range(4):
        run(one_run(STEPS // 4))
    assert all(tokens > 0 for tokens in hits.values()), hits
    assert refused > 0
