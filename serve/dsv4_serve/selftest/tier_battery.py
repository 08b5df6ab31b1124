"""One prompt cold, then from the device, from the host, and in a new engine from the disk: the same to the last bit."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dsv4_serve.engines.embedded.config import PAGE_TOKENS
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import TokenOutput
from dsv4_serve.selftest.cache_battery import ANSWER_TOKENS, random_prompt, require_same
from dsv4_serve.selftest.outcome import ProbeFailed
from dsv4_serve.selftest.subject import Subject, started

WHOLE_PAGES = 3
PROMPT_TOKENS = WHOLE_PAGES * PAGE_TOKENS + 40
"""Long enough for the index to choose among entries that come back from a tier."""
DEVICE_TOKENS = 4 * PAGE_TOKENS
"""The prompt and its answer, and no more: one other prompt pushes them out."""


async def tier_battery(subject: Subject) -> str:
    """Raises ProbeFailed for the first answer that differs from the cold one, or does not come from its tier."""
    ask, other = random_prompt(PROMPT_TOKENS, 31), random_prompt(PROMPT_TOKENS, 32)
    with tempfile.TemporaryDirectory(prefix="dsv4-selftest-") as folder:
        options = _with_tiers(subject.engine.options, Path(folder))
        async with started(options, subject.trained) as first:
            cold = await first.complete(ask, ANSWER_TOKENS)
            await _replay(first, "gpu", ask, cold)
            await first.complete(other, 1)
            await _replay(first, "host", ask, cold)
            await first.engine.check_integrity()
        async with started(options, subject.trained) as second:
            await _replay(second, "disk", ask, cold)
            await subject.complete(ask, 1)
            _require_same_bytes(_pages(subject, ask), _pages(second, ask))
            await second.engine.check_integrity()
    return f"{PROMPT_TOKENS} tokens: cold, from the device, from the host, and after a restart from the disk"


def _with_tiers(options: EngineOptions, folder: Path) -> EngineOptions:
    return replace(
        options, max_total_tokens=DEVICE_TOKENS, kv_bytes=None, hicache=True, host_bytes=None, disk_dir=folder
    )


async def _replay(subject: Subject, tier: str, ask: Sequence[int], cold: Sequence[TokenOutput]) -> None:
    name = f'dsv4_cached_tokens_total{{tier="{tier}"}}'
    before = subject.counter("dsv4_cached_tokens_total", tier=tier)
    found = await subject.complete(ask, ANSWER_TOKENS)
    taken, wanted = subject.counter("dsv4_cached_tokens_total", tier=tier) - before, WHOLE_PAGES * PAGE_TOKENS
    if taken != wanted:
        raise ProbeFailed(f"replay from {tier}: {name} grew by {taken:.0f} tokens; expected {wanted}")
    require_same(f"replay from {tier}", [cold], [found])


def _pages(subject: Subject, ask: Sequence[int]) -> list[dict[str, torch.Tensor]]:
    """The bytes by region of every page of the prompt that an engine, which is idle, holds."""
    copier = subject.engine.tiers.copier
    return [copier.save(node.page, node.tail) for node in subject.engine.cache.lookup(ask)]


def _require_same_bytes(computed: list[dict[str, torch.Tensor]], loaded: list[dict[str, torch.Tensor]]) -> None:
    """Pages that were computed here and pages from the disk: answers may hide what bytes do not."""
    for number, (wanted, found) in enumerate(zip(computed, loaded, strict=True)):
        for region in wanted:
            differ = int((wanted[region] != found[region]).sum())
            if differ:
                raise ProbeFailed(f"page {number} from disk: {differ} bytes of {region} are not those computed here")
