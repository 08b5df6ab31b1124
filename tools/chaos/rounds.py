"""What each round of a chaos run went through, and the tables of docs/reliability.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tools.chaos.leaks import Held, leaks
from tools.chaos.ledger import Ledger
from tools.chaos.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Round:
    """What one configuration went through."""

    tiers: str
    ledger: Ledger
    faults: dict[str, int]
    restarts: dict[str, int]
    counted: dict[str, Counter[str]]
    before: Held
    after: Held
    seconds: float

    @property
    def verdict(self) -> Verdict:
        found = Verdict()
        found.add_ledger(self.ledger)
        found.add("leaked", leaks(self.before, self.after))
        return found

    def describe(self) -> dict[str, Any]:
        ledger = {"ends": dict(self.ledger.ends), "refused": self.ledger.refused, "findings": self.ledger.findings}
        own = ("tiers", "faults", "restarts", "counted", "seconds")
        held = {"before": asdict(self.before), "after": asdict(self.after)}
        return {name: getattr(self, name) for name in own} | ledger | held


def table(rounds: Sequence[Round]) -> str:
    """Markdown, one row a round, as docs/reliability.md keeps it."""
    heads = (
        "tiers",
        "requests",
        "right",
        "cancelled",
        "told",
        "wrong",
        "lost",
        "refused, came back",
        "faults",
        "restarts",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for each in rounds:
        ends = each.ledger.ends
        counts = (each.ledger.requests, *(ends[end] for end in ("right", "cancelled", "told", "wrong", "lost")))
        words = (_listed(each.faults), _listed(each.restarts))
        lines.append(f"| {' | '.join(map(str, (each.tiers, *counts, each.ledger.refused, *words)))} |")
    return "\n".join(lines)


def cache_table(rounds: Sequence[Round]) -> str:
    """What the cache did meanwhile."""
    heads = ("tiers", "prompt tokens from a cache", "pages evicted below the device", "pages refused", "retractions")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for each in rounds:
        cells = [_listed(each.counted[name]) for name in ("cached", "evicted", "refused")]
        lines.append(f"| {' | '.join([each.tiers, *cells, str(each.counted['retracted'].total())])} |")
    return "\n".join(lines)


def held_table(rounds: Sequence[Round]) -> str:
    """What was held when nobody asked, before and after the faults."""
    heads = ("tiers", "tokens held", "tasks", "descriptors", "engine's", "launcher MiB", "engine MiB")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for each in rounds:
        pairs = zip(asdict(each.before).items(), asdict(each.after).values(), strict=True)
        cells = [_arrow(name, a, b) for (name, a), b in pairs]
        lines.append(f"| {' | '.join([each.tiers, *cells])} |")
    return "\n".join(lines)


def _arrow(name: str, before: float, after: float) -> str:
    unit = 1 << 20 if name.endswith("bytes") else 1
    return f"{before / unit:.0f} → {after / unit:.0f}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
