"""Whether every page, tail and slot has exactly one owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .pools import CachePools
from .radix import RadixCache
from .running import Request


def require_integrity(pools: CachePools, cache: RadixCache, running: Sequence[Request]) -> None:
    """Raise RuntimeError unless what is out of the free lists is what the cache and the running requests own."""
    private = [p for r in running for p in r.pages[len(r.nodes) :]]
    _same("pages", [*cache.pages(), *private], pools.pages.outstanding())
    _same("tails", cache.tails(), pools.tails.outstanding())
    _same("slots", [r.slot for r in running], pools.slots.outstanding())
    held = sum(node.users for node in cache.nodes())
    if held != sum(len(r.nodes) for r in running):
        raise RuntimeError(f"the prefix cache counts {held} uses, the running requests hold another number")
    unheld = sum(node.users == 0 for node in cache.nodes())
    if unheld != cache.evictable_pages:
        raise RuntimeError(f"{unheld} pages are held by no request, the prefix cache counts another number")


def _same(what: str, owned: Iterable[int], out: frozenset[int]) -> None:
    owned = sorted(owned)
    if owned != sorted(out):
        raise RuntimeError(f"{what}: owned {owned}, out of the free list {sorted(out)}")
