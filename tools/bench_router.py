"""The launcher against sglang-router in front of one engine: added time to first token, most requests a second.

    python -m tools.bench_router [--seconds 4] [--rounds 3] [--json]

The engine is the stand-in of the tests. Direct, launcher and router take turns within each round, and differences are
taken within a round, because a shared machine drifts. The router is sglang-router of locks/test.txt, with one worker.

What the router adds depends on the time to the first token and on whether a client keeps its connection, so CASES has
both: docs/benchmarks.md says why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import httpx
from tools.bench_launcher import Measured, load, start

from dsv4_serve.supervisor import free_port
from serve.harness import chat_body, wait_until

CLIENTS = 64
RATE = 50.0
# Fast enough that the engine is never what a request waits for.
FAST = 1e6
SHORT_TOKENS = 8
SIDES = ("direct", "launcher", "router")


@dataclass(frozen=True, slots=True)
class Case:
    """`first_token`: seconds until the engine's first token. `kept`: a client asks again on the same connection."""

    streams: int
    first_token: float
    kept: bool


CASES = (Case(1, 0.02, True), Case(64, 0.02, True), Case(1, 0.02, False), Case(1, 0.1, True), Case(64, 0.1, True))


@contextmanager
def router(worker: str) -> Iterator[str]:
    """sglang-router with one worker; its address."""
    port, metrics = free_port(), free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    options = {"--worker-urls": worker, "--policy": "round_robin", "--log-level": "warn", "--prometheus-port": metrics}
    words = [str(word) for option in options.items() for word in option]
    process = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def knows_its_worker() -> bool:
        assert process.poll() is None, "the router ended"
        try:
            workers = httpx.get(f"{url}/workers", trust_env=False).json()["workers"]
        except httpx.TransportError:
            return False
        return len(workers) == 1 and bool(workers[0]["is_healthy"])

    try:
        wait_until(knows_its_worker, "the router knows its worker")
        yield url
    finally:
        process.terminate()
        process.wait()


async def most_requests(base: str, clients: int, seconds: float) -> float:
    """Whole answers of SHORT_TOKENS tokens a second, `clients` at once, each asking again as soon as it is answered."""
    url, done = f"{base}/v1/chat/completions", 0
    end = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal done
        while time.perf_counter() < end:
            async with session.post(url, json=chat_body(max_tokens=SHORT_TOKENS)) as answer:
                answer.raise_for_status()
                await answer.read()
                done += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        begun = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(clients)))
        return done / (time.perf_counter() - begun)


def in_turn(rounds: int) -> Iterator[list[str]]:
    """The sides of each round, in an order that moves on, so that none is always first."""
    for number in range(rounds):
        yield [SIDES[(number + place) % len(SIDES)] for place in range(len(SIDES))]


def first_tokens(addresses: dict[str, str], case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Medians over the rounds of the time to first token, and of what each front adds to it within a round, in ms."""
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    for sides in in_turn(rounds):
        for side in sides:
            measured = Measured()
            asyncio.run(load(addresses[side], case.streams, seconds, measured, case.kept))
            found[side].append(measured)
    row: dict[str, Any] = asdict(case)
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        times = {side: [m.first_ms(quantile) for m in runs] for side, runs in found.items()}
        row[f"direct_{name}_ms"] = statistics.median(times["direct"])
        for side in SIDES[1:]:
            row[f"{side}_added_{name}_ms"] = statistics.median(
                b - a for a, b in zip(times["direct"], times[side], strict=True)
            )
    return row


def throughput(addresses: dict[str, str], rounds: int, seconds: float) -> dict[str, float]:
    """Medians of the requests a second."""
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for sides in in_turn(rounds):
        for side in sides:
            found[side].append(asyncio.run(most_requests(addresses[side], CLIENTS, seconds)))
    return {side: statistics.median(runs) for side, runs in found.items()}


@contextmanager
def fronts(rate: float, first_token: float) -> Iterator[dict[str, str]]:
    """The stand-in at `rate` tokens a second, behind the launcher and behind the router: the address of each side."""
    with ExitStack() as stack:
        direct, launcher = start(stack, rate, first_token)
        yield dict(zip(SIDES, (direct, launcher, stack.enter_context(router(direct))), strict=True))


def report(rows: Sequence[dict[str, Any]], most: dict[str, float]) -> None:
    print(
        "| streams | connections | TTFT p50 direct | launcher adds | router adds | p99: launcher adds | router adds |"
    )
    print("|---" * 7 + "|")
    for row in rows:
        names = (
            "direct_p50_ms",
            "launcher_added_p50_ms",
            "router_added_p50_ms",
            "launcher_added_p99_ms",
            "router_added_p99_ms",
        )
        connections = "kept" if row["kept"] else "fresh"
        print(f"| {row['streams']} | {connections} | {' | '.join(f'{row[name]:.2f} ms' for name in names)} |")
    told = ", ".join(f"{side} {most[side]:.0f}" for side in SIDES)
    print(f"\nrequests a second, {CLIENTS} clients: {told}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    rows = []
    for case in CASES:
        with fronts(RATE, case.first_token) as addresses:
            print(f"time to first token: {case}", file=sys.stderr)
            rows.append(first_tokens(addresses, case, args.rounds, args.seconds))
    with fronts(FAST, 0.02) as addresses:
        print("most requests a second", file=sys.stderr)
        most = throughput(addresses, args.rounds, args.seconds)
    if args.json:
        print(json.dumps({"first_token": rows, "requests_per_second": most}))
    else:
        report(rows, most)
    return 0


if __name__ == "__main__":
    sys.exit(main())
