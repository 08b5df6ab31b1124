"""Brings pages of a request's prefix back from the tiers below the device.

A page on the host is copied when its request is admitted: that takes less time than a token of the batch. Pages on the
disk are read by another thread while the request waits in the queue; requests behind it may go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import PAGE_TOKENS
from ..pools import CachePools
from ..prefix_key import ROOT, prefix_key
from ..radix import Node, RadixCache
from ..running import Request
from .cache_tiers import CacheTiers, Tier
from .io_thread import Fetch

NOTHING = Fetch((), done=True)
"""Of a request that has nothing on the disk."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A node that was brought back, held by its request, and the tier that it came from."""

    node: Node
    tier: Tier


class PrefixLoader:
    """Used by the engine's thread only."""

    def __init__(self, pools: CachePools, cache: RadixCache, tiers: CacheTiers) -> None:
        self._pools, self._cache, self._tiers = pools, cache, tiers
        self._reading: set[bytes] = set()

    def on_its_way(self, request: Request) -> bool:
        """Whether pages of a waiting request are being read from the disk; the first call begins that."""
        if self._tiers.io is None:
            return False
        if request.fetch is None:
            wanted = self._only_on_disk(request)
            if not self._reading.isdisjoint(wanted):
                # Another request reads them: once it is admitted they are on the device.
                return True
            self._reading.update(wanted)
            request.fetch = self._tiers.io.fetch(wanted) if wanted else NOTHING
        return not request.fetch.done

    def load(self, request: Request, nodes: Sequence[Node]) -> list[Loaded]:
        """Continue a request's matched nodes with pages of lower tiers, as far as they go.

        The last node has a tail. What could not be had is simply not there: the request computes it.
        """
        loaded: list[Loaded] = []
        parent = nodes[-1] if nodes else None
        for number, prefix in enumerate(self._prefixes(request, nodes)):
            start = (len(nodes) + number) * PAGE_TOKENS
            found = self._load(request, parent, request.tokens(start, start + PAGE_TOKENS), prefix)
            if found is None:
                break
            loaded.append(found)
            parent = found.node
        self.abandon(request)
        while loaded and loaded[-1].node.tail is None:
            self._cache.release([loaded.pop().node])
        return loaded

    def abandon(self, request: Request) -> None:
        """Forget what was read for a request: it was loaded, or the request is gone."""
        if request.fetch is not None:
            request.fetch.cancelled = True
            self._reading.difference_update(request.fetch.prefixes)
            request.fetch = None

    def _prefixes(self, request: Request, nodes: Sequence[Node]) -> list[bytes]:
        """The names of the pages behind `nodes`, up to the first that no lower tier has."""
        prefix = nodes[-1].prefix if nodes else ROOT
        found: list[bytes] = []
        fetched = request.fetch.groups if request.fetch is not None else {}
        # At least one token is left to compute, as in `RadixCache.match`.
        for start in range(len(nodes) * PAGE_TOKENS, request.length - PAGE_TOKENS, PAGE_TOKENS):
            prefix = prefix_key(prefix, request.tokens(start, start + PAGE_TOKENS))
            if prefix not in fetched and self._tiers.where(prefix) is None:
                break
            found.append(prefix)
        return found

    def _only_on_disk(self, request: Request) -> list[bytes]:
        if not self._cache.enabled:
            return []
        nodes = self._cache.lookup(request.tokens(0, request.length))
        return [prefix for prefix in self._prefixes(request, nodes) if self._tiers.where(prefix) == "disk"]

    def _load(self, request: Request, parent: Node | None, tokens: list[int], prefix: bytes) -> Loaded | None:
        """Put one page, and its tail if there is one, into the device's pools and the prefix cache."""
        fetched = request.fetch.groups.get(prefix) if request.fetch is not None else None
        if fetched is None and self._tiers.where(prefix) != "host":
            return None
        page, tail = self._cache.take_page(), self._cache.take_tail()
        assert page is not None, "the request's pages were counted before"
        # Making room may have pushed other pages into the host tier, and this one out of it.
        group = fetched or self._tiers.on_host(prefix)
        if group is None or group.tokens != tuple(tokens):
            self._give(page, tail)
            return None
        self._tiers.copier.load(group.regions, page, tail if group.has_tail else None)
        node = self._cache.insert(parent, tokens, page)
        if node.tail is None and group.has_tail:
            node.tail, tail = tail, None
        self._give(None, tail)
        if fetched is None:
            return Loaded(node, "host")
        self._tiers.promote(fetched)
        return Loaded(node, "disk")

    def _give(self, page: int | None, tail: int | None) -> None:
        if page is not None:
            self._pools.pages.give(page)
        if tail is not None:
            self._pools.tails.give(tail)
