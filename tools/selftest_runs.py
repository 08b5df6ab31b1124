"""Whole self-tests, one after another, of sound engines: how many raise an alarm? None should.

    python -m tools.selftest_runs [--runs 20] [--context 2048] [--json]

They alternate between the committed trained model, asked for answers, and random models of both generations, each of a
seed of its own, whose logits are held against the reference's. Exit code 1 for an alarm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.models import TRAINED_TINY
from dsv4_serve.selftest.outcome import Outcome
from dsv4_serve.selftest.run import selftest

FAMILIES = ("v4", "v41")
RUNNING = 16


async def one_run(number: int, context: int) -> tuple[str, list[Outcome]]:
    """What was tested, and every outcome. Even runs test the trained model, odd ones a random one."""
    with tempfile.TemporaryDirectory() as folder:
        model, told = TRAINED_TINY, "trained v4"
        if number % 2:
            family = FAMILIES[number // 2 % len(FAMILIES)]
            model, told = Path(folder) / "model", f"random {family}, seed {number}"
            write_tiny_model(model, seed=number, family=family)
        options = EngineOptions(
            model, "tiny", max_total_tokens=context, max_running_requests=RUNNING, context_length=context
        )
        return told, [outcome async for outcome in selftest(options, model == TRAINED_TINY)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--context", type=int, default=2048, help="tokens of context, and of the pool")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    alarms, found, begun = [], [], time.monotonic()
    for number in range(args.runs):
        told, outcomes = asyncio.run(one_run(number, args.context))
        counts.update(outcome.status for outcome in outcomes)
        alarms += [f"run {number + 1}, {told}: {outcome.line}" for outcome in outcomes if outcome.status == "failed"]
        found.append({"of": told, "outcomes": [outcome.describe() for outcome in outcomes]})
        print(f"run {number + 1} of {args.runs}, {told}: {len(alarms)} alarms so far", file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps({"alarms": alarms, "runs": found}, indent=2))
    else:
        print("\n".join(alarms) or "no alarm")
        shown = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        print(f"{args.runs} runs, {len(alarms)} alarms; probes: {shown}; {time.monotonic() - begun:.0f} s")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
