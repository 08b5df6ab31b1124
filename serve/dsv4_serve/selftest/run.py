"""All probes in order, each with its outcome as it comes; one that fails does not keep the others from running."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from inspect import isawaitable

from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import EngineError
from dsv4_serve.errors import UsageError
from dsv4_serve.selftest.answers import answer_probe, needle
from dsv4_serve.selftest.cache_battery import PROMPT_TOKENS, cache_battery
from dsv4_serve.selftest.documents import NEEDLE_TOKENS, PROBE_TOKENS
from dsv4_serve.selftest.index_formats import of_pools
from dsv4_serve.selftest.index_readback import index_readback
from dsv4_serve.selftest.layout_readback import layout_readback
from dsv4_serve.selftest.outcome import NotRun, Outcome, ProbeFailed
from dsv4_serve.selftest.subject import Subject, started
from dsv4_serve.selftest.tier_battery import tier_battery

Probe = Callable[[Subject], str | Awaitable[str]]


def _layout(subject: Subject) -> str:
    """Every format of the engine's index pools, on its device, in a pool of the probe's own."""
    pools = subject.engine.model.pools
    return layout_readback(of_pools(pool.spec for pool in pools.index.values()), subject.engine.options.device)


def _finite(subject: Subject) -> str:
    count = subject.counter("dsv4_nonfinite_logits_total")
    if count:
        raise ProbeFailed(f"{count:.0f} requests of this self-test ended because of a NaN or an infinity")
    return f"{subject.counter('dsv4_generated_tokens_total'):.0f} tokens, all logits finite"


def _probes() -> Iterator[tuple[str, Probe]]:
    yield "layout", _layout
    yield "index", index_readback
    for tokens in PROBE_TOKENS:
        yield f"answer-{tokens}", partial(answer_probe, tokens=tokens)
    for tokens in NEEDLE_TOKENS:
        yield f"needle-{tokens // 1024}k", partial(needle, tokens=tokens)
    for concurrency in PROMPT_TOKENS:
        yield f"cache-{concurrency}", partial(cache_battery, concurrency=concurrency)
    yield "tiers", tier_battery
    # Last: it looks back at every token of the others.
    yield "finite", _finite


PROBES: dict[str, Probe] = dict(_probes())


def chosen(names: Iterable[str]) -> list[str]:
    """The named probes in their order, all without a name. UsageError for an unknown one."""
    wanted = list(names)
    for name in wanted:
        if name not in PROBES:
            raise UsageError(f"--probe {name!r}: accepted is one of {', '.join(PROBES)}")
    return [name for name in PROBES if not wanted or name in wanted]


async def selftest(
    options: EngineOptions,
    trained: bool,
    names: Iterable[str] = (),
    begins: Callable[[str], None] = lambda name: None,
) -> AsyncIterator[Outcome]:
    """Run the named probes, all by default, on one engine of `options`; `begins` is told of each before it runs.

    See `build` for the engine's errors.
    """
    async with started(options, trained) as subject:
        for name in chosen(names):
            begins(name)
            yield await _outcome(name, subject)


async def _outcome(name: str, subject: Subject) -> Outcome:
    begun = time.monotonic()

    def ended(status: str, detail: object) -> Outcome:
        return Outcome(name, status, str(detail), round(time.monotonic() - begun, 3))  # type: ignore[arg-type]

    try:
        found = PROBES[name](subject)
        return ended("passed", await found if isawaitable(found) else found)
    except NotRun as reason:
        return ended("not run", reason)
    except (ProbeFailed, EngineError) as error:
        return ended("failed", error)
