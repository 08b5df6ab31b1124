"""Does one engine's memory grow with the requests that it has served? No faults, no restarts.

    python -m tools.chaos.soak [--requests 2000] [--at-once 64]

Prints the engine's resident memory after every eighth of the requests. It grows until the largest batch was seen; exit
code 1 when the second half of the run still adds more than MAX_MORE_BYTES.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tools.chaos import run  # first: it makes the tests' launcher importable
from tools.chaos.clients import Crowd
from tools.chaos.leaks import resident
from tools.chaos.prompts import prompts

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from serve.harness import COMMAND, MODEL, Launcher

PARTS = 8
PATIENCE = 900.0
MAX_MORE_BYTES = 128 << 20


def soak(requests: int, at_once: int, seed: int = 7) -> list[int]:
    """Resident bytes of the engine before the first request and after every part of `requests`."""
    with tempfile.TemporaryDirectory() as work:
        model = Path(work) / MODEL
        write_tiny_model(model)
        options = ["--profile", str(run.write_profile(Path(work)))]
        known = prompts(model, run.CONTEXT, run.PROMPTS, seed)
        with Launcher(model, options, command=COMMAND) as launcher:
            crowd = Crowd(launcher.url, known, MODEL, at_once, seed, PATIENCE)
            found = [resident(launcher.engine_pid())]
            for _ in range(PARTS):
                asyncio.run(crowd.ask(requests // PARTS))
                found.append(resident(launcher.engine_pid()))
                print(f"{crowd.ledger.requests} requests: {found[-1] >> 20} MiB", file=sys.stderr, flush=True)
            for finding in crowd.ledger.findings:
                print(finding)
            return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=64, help="clients")
    args = parser.parse_args()
    found = soak(args.requests, args.at_once)
    more = found[-1] - found[PARTS // 2]
    print(f"MiB: {', '.join(str(each >> 20) for each in found)}; the second half added {more >> 20}")
    return 1 if more > MAX_MORE_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
