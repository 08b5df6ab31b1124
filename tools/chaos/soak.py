"""Does one engine go on answering rightly, and does what it holds grow with what it has served? No faults.

    python -m tools.chaos.soak [--requests 2000] [--at-once 64]

Prints the engine's resident memory after every eighth of the requests. It grows until the largest batch was seen.
Exit code 1 for an answer that is wrong, lost or an error, a restart, a leak since the first eighth, and when the second
half of the run still adds more than MAX_MORE_BYTES; the last line says which, and how many.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tools.chaos import run  # first: it makes the tests' launcher importable
from tools.chaos.clients import Crowd
from tools.chaos.leaks import QUIET_SECONDS, held, leaks, resident
from tools.chaos.ledger import UNDISTURBED
from tools.chaos.prompts import Prompt, prompts
from tools.chaos.verdict import Verdict

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from serve.harness import COMMAND, MODEL, Launcher

PARTS = 8
PATIENCE = 900.0
SEED = 7
MAX_MORE_BYTES = 128 << 20


def soak(
    launcher: Launcher, known: list[Prompt], requests: int, at_once: int, quiet_seconds: float = QUIET_SECONDS
) -> Verdict:
    """Ask a running server `requests` of the prompts, `at_once` clients; what it may not have done."""
    crowd = Crowd(launcher.url, known, MODEL, at_once, SEED, PATIENCE, UNDISTURBED)
    bytes_held = [resident(launcher.engine_pid())]
    before = None
    for _ in range(PARTS):
        asyncio.run(crowd.ask(requests // PARTS))
        before = before or held(launcher, quiet_seconds)
        bytes_held.append(resident(launcher.engine_pid()))
        print(f"{crowd.ledger.requests} requests: {bytes_held[-1] >> 20} MiB", file=sys.stderr, flush=True)
    assert before is not None
    verdict = Verdict()
    verdict.add_ledger(crowd.ledger)
    verdict.add("restarted", [f"{cause}, {count} times" for cause, count in run.restarts(launcher).items()])
    verdict.add("leaked", leaks(before, held(launcher, quiet_seconds)))
    verdict.add("memory", grown(bytes_held))
    return verdict


def grown(bytes_held: list[int]) -> list[str]:
    """What there is to say against an engine's resident bytes at the start and after each part; prints them."""
    more = bytes_held[-1] - bytes_held[PARTS // 2]
    print(f"MiB: {', '.join(str(each >> 20) for each in bytes_held)}; the second half added {more >> 20}")
    if more <= MAX_MORE_BYTES:
        return []
    return [f"the second half added {more >> 20} MiB to the engine, allowed {MAX_MORE_BYTES >> 20}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=64, help="clients")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        model = Path(work) / MODEL
        write_tiny_model(model)
        known = prompts(model, run.CONTEXT, run.PROMPTS, SEED)
        options = ["--profile", str(run.write_profile(Path(work)))]
        with Launcher(model, options, command=COMMAND) as launcher:
            verdict = soak(launcher, known, args.requests, args.at_once)
    print(verdict.text)
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
