"""Speculative decoding and each tier of the cache leave the trained model's answers exactly as they are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.evaluation.answering import EngineAnswerer, engine_options
from dsv4_serve.evaluation.items import make_items
from dsv4_serve.evaluation.variants import PRODUCT
from dsv4_serve.models import TRAINED_TINY
from embedded.tier_harness import sample

PLAIN = engine_options(TRAINED_TINY, PRODUCT, None, context=2048)
ITEMS = [*make_items("lookup", 7, 2, 110, 3), *make_items("copy", 7, 1, 1, 2)]
SMALL = 1280
"""Tokens of a device on which the second document pushes the first one out."""


def answers(options: EngineOptions, series: str, passes: int = 1, **labels: str) -> tuple[list[str], float]:
    """The replies of the last pass, and how a series stood after it."""

    async def ask() -> tuple[list[str], float]:
        answerer = EngineAnswerer(options)
        async with answerer:
            for _ in range(passes):
                found = await answerer.answers(ITEMS)
            return found, sample(answerer._engine, series, **labels)

    return asyncio.run(ask())


@pytest.mark.slow
def test_neither_drafts_nor_tiers_change_an_answer(tmp_path: Path) -> None:
    plain, _ = answers(PLAIN, "dsv4_cached_tokens_total")
    right = [item.is_right(reply) for item, reply in zip(ITEMS, plain, strict=True)]
    assert sum(right) >= len(ITEMS) - 1, list(zip(ITEMS, plain, strict=True))

    for source in ("ngram", "dspark"):
        drafted, accepted = answers(replace(PLAIN, speculative=source), "dsv4_accepted_tokens_total", source=source)
        assert drafted == plain
        assert accepted > 0

    tiers: dict[str, Any] = {"hicache": True, "disk_dir": tmp_path}
    from_host, hits = answers(
        replace(PLAIN, max_total_tokens=SMALL, **tiers), "dsv4_cached_tokens_total", passes=2, tier="host"
    )
    assert from_host == plain
    assert hits > 0

    both = replace(PLAIN, speculative="dspark", host_bytes=0, **tiers)
    from_disk, hits = answers(both, "dsv4_cached_tokens_total", tier="disk")
    assert from_disk == plain
    assert hits >= 2 * 768
