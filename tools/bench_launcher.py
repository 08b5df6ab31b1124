"""What the launcher's front costs: added time to first token and lost throughput against the engine's port.

    python tools/bench_launcher.py [--seconds 4] [--rounds 3] [--json]

The engine is the stand-in of the tests, which emits tokens at a fixed rate: every difference is the front's.
Direct and fronted measurements alternate within one run, and differences are taken within a round, because a
shared machine drifts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / part) for part in ("tests", "serve", "kernels")]

from serve.harness import MODEL, Launcher, chat_body  # noqa: E402 needs the path above

STREAMS = (1, 64)
TOKENS = 50
MAX_ADDED_MS = 5.0
MIN_THROUGHPUT = 0.90


@dataclass
class Measured:
    """One measurement: seconds to the first byte of each stream, and tokens a second over all of them."""

    first: list[float] = field(default_factory=list)
    throughput: float = 0.0

    def first_ms(self, quantile: float) -> float:
        ordered = sorted(self.first)
        return 1e3 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


async def one_stream(session: aiohttp.ClientSession, url: str, measured: Measured) -> int:
    """Run one stream to its end; returns its tokens."""
    begun = time.perf_counter()
    first: float | None = None
    tokens = 0
    async with session.post(url, json=chat_body(max_tokens=TOKENS, stream=True)) as response:
        response.raise_for_status()
        async for chunk in response.content.iter_any():
            if first is None:
                first = time.perf_counter() - begun
            tokens += chunk.count(b"data: {")
    if first is None or tokens != TOKENS:
        raise RuntimeError(f"{url}: expected {TOKENS} tokens, got {tokens}")
    measured.first.append(first)
    return tokens


async def load(base: str, streams: int, seconds: float, measured: Measured, kept: bool = True) -> None:
    """Keep `streams` streams open for `seconds`; their starts are spread, as those of real clients are.

    `kept`: a client's streams follow each other on one connection; else each has its own.
    """
    url = f"{base}/v1/chat/completions"
    stagger = random.Random(streams)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=not kept)) as session:
        await one_stream(session, url, Measured())
        begun = time.perf_counter()

        async def client(delay: float) -> int:
            await asyncio.sleep(delay)
            tokens = 0
            while time.perf_counter() < begun + seconds:
                tokens += await one_stream(session, url, measured)
            return tokens

        counts = await asyncio.gather(*(client(stagger.random()) for _ in range(streams)))
        measured.throughput = sum(counts) / (time.perf_counter() - begun)


def compare(direct: str, fronted: str, streams: int, rounds: int, seconds: float) -> dict[str, Any]:
    """One row: the median over rounds of each figure, and of the differences within a round."""
    pairs = []
    for number in range(rounds):
        pair = {direct: Measured(), fronted: Measured()}
        # The order alternates, so that a drift of the machine does not favour one side.
        for base in [direct, fronted] if number % 2 == 0 else [fronted, direct]:
            asyncio.run(load(base, streams, seconds, pair[base]))
        pairs.append((pair[direct], pair[fronted]))
    row: dict[str, Any] = {"streams": streams}
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        row[f"direct_{name}_ms"] = statistics.median(a.first_ms(quantile) for a, _ in pairs)
        row[f"front_{name}_ms"] = statistics.median(b.first_ms(quantile) for _, b in pairs)
        row[f"added_{name}_ms"] = statistics.median(b.first_ms(quantile) - a.first_ms(quantile) for a, b in pairs)
    row["direct_tokens_s"] = statistics.median(a.throughput for a, _ in pairs)
    row["front_tokens_s"] = statistics.median(b.throughput for _, b in pairs)
    row["throughput"] = statistics.median(b.throughput / a.throughput for a, b in pairs)
    return row


def start(stack: ExitStack, rate: float, first_token: float = 0.02) -> tuple[str, str]:
    """Start the launcher with the stand-in behind it; returns the engine's own address and the front's.

    The stand-in's first token takes `first_token` seconds, each further one 1 / `rate`.
    """
    model = Path(stack.enter_context(tempfile.TemporaryDirectory())) / MODEL
    model.mkdir()
    (model / "config.json").write_text("{}")
    launcher = stack.enter_context(Launcher(model, standin=["--rate", str(rate), "--first-token", str(first_token)]))
    command = launcher.get("/manifest").json()["engine"]["command"]
    return f"http://127.0.0.1:{command[command.index('--port') + 1]}", launcher.url


def report(rows: list[dict[str, Any]], rate: float) -> None:
    print(f"stand-in engine at {rate:g} tokens/s a stream, {TOKENS} tokens a request; TTFT in ms")
    print(f"{'':>7} | {'p50':^26} | {'p99':^26} | {'tokens/s':^26}")
    heads = " | ".join(f"{a:>8}{b:>8}{c:>10}" for a, b, c in [("direct", "front", "added")] * 2)
    print(f"{'streams':>7} | {heads} | {'direct':>8}{'front':>8}{'kept':>10}")
    for row in rows:
        cells = " | ".join(
            f"{row[f'direct_{q}_ms']:8.2f}{row[f'front_{q}_ms']:8.2f}{row[f'added_{q}_ms']:10.2f}"
            for q in ("p50", "p99")
        )
        kept = f"{row['direct_tokens_s']:8.0f}{row['front_tokens_s']:8.0f}{100 * row['throughput']:9.1f}%"
        print(f"{row['streams']:7d} | {cells} | {kept}")


def verdict(rows: list[dict[str, Any]]) -> list[str]:
    """The targets that were missed; empty when all were reached."""
    missed = []
    for row in rows:
        if row["added_p50_ms"] > MAX_ADDED_MS:
            missed.append(f"{row['streams']} streams: {row['added_p50_ms']:.2f} ms added at p50, target {MAX_ADDED_MS}")
        if row["throughput"] < MIN_THROUGHPUT:
            missed.append(
                f"{row['streams']} streams: {row['throughput']:.0%} of the throughput, target {MIN_THROUGHPUT:.0%}"
            )
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side")
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second and stream")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    with ExitStack() as stack:
        direct, fronted = start(stack, args.rate)
        rows = []
        for streams in STREAMS:
            print(
                f"measuring {streams} stream(s), about {2 * args.rounds * (args.seconds + 1):.0f} s",
                file=sys.stderr,
            )
            rows.append(compare(direct, fronted, streams, args.rounds, args.seconds))
    missed = verdict(rows)
    if args.json:
        print(json.dumps({"rows": rows, "missed": missed}))
    else:
        report(rows, args.rate)
        print(
            "\n".join(missed) or f"targets reached: added p50 <= {MAX_ADDED_MS} ms, throughput >= {MIN_THROUGHPUT:.0%}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
