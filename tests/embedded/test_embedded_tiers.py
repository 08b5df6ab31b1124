"""Host and disk tiers: bit-identical answers from each, hit rates by tier, capacities, a disk in trouble."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv4_serve.engines.embedded.options import EngineOptions, OptionError
from dsv4_serve.engines.embedded.prefix_key import ROOT, prefix_key
from dsv4_serve.engines.embedded.request import EngineError, SamplingParams
from dsv4_serve.engines.embedded.v4_pools import V4Pools
from embedded.engine_harness import GREEDY, LogitsTap, complete, run, running_engine, tokens
from embedded.harness import prompt
from embedded.tier_harness import EXACT, GROUP, cached_by_tier, exactly, flood, sample

SMALL = {"max_total_tokens": 1024, "hicache": True}
"""Four pages on the device: one other prompt pushes everything out."""


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_cold_device_host_and_disk_are_bit_identical(each_tiny_dir: Path, tmp_path: Path, policy: Any) -> None:
    """The disk is read by a new engine over new pools, as after a restart."""
    ask = prompt(780, seed=11)
    options: dict[str, Any] = {**SMALL, "disk_dir": tmp_path / "disk", "write_policy": policy}

    async def first() -> list[tuple[list[int], torch.Tensor]]:
        async with running_engine(each_tiny_dir, **options) as engine:
            tap, runs = LogitsTap(engine), []
            for before in (None, None, flood(0, 1000)):
                if before is not None:
                    await complete(engine, before, SamplingParams(max_tokens=1))
                    tap.take()
                outputs = await complete(engine, ask)
                runs.append((tokens(outputs), tap.take()[-8:]))
            assert cached_by_tier(engine) == {"gpu": 768, "host": 768, "disk": 0}
            return runs

    async def second() -> tuple[list[int], torch.Tensor]:
        async with running_engine(each_tiny_dir, **options) as engine:
            tap = LogitsTap(engine)
            outputs = await complete(engine, ask)
            assert cached_by_tier(engine) == {"gpu": 0, "host": 0, "disk": 768}
            assert outputs[0].cached_tokens == 768
            found = tokens(outputs), tap.take()[-8:]
            # What came from the disk is on the host as well.
            await complete(engine, flood(1, 1000), SamplingParams(max_tokens=1))
            again = await complete(engine, ask)
            assert cached_by_tier(engine) == {"gpu": 0, "host": 768, "disk": 768}
            assert tokens(again) == found[0]
            return found

    (cold_tokens, cold), *others = [*run(first()), run(second())]
    for found, logits in others:
        assert found == cold_tokens
        assert torch.equal(logits, cold)


@pytest.mark.parametrize(("indexer_dtype", "kv_dtype"), [("fp8", "v4"), ("bf16", "bf16")])
def test_every_format_comes_back_whole(tiny_dir: Path, tmp_path: Path, indexer_dtype: str, kv_dtype: str) -> None:
    options: dict[str, Any] = {**SMALL, "disk_dir": tmp_path, "indexer_dtype": indexer_dtype, "kv_dtype": kv_dtype}

    async def scenario() -> None:
        answers = []
        for tier in ("gpu", "disk"):
            async with running_engine(tiny_dir, **options) as engine:
                answers.append(exactly(await complete(engine, prompt(600, seed=2), EXACT)))
                assert cached_by_tier(engine)["disk"] == (512 if tier == "disk" else 0)
        assert answers[0] == answers[1]

    run(scenario())


def test_hits_by_tier_and_by_length_are_exact(each_tiny_dir: Path, tmp_path: Path) -> None:
    """Disjoint prompts count zero everywhere; a repeated one exactly its pages, in the tier where they were."""

    async def scenario() -> None:
        async with running_engine(each_tiny_dir, **SMALL, disk_dir=tmp_path) as engine:
            one = SamplingParams(max_tokens=1)
            await complete(engine, prompt(700, seed=1), one)
            await complete(engine, prompt(600, seed=2), one)
            assert cached_by_tier(engine) == {"gpu": 0, "host": 0, "disk": 0}
            # The second pushed the first one's last page out; what is left of it is on the device.
            outputs = await complete(engine, prompt(700, seed=1), one)
            assert outputs[0].cached_tokens == 512
            counts = cached_by_tier(engine)
            assert sum(counts.values()) == 512
            assert counts["disk"] == 0
            by_length = "dsv4_cached_tokens_by_length_total"
            for tier, count in counts.items():
                assert sample(engine, by_length, tier=tier, length="1024") == count
                assert sample(engine, by_length, tier=tier) == count
            assert sample(engine, "dsv4_prompt_tokens_total") == 2000

    run(scenario())


def test_a_hit_continues_where_the_device_ends(tiny_dir: Path) -> None:
    """Of one prompt some pages are on the device and the others on the host: each is counted where it was."""

    async def scenario() -> None:
        shared = prompt(300, seed=3)
        first, second = (shared[:256] + prompt(400, seed=seed) for seed in (4, 5))
        async with running_engine(tiny_dir, **SMALL) as engine:
            cold = [exactly(await complete(engine, ask, EXACT)) for ask in (first, second)]
            await complete(engine, second[:256] + prompt(500, seed=6), EXACT)
            before = cached_by_tier(engine)
            warm = exactly(await complete(engine, first, EXACT))
            after = cached_by_tier(engine)
            assert warm == cold[0]
            assert {tier: after[tier] - before[tier] for tier in after} == {"gpu": 256, "host": 256, "disk": 0}

    run(scenario())


def test_capacity_used_and_evictable_by_tier(tiny_dir: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        sizes = {"host_bytes": 3 * GROUP, "disk_bytes": 5 * GROUP}
        async with running_engine(tiny_dir, **SMALL, **sizes, disk_dir=tmp_path) as engine:
            for number in range(3):
                await complete(engine, flood(number, 600), SamplingParams(max_tokens=1))
            await engine.drain_tiers()
            for tier, pages, used in (("host", 3, 3), ("disk", 5, 5)):
                place = {"region": "main", "tier": tier}
                assert sample(engine, "dsv4_kv_capacity_tokens", **place) == pages * 256
                assert sample(engine, "dsv4_kv_used_tokens", **place) == used * 256
                assert sample(engine, "dsv4_kv_evictable_tokens", **place) == used * 256
                assert sample(engine, "dsv4_kv_evicted_pages_total", tier=tier) == 6 - pages
                assert sample(engine, "dsv4_kv_stored_pages_total", tier=tier) == 6
                scale = {"region": "index_scale", "tier": tier}
                assert sample(engine, "dsv4_kv_capacity_bytes", **scale) == pages * 64 * 4 * 2
            info: Any = engine.server_info()
            assert info["tiers"]["host"] == {"limit_bytes": 3 * GROUP, "tokens": 768, "used_tokens": 768}
            assert info["tiers"]["disk"]["used_tokens"] == 1280
            assert sum(path.stat().st_size for path in tmp_path.glob("*.page")) <= 5 * GROUP

    run(scenario())


def test_write_back_copies_nothing_until_it_must(tiny_dir: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {**SMALL, "disk_dir": tmp_path, "write_policy": "write_back", "host_bytes": 2 * GROUP}
        async with running_engine(tiny_dir, **options) as engine:
            await complete(engine, prompt(600, seed=1), GREEDY)
            stored = "dsv4_kv_stored_pages_total"
            assert (sample(engine, stored, tier="host"), sample(engine, stored, tier="disk")) == (0, 0)
            await complete(engine, flood(0, 1000), SamplingParams(max_tokens=1))
            assert sample(engine, stored, tier="host") == 2
            await complete(engine, flood(1, 1000), SamplingParams(max_tokens=1))
            await engine.drain_tiers()
            assert sample(engine, "dsv4_kv_evicted_pages_total", tier="host") == sample(engine, stored, tier="disk") > 0
        assert len(list(tmp_path.glob("*.page"))) > sample(engine, stored, tier="disk") - 1

    run(scenario())


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_a_page_with_a_nan_is_not_kept_in_any_tier(tiny_dir: Path, tmp_path: Path, policy: Any) -> None:
    """As after a fault of a device: the request fails, and the next one with its prefix is right, restart or not."""

    async def scenario() -> None:
        options: dict[str, Any] = {**SMALL, "disk_dir": tmp_path, "write_policy": policy}
        ask = prompt(600, seed=17)
        async with running_engine(tiny_dir, **options) as engine:
            await complete(engine, prompt(600, seed=18), EXACT)
            forward = engine.model.forward

            def spoiled(batch: Any) -> torch.Tensor:
                logits = forward(batch)
                page = batch.segments[0].pages[:1]
                pools = engine.model.pools
                assert isinstance(pools, V4Pools)
                for pages in pools.entries.values():
                    pages.write(page * pages.rows_per_page, torch.full((1, 512), torch.nan))
                return logits * float("nan")

            engine.model.forward = spoiled  # type: ignore[method-assign, assignment]
            with pytest.raises(EngineError, match="non-finite logits"):
                await complete(engine, ask, EXACT)
            engine.model.forward = forward  # type: ignore[method-assign]
            right = exactly(await complete(engine, ask, EXACT))
            assert sum(cached_by_tier(engine).values()) == 0
        async with running_engine(tiny_dir, **options) as engine:
            assert exactly(await complete(engine, ask, EXACT)) == right
            assert cached_by_tier(engine)["disk"] == 512
        async with running_engine(tiny_dir, prefix_cache=False) as engine:
            assert exactly(await complete(engine, ask, EXACT)) == right

    run(scenario())


def test_a_full_disk_warns_and_the_engine_goes_on(
    tiny_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel's full device stands where the first page's file would be written."""
    ask = prompt(600, seed=12)

    async def scenario() -> None:
        async with running_engine(tiny_dir, **SMALL, host_bytes=0, disk_dir=tmp_path) as engine:
            first = tmp_path / f"{prefix_key(ROOT, ask[:256]).hex()}.new"
            first.symlink_to("/dev/full")
            await complete(engine, ask)
            await engine.drain_tiers()
            assert sample(engine, "dsv4_kv_unsaved_pages_total", reason="full") == 1
            assert sample(engine, "dsv4_kv_stored_pages_total", tier="disk") == 1
            assert engine.dead() is None

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert "No space left on device" in caplog.text


def test_a_failing_disk_thread_switches_the_tier_off_not_the_engine(
    tiny_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir, **SMALL, host_bytes=0, disk_dir=tmp_path) as engine:
            assert engine.tiers.io is not None

            def broken(*_: object) -> None:
                raise ZeroDivisionError("made to fail")

            engine.tiers.io._disk.put = broken  # type: ignore[method-assign, assignment]
            await complete(engine, prompt(600, seed=13))
            await engine.drain_tiers()
            assert len(await complete(engine, prompt(300, seed=14))) == 8
            assert sample(engine, "dsv4_kv_unsaved_pages_total", reason="busy") >= 1

    run(scenario())
    assert "the cache is off until the next start" in caplog.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host_bytes": 1000}, "host_bytes=1000: accepted is [0-9]+ .one page group. or more"),
        ({"disk_bytes": 1000, "disk_dir": "disk"}, "disk_bytes=1000: accepted is [0-9]+ .one page group. or more"),
    ],
)
def test_a_tier_below_one_page_group_is_refused(
    tiny_dir: Path, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    if "disk_dir" in options:
        options = options | {"disk_dir": tmp_path / "disk"}

    async def scenario() -> None:
        async with running_engine(tiny_dir, **SMALL, **options):
            pass

    with pytest.raises(OptionError, match=says):
        run(scenario())


def test_tiers_need_a_prefix_cache() -> None:
    with pytest.raises(OptionError, match="hicache=True: accepted is False without a prefix cache"):
        EngineOptions(Path("m"), "m", hicache=True, prefix_cache=False)
