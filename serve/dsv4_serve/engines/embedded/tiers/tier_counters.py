"""What happens to page groups below the device, as counters by tier and reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter

from .page_file import Reason

Unsaved = Literal["full", "unwritable", "busy"]
"""Why a page group was not kept: no space left, another error of the file system, too many wait to be written."""


class TierCounters:
    """Counters of the tiers named; a tier that is not there has no series."""

    def __init__(self, registry: CollectorRegistry, tiers: Sequence[str]) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ("tier", *labels), registry=registry)

        self._stored = counter("dsv4_kv_stored_pages", "page groups that a tier took in")
        self._evicted = counter("dsv4_kv_evicted_pages", "page groups that a tier gave up for others")
        self._refused = counter("dsv4_kv_refused_pages", "page groups that were there and not used", "reason")
        self._unsaved = counter("dsv4_kv_unsaved_pages", "page groups that a tier could not take in", "reason")
        # A series that begins with its first increment hides it from every rate.
        for tier in tiers:
            self._stored.labels(tier)
            self._evicted.labels(tier)
        if "disk" in tiers:
            for reason in get_args(Reason):
                self._refused.labels("disk", reason)
            for why in get_args(Unsaved):
                self._unsaved.labels("disk", why)

    def stored(self, tier: str) -> None:
        """A tier took a group in."""
        self._stored.labels(tier).inc()

    def evicted(self, tier: str) -> None:
        """A tier gave a group up."""
        self._evicted.labels(tier).inc()

    def refused(self, reason: Reason, pages: int = 1) -> None:
        """The disk had a group that was not used."""
        self._refused.labels("disk", reason).inc(pages)

    def unsaved(self, reason: Unsaved) -> None:
        """The disk did not take a group in."""
        self._unsaved.labels("disk", reason).inc()
