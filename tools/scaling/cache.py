"""Prefix caches in tokens: what is resident of each chain, least recently used tails go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tier:
    """One tier. A chain's resident tokens are always a prefix: eviction cuts tails, as a radix tree's leaves go."""

    capacity: int
    used: int = 0
    locked: int = 0
    resident: OrderedDict[int, int] = field(default_factory=OrderedDict)
    pins: dict[int, int] = field(default_factory=dict)
    _orphans: int = 0

    def length(self, chain: int) -> int:
        return self.resident.get(chain, 0)

    def pin(self, chain: int) -> None:
        """Keep this chain, which a running request uses."""
        if not self.pins.get(chain, 0):
            self.locked += self.length(chain)
        self.pins[chain] = self.pins.get(chain, 0) + 1

    def unpin(self, chain: int) -> None:
        self.pins[chain] -= 1
        if not self.pins[chain]:
            del self.pins[chain]
            self.locked -= self.length(chain)

    def fits(self, tokens: int) -> bool:
        """Could `tokens` more be held, were everything evicted that no request uses?"""
        return self.locked + tokens <= self.capacity

    def store(self, chain: int, tokens: int) -> None:
        """The chain is now `tokens` long (whatever it was) and used last; others make room, or it is cut."""
        before = self.length(chain)
        self._set(chain, tokens)
        self.resident.move_to_end(chain)
        if self.used > self.capacity:
            self._evict(self.used - self.capacity)
        if self.used > self.capacity:
            self._set(chain, max(before, tokens - (self.used - self.capacity)))

    def branch(self, chain: int, shared: int) -> None:
        """A prompt leaves the chain after `shared` tokens: what followed stays, as a leaf that nobody asks for."""
        tail = self.length(chain) - shared
        if tail > 0:
            self._set(chain, shared)
            self._orphans -= 1
            self._set(self._orphans, tail)

    def _set(self, chain: int, tokens: int) -> None:
        change = tokens - self.length(chain)
        self.used += change
        if chain in self.pins:
            self.locked += change
        self.resident[chain] = tokens

    def _evict(self, tokens: int) -> None:
        gone = []
        for chain, length in self.resident.items():
            if tokens <= 0:
                break
            if chain in self.pins:
                continue
            cut = min(length, tokens)
            tokens -= cut
            self.used -= cut
            if cut == length:
                gone.append(chain)
            else:
                self.resident[chain] = length - cut
        for chain in gone:
            del self.resident[chain]


@dataclass(frozen=True, slots=True)
class Hit:
    """Tokens of a prompt found on the GPU, then in host memory, then in the shared store."""

    gpu: int
    host: int
    shared: int
    new: int


@dataclass(slots=True)
class Caches:
    """One node's tiers; `l3` is one for all nodes, or None."""

    gpu: Tier
    host: Tier | None
    l3: Tier | None

    def look_up(self, chain: int, shared: int, prompt: int) -> Hit:
        """What of the first `shared` tokens is where. At least one token of a prompt is always computed."""
        usable = min(shared, prompt - 1)
        gpu = min(self.gpu.length(chain), usable)
        host = max(0, min(self.host.length(chain), usable) - gpu) if self.host else 0
        l3 = max(0, min(self.l3.length(chain), usable) - gpu - host) if self.l3 else 0
        return Hit(gpu, host, l3, prompt - gpu - host - l3)

    def branch(self, chain: int, shared: int) -> None:
        for tier in (self.gpu, self.host, self.l3):
            if tier is not None:
                tier.branch(chain, shared)

    def store(self, chain: int, tokens: int) -> None:
        """Write-through: every tier gets what the request computed."""
        for tier in (self.gpu, self.host, self.l3):
            if tier is not None:
                tier.store(chain, tokens)
