"""The tiers below the device: which there are, what goes down to them and when, and what they hold.

`write_through` copies a page down as soon as it is full, so that a crash loses nothing that was complete. `write_back`
copies it down when the tier above gives it up, and on a clean stop: fewer copies, and a crash loses what was above.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..options import EngineOptions, OptionError
from ..pools import CachePools
from ..radix import Node
from .disk import DiskTier
from .host import HostTier
from .io_thread import IoThread
from .ledger import Ledger
from .page_file import HEADER_ROOM
from .page_group import PageCopier, PageGroup
from .tier_counters import TierCounters

log = logging.getLogger("dsv4.embedded")

HOST_RATIO = 2
"""Pages of the host tier for each page of the device, unless it is sized by an option."""

Tier = Literal["host", "disk"]


def tier_names(options: EngineOptions) -> list[Tier]:
    """The tiers below the device that the options ask for."""
    host: list[Tier] = ["host"] if options.hicache and options.host_bytes != 0 else []
    disk: list[Tier] = ["disk"] if options.disk_dir is not None else []
    return host + disk


@dataclass(frozen=True, slots=True)
class TierUsage:
    """How many page groups a tier can keep and keeps, and the bytes that it may take."""

    name: Tier
    groups: int
    used: int
    limit_bytes: int


class CacheTiers:
    """The tiers that the options ask for, possibly none. The engine's thread calls everything but `usage` and `drain`.

    `wake` is called from another thread when a read from the disk is done.
    """

    def __init__(
        self,
        pools: CachePools,
        options: EngineOptions,
        fingerprint: Callable[[], str],
        counters: TierCounters,
        wake: Callable[[], None],
    ) -> None:
        """OptionError for sizes too small for one page group and for a directory that cannot be used."""
        self._counters, self._write_back = counters, options.write_policy == "write_back"
        self.copier = PageCopier(pools)
        self.host: HostTier | None = None
        self._disk: DiskTier | None = None
        self.io: IoThread | None = None
        if not options.hicache:
            return
        groups = _host_groups(options, pools, self.copier)
        self._host_limit = options.host_bytes or groups * self.copier.bytes
        if groups:
            self.host = HostTier(groups, self.copier, options.device == "cuda", self._host_evicts)
        if options.disk_dir is not None:
            room = _groups("disk_bytes", options.disk_bytes, self.copier.bytes + HEADER_ROOM)
            self._disk_limit = options.disk_bytes
            self._disk = DiskTier(options.disk_dir, room, fingerprint(), self.copier.sizes, counters)
            self.io = IoThread(self._disk, wake)

    def where(self, prefix: bytes) -> Tier | None:
        """The nearest tier that has a page group."""
        if self.host is not None and self.host.ledger.get(prefix) is not None:
            return "host"
        if self._disk is None or self.io is None:
            return None
        return "disk" if self._disk.ledger.get(prefix) or self.io.waiting(prefix) else None

    def on_host(self, prefix: bytes) -> PageGroup | None:
        """The host's group of that prefix; its regions are views that the next page to go down may overwrite."""
        return self.host.get(prefix) if self.host is not None else None

    def page_filled(self, node: Node) -> None:
        """A page is complete and its tail, if any, saved."""
        if not self._write_back:
            self._keep(node)

    def node_lost(self, node: Node) -> None:
        """The device is about to give up a node's page or tail."""
        if self._write_back:
            self._keep(node)

    def promote(self, group: PageGroup) -> None:
        """A group came from the disk: the host tier, being nearer, keeps it, too."""
        if self.host is not None and self.host.put(group):
            self._counters.stored("host")

    def discard(self, nodes: Sequence[Node]) -> None:
        """These pages gave numbers that are none: no tier may bring them back."""
        for node in nodes:
            if self.host is not None:
                self.host.discard(node.prefix)
            if self.io is not None:
                self.io.discard(node.prefix)

    def usage(self) -> list[TierUsage]:
        """What the tiers hold, nearest first."""
        found = []
        if self.host is not None:
            found.append(_usage("host", self.host.ledger, self._host_limit))
        if self._disk is not None:
            found.append(_usage("disk", self._disk.ledger, self._disk_limit))
        return found

    def drain(self) -> None:
        """Wait until the disk has what it was given."""
        if self.io is not None:
            self.io.drain()

    def close(self, nodes: list[Node]) -> None:
        """Finish the writes; with `write_back` what the device (`nodes`) and the host keep goes to the disk first."""
        io, self.io = self.io, None
        if io is None:
            return
        if self._write_back:
            kept = len(nodes) + (len(self.host.ledger) if self.host is not None else 0)
            log.info("disk cache: up to %d pages of the tiers above go to the disk before the end", kept)
            for group in self.host.groups_kept() if self.host is not None else []:
                io.write(_copied(group), wait=True)
            for node in nodes:
                io.write(self._group(node), wait=True)
        io.stop()

    def _keep(self, node: Node) -> None:
        """Copy a node to the host, and with it or without a host to the disk, unless it is there."""
        known = {tier: self._has(tier, node) for tier in ("host", "disk")}
        through = self.io is not None and (self.host is None or not self._write_back)
        if (self.host is None or known["host"]) and not (through and not known["disk"]):
            return
        group = self._group(node)
        if self.host is not None and self.host.put(group):
            self._counters.stored("host")
        if through and not known["disk"]:
            self._write(group)

    def _has(self, tier: str, node: Node) -> bool:
        """Whether a tier has the node with as much as the device has."""
        holder = self.host if tier == "host" else self._disk
        entry = holder.ledger.get(node.prefix) if holder is not None else None
        if entry is not None:
            return entry.has_tail or node.tail is None
        waiting = self.io.waiting(node.prefix) if tier == "disk" and self.io is not None else None
        return waiting is not None and (waiting.has_tail or node.tail is None)

    def _group(self, node: Node) -> PageGroup:
        assert node.parent is not None
        return PageGroup(node.prefix, node.parent.prefix, node.key, self.copier.save(node.page, node.tail))

    def _host_evicts(self, group: PageGroup) -> None:
        self._counters.evicted("host")
        if self._write_back and self.io is not None:
            self._write(_copied(group))

    def _write(self, group: PageGroup) -> None:
        assert self.io is not None
        if not self.io.write(group):
            self._counters.unsaved("busy")


def _usage(name: Tier, ledger: Ledger, limit_bytes: int) -> TierUsage:
    return TierUsage(name, ledger.limit, len(ledger), limit_bytes)


def _copied(group: PageGroup) -> PageGroup:
    regions = {name: region.clone() for name, region in group.regions.items()}
    return PageGroup(group.prefix, group.parent, group.tokens, regions)


def _host_groups(options: EngineOptions, pools: CachePools, copier: PageCopier) -> int:
    if options.host_bytes is None:
        return HOST_RATIO * pools.pages.total
    return 0 if options.host_bytes == 0 else _groups("host_bytes", options.host_bytes, copier.bytes)


def _groups(option: str, limit: int, each: int) -> int:
    if limit < each:
        raise OptionError(f"{option}={limit}: accepted is {each} (one page group) or more")
    return limit // each
