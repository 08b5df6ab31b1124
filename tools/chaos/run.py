"""Thousands of requests while everything goes wrong, each answer checked against its cold one.

    python -m tools.chaos.run [--requests 5000] [--at-once 64] [--seed 1] [--json FILE]

One round for each configuration of the cache tiers, over one disk tier that survives between them; the launcher is
drained and started anew in between. Exit code 1 for a wrong answer, a request lost without an error, or a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / part) for part in ("tests", "serve", "kernels")]

from tools.chaos.clients import Crowd  # noqa: E402
from tools.chaos.faults import Mischief  # noqa: E402
from tools.chaos.hits import Hits  # noqa: E402
from tools.chaos.leaks import Held, held, leaks  # noqa: E402
from tools.chaos.ledger import Ledger  # noqa: E402
from tools.chaos.prompts import Prompt, prompts  # noqa: E402

from dsv4_serve.engines.embedded.tiny import write_tiny_model  # noqa: E402 needs the path above
from serve.harness import COMMAND, MODEL, Launcher  # noqa: E402

CONTEXT, POOL_TOKENS, RUNNING = 2048, 6144, 64
HOST, DISK = 8 << 20, 64 << 20
WARM_SHARE = 0.1
STALL_SECONDS = 8
PROMPTS = 96


@dataclass(frozen=True, slots=True)
class Tiers:
    """A configuration of the cache below the device."""

    name: str
    policy: str | None = None
    disk: bool = False

    def options(self, directory: Path) -> list[str]:
        if self.policy is None:
            return []
        tiers = ["--hicache", "--hicache-host-bytes", str(HOST), "--hicache-write-policy", self.policy]
        disk = ["--hicache-disk-dir", str(directory), "--hicache-disk-bytes", str(DISK)] if self.disk else []
        return tiers + disk


FLIPS = (
    Tiers("device only"),
    Tiers("host and disk, write-through", "write_through", True),
    Tiers("host, write-back", "write_back"),
    Tiers("host and disk, write-back", "write_back", True),
)


@dataclass(frozen=True, slots=True)
class Round:
    """What one configuration went through."""

    tiers: str
    ledger: Ledger
    faults: dict[str, int]
    restarts: dict[str, int]
    cached: dict[str, float]
    before: Held
    after: Held
    seconds: float

    @property
    def problems(self) -> list[str]:
        return self.ledger.findings + leaks(self.before, self.after)

    def describe(self) -> dict[str, Any]:
        ledger = {"ends": dict(self.ledger.ends), "refused": self.ledger.refused, "findings": self.ledger.findings}
        own = ("tiers", "faults", "restarts", "cached", "seconds")
        held = {"before": asdict(self.before), "after": asdict(self.after)}
        return {name: getattr(self, name) for name in own} | ledger | held


def chaos(requests: int, at_once: int, seed: int, faults: int, flips: Sequence[Tiers] = FLIPS) -> list[Round]:
    """Run the rounds, `requests` over all of them, up to `faults` in each."""
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        model = directory / MODEL
        write_tiny_model(model)
        profile = _profile(directory)
        known = prompts(model, CONTEXT, PROMPTS, seed)
        rounds = []
        for number, tiers in enumerate(flips):
            _say(f"round {number + 1} of {len(flips)}: {tiers.name}, {requests // len(flips)} requests")
            options = ["--profile", str(profile), "--stall-seconds", str(STALL_SECONDS), "--restart-delay", "0.2"]
            limits = ["--max-restarts", "1000", "--drain-seconds", "60"]
            disk = directory / "disk"
            with Launcher(model, [*options, *limits, *tiers.options(disk)], command=COMMAND) as launcher:
                share = requests // len(flips)
                found = asyncio.run(_round(launcher, tiers, disk, known, share, at_once, seed + number, faults))
                rounds.append(found)
                launcher.signal(signal.SIGTERM)
                code = launcher.exit_code()
                if code != 0:
                    found.ledger.note("lost", f"the drain ended with code {code}")
        return rounds


async def _round(
    launcher: Launcher,
    tiers: Tiers,
    disk: Path,
    known: list[Prompt],
    requests: int,
    at_once: int,
    seed: int,
    faults: int,
) -> Round:
    begun = time.monotonic()
    warm = max(at_once, int(WARM_SHARE * requests))
    crowd = Crowd(launcher.url, known, MODEL, at_once, seed)
    await crowd.ask(warm)
    before = await asyncio.to_thread(held, launcher)
    mischief = Mischief(launcher, disk if tiers.disk else None, seed)
    making = asyncio.create_task(mischief.run(faults))
    hits = Hits(launcher)
    watching = asyncio.create_task(hits.watch())
    await crowd.ask(requests - warm)
    # A fault that has begun is seen to its end; without the rest of them the round is complete all the same.
    await asyncio.wait({making}, timeout=60)
    making.cancel()
    watching.cancel()
    after = await asyncio.to_thread(held, launcher)
    restarts = await asyncio.to_thread(_restarts, launcher)
    seconds = time.monotonic() - begun
    return Round(tiers.name, crowd.ledger, dict(mischief.done), restarts, dict(hits.tokens), before, after, seconds)


def _restarts(launcher: Launcher) -> dict[str, int]:
    """By cause; those that never happened left out."""
    lines = launcher.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("dsv4_engine_restarts_total{") and not line.endswith(" 0.0")]
    return {line.split('"')[1]: int(float(line.rsplit(" ", 1)[1])) for line in counted}


def _profile(directory: Path) -> Path:
    profile = yaml.safe_load((REPOSITORY / "configs" / "profiles" / "tiny.yaml").read_text())
    profile["model"]["context_length"] = CONTEXT
    engine = {"max_total_tokens": POOL_TOKENS, "max_running_requests": RUNNING, "extra_args": ["--threads", "1"]}
    profile["engine"] |= engine
    path = directory / "chaos.yaml"
    path.write_text(yaml.safe_dump(profile))
    return path


def table(rounds: Sequence[Round]) -> str:
    """Markdown, one row a round, as docs/operations.md keeps it."""
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
        "tokens from a cache",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for each in rounds:
        ends = each.ledger.ends
        counts = (each.ledger.requests, *(ends[end] for end in ("right", "cancelled", "told", "wrong", "lost")))
        cached = {tier: round(tokens) for tier, tokens in each.cached.items()}
        words = (_listed(each.faults), _listed(each.restarts), _listed(cached))
        lines.append(f"| {' | '.join(map(str, (each.tiers, *counts, each.ledger.refused, *words)))} |")
    return "\n".join(lines)


def held_table(rounds: Sequence[Round]) -> str:
    """What was held when nobody asked, before and after the faults."""
    heads = ("tiers", "tokens held", "tasks", "descriptors", "launcher MiB", "engine MiB")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for each in rounds:
        pairs = zip(asdict(each.before).items(), asdict(each.after).values(), strict=True)
        cells = [_arrow(name, a, b) for (name, a), b in pairs]
        lines.append(f"| {' | '.join([each.tiers, *cells])} |")
    return "\n".join(lines)


def _arrow(name: str, before: float, after: float) -> str:
    unit = 1 << 20 if name.endswith("bytes") else 1
    return f"{before / unit:.0f} → {after / unit:.0f}"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000, help="over all rounds")
    parser.add_argument("--at-once", type=int, default=64, help="clients")
    parser.add_argument("--faults", type=int, default=12, help="at most so many in a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write everything that was counted there")
    args = parser.parse_args()
    rounds = chaos(args.requests, args.at_once, args.seed, args.faults)
    print(f"{table(rounds)}\n\n{held_table(rounds)}\n\n{sum(each.seconds for each in rounds):.0f} s")
    problems = [f"{each.tiers}: {problem}" for each in rounds for problem in each.problems]
    print("\n".join(problems) or "no wrong answer, no lost request, no leak")
    if args.json:
        args.json.write_text(json.dumps([each.describe() for each in rounds], indent=2))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
