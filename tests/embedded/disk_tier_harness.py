"""Page groups of random bytes, and a disk tier that a test opens again as often as it likes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from prometheus_client import CollectorRegistry

from dsv4_serve.engines.embedded.prefix_key import ROOT, prefix_key
from dsv4_serve.engines.embedded.tiers.disk import DiskTier
from dsv4_serve.engines.embedded.tiers.page_group import TAIL_REGIONS, PageGroup
from dsv4_serve.engines.embedded.tiers.tier_counters import TierCounters

SIZES = {"c4": 900, "index_payload": 256, "index_scale": 16, "window": 400, "state": 64}
OURS, FOREIGN = "a" * 64, "b" * 64


def chain(pages: int, seed: int = 0, tail: bool = True) -> list[PageGroup]:
    """A prefix of so many pages with random bytes."""
    generator = torch.Generator().manual_seed(seed)
    groups, parent = [], ROOT
    for _ in range(pages):
        tokens = tuple(int(t) for t in torch.randint(0, 129_280, (256,), generator=generator))
        regions = {
            name: torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
            for name, size in SIZES.items()
            if tail or name not in TAIL_REGIONS
        }
        groups.append(PageGroup(prefix_key(parent, tokens), parent, tokens, regions))
        parent = groups[-1].prefix
    return groups


def same(a: PageGroup | None, b: PageGroup) -> bool:
    return (
        a is not None
        and (a.prefix, a.parent, a.tokens) == (b.prefix, b.parent, b.tokens)
        and list(a.regions) == list(b.regions)
        and all(torch.equal(a.regions[name], b.regions[name]) for name in a.regions)
    )


class Disk:
    """A disk tier and its counters, opened again as often as a test likes."""

    opened: ClassVar[list[Disk]] = []

    def __init__(self, directory: Path, groups: int = 100, fingerprint: str = OURS) -> None:
        self.directory, self.registry = directory, CollectorRegistry()
        self.tier = DiskTier(directory, groups, fingerprint, SIZES, TierCounters(self.registry, ["disk"]))
        self.opened.append(self)

    def kill(self) -> None:
        """What a killed process leaves: nothing is closed, and the kernel takes the lock away."""
        self.tier.release()

    def count(self, family: str, reason: str | None = None) -> float:
        labels = {"tier": "disk"} | ({} if reason is None else {"reason": reason})
        value = self.registry.get_sample_value(f"dsv4_kv_{family}_pages_total", labels)
        assert value is not None
        return value

    def file(self, group: PageGroup) -> Path:
        return self.directory / f"{group.prefix.hex()}.page"

    def again(self, **changed: object) -> Disk:
        self.tier.close()
        return Disk(self.directory, **changed)  # type: ignore[arg-type]
