"""Thousands of requests while everything goes wrong, each answer checked against its cold one.

    python -m tools.chaos.run [--requests 5000] [--at-once 64] [--seed 1] [--stall-seconds 8] [--json FILE]

One round for each configuration of the cache tiers, over one disk tier that survives between them; the launcher is
drained and started anew in between. Exit code 1 for a wrong answer, a request lost without an error, a leak, or a round
without any right answer; the last line says which, and how many.
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
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / part) for part in ("tests", "serve", "kernels")]

from tools.chaos.clients import Crowd  # noqa: E402
from tools.chaos.counted import Counted  # noqa: E402
from tools.chaos.faults import Mischief  # noqa: E402
from tools.chaos.leaks import held  # noqa: E402
from tools.chaos.prompts import Prompt, prompts  # noqa: E402
from tools.chaos.rounds import Round, cache_table, held_table, table  # noqa: E402
from tools.chaos.verdict import Verdict  # noqa: E402

from dsv4_serve.engines.embedded.tiny import write_tiny_model  # noqa: E402 needs the path above
from serve.harness import COMMAND, MODEL, Launcher  # noqa: E402

CONTEXT, POOL_TOKENS, RUNNING = 2048, 6144, 64
HOST, DISK = 8 << 20, 24 << 20
WARM_SHARE = 0.1
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
class Load:
    """`requests` over all rounds from `at_once` clients, up to `faults` in each round.

    `stall_seconds` without progress count as a hang; an attempt that takes more than `patience` seconds is lost. Both
    are for a machine with two idle cores: a busy one needs more.
    """

    requests: int
    at_once: int
    faults: int
    seed: int = 1
    stall_seconds: float = 8.0
    patience: float = 180.0


def chaos(load: Load, flips: Sequence[Tiers] = FLIPS) -> list[Round]:
    """Run a round for each of `flips`, over one disk."""
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        model = directory / MODEL
        write_tiny_model(model)
        profile = write_profile(directory)
        known = prompts(model, CONTEXT, PROMPTS, load.seed)
        share = load.requests // len(flips)
        rounds = []
        for number, tiers in enumerate(flips):
            _say(f"round {number + 1} of {len(flips)}: {tiers.name}, {share} requests")
            stall = ["--stall-seconds", str(load.stall_seconds)]
            options = ["--profile", str(profile), *stall, "--restart-delay", "0.2"]
            limits = ["--max-restarts", "1000", "--drain-seconds", "60"]
            disk = directory / "disk"
            with Launcher(model, [*options, *limits, *tiers.options(disk)], command=COMMAND) as launcher:
                mine = replace(load, requests=share, seed=load.seed + number)
                found = asyncio.run(_round(launcher, tiers, disk, known, mine))
                rounds.append(found)
                _say(table([found]))
                launcher.signal(signal.SIGTERM)
                code = launcher.exit_code()
                if code != 0:
                    found.ledger.note("lost", f"the drain ended with code {code}")
        return rounds


async def _round(launcher: Launcher, tiers: Tiers, disk: Path, known: list[Prompt], load: Load) -> Round:
    begun = time.monotonic()
    warm = max(load.at_once, int(WARM_SHARE * load.requests))
    crowd = Crowd(launcher.url, known, MODEL, load.at_once, load.seed, load.patience)
    await crowd.ask(warm)
    before = await asyncio.to_thread(held, launcher)
    mischief = Mischief(launcher, disk if tiers.disk else None, load.seed)
    making = asyncio.create_task(mischief.run(load.faults))
    counted = Counted(launcher)
    watching = asyncio.create_task(counted.watch())
    await crowd.ask(load.requests - warm)
    # A fault that has begun is seen to its end; without the rest of them the round is complete all the same.
    await asyncio.wait({making}, timeout=60)
    making.cancel()
    watching.cancel()
    for ended in await asyncio.gather(making, watching, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    after = await asyncio.to_thread(held, launcher)
    again = await asyncio.to_thread(restarts, launcher)
    seconds = time.monotonic() - begun
    return Round(tiers.name, crowd.ledger, dict(mischief.done), again, counted.of, before, after, seconds)


def restarts(launcher: Launcher) -> dict[str, int]:
    """By cause; those that never happened left out."""
    lines = launcher.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("dsv4_engine_restarts_total{") and not line.endswith(" 0.0")]
    return {line.split('"')[1]: int(float(line.rsplit(" ", 1)[1])) for line in counted}


def write_profile(directory: Path) -> Path:
    """A profile of the tiny model whose device holds a part of the prompts only; returns its file."""
    profile = yaml.safe_load((REPOSITORY / "configs" / "profiles" / "tiny.yaml").read_text())
    profile["model"]["context_length"] = CONTEXT
    engine = {"max_total_tokens": POOL_TOKENS, "max_running_requests": RUNNING, "extra_args": ["--threads", "1"]}
    profile["engine"] |= engine
    path = directory / "chaos.yaml"
    path.write_text(yaml.safe_dump(profile))
    return path


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000, help="over all rounds")
    parser.add_argument("--at-once", type=int, default=64, help="clients")
    parser.add_argument("--faults", type=int, default=12, help="at most so many in a round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--stall-seconds", type=float, default=8.0, help="what counts as a hang; more on a busy machine"
    )
    parser.add_argument("--patience", type=float, default=180.0, help="seconds after which an attempt counts as lost")
    parser.add_argument("--json", type=Path, help="write everything that was counted there")
    args = parser.parse_args()
    load = Load(args.requests, args.at_once, args.faults, args.seed, args.stall_seconds, args.patience)
    rounds = chaos(load)
    print(f"{table(rounds)}\n\n{cache_table(rounds)}\n\n{held_table(rounds)}\n")
    print(f"{sum(each.seconds for each in rounds):.0f} s")
    if args.json:
        args.json.write_text(json.dumps([each.describe() for each in rounds], indent=2))
    verdict = Verdict()
    for each in rounds:
        verdict.merge(each.verdict, each.tiers)
    print(verdict.text)
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
