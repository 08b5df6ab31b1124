"""The embedded engine's cache tiers and drafts: first token by tier, and tokens a second with and without drafts.

    .venv/bin/python tools/bench_tiers.py [--prompt 2000] [--tokens 96] [--repeats 3] [--threads 1]

On the committed model. First token: one prompt cold, from the device, from the host (another prompt took the device
meanwhile), and from the disk of an engine started anew. Drafts: a text to be repeated, and random bytes, which this
model soon answers by repeating itself. Sides run in turn, `repeats` times; medians with least and most.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.models import TRAINED_TINY

PAGE = 256
TEXT = "The quick brown fox jumps over the lazy dog and runs away from the old bear. "
Samples = dict[str, list[float]]


def random_prompt(tokens: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(18, 274, (tokens,), generator=generator).tolist()


def repeated_text(tokens: int) -> list[int]:
    """Bytes are tokens 18 and up; the text comes again and again, cut in the middle."""
    return [18 + byte for byte in (TEXT * tokens).encode()[:tokens]]


@asynccontextmanager
async def engine(arguments: argparse.Namespace, **options: Any) -> AsyncIterator[AsyncEngine]:
    made = AsyncEngine.create(EngineOptions(TRAINED_TINY, "bench", threads=arguments.threads, **options))
    made.start()
    try:
        yield made
    finally:
        await made.stop()


async def timed(made: AsyncEngine, ids: list[int], tokens: int) -> tuple[float, float]:
    """Seconds to the first token, and tokens a second from there on."""
    begin, moments = time.perf_counter(), []
    async for _ in made.generate("bench", ids, SamplingParams(max_tokens=tokens, temperature=0.0)):
        moments.append(time.perf_counter())
    rate = (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 1 else 0.0
    return moments[0] - begin, rate


async def tiers(arguments: argparse.Namespace, seed: int, samples: Samples) -> None:
    """One prompt through the tiers; the device holds it and no other beside it."""
    ask, other = random_prompt(arguments.prompt, seed), random_prompt(arguments.prompt, seed + 500)
    with tempfile.TemporaryDirectory() as folder:
        pool = (arguments.prompt // PAGE + 2) * PAGE
        options: dict[str, Any] = {"max_total_tokens": pool, "hicache": True, "disk_dir": Path(folder)}
        async with engine(arguments, **options) as made:
            for name, before in (("cold", None), ("device", None), ("host", other)):
                if before is not None:
                    await timed(made, before, 1)
                samples.setdefault(name, []).append((await timed(made, ask, 1))[0])
        async with engine(arguments, **options) as made:
            samples.setdefault("disk", []).append((await timed(made, ask, 1))[0])


async def drafts(arguments: argparse.Namespace, seed: int, samples: Samples) -> None:
    for name, ids in (("repeated", repeated_text(600)), ("random", random_prompt(600, seed))):
        for speculative in ("off", "ngram"):
            async with engine(arguments, speculative=speculative) as made:
                await timed(made, ids, 1)
                rate = (await timed(made, ids, arguments.tokens))[1]
                samples.setdefault(f"{name} {speculative}", []).append(rate)


def cell(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):,.2f} {unit} ({min(values):,.2f} to {max(values):,.2f})"


def report(samples: Samples, arguments: argparse.Namespace) -> Table:
    table = Table("measurement", "value", "compared with", "ratio")
    cold = statistics.median(samples["cold"])
    for name in ("device", "host", "disk"):
        ratio = cold / statistics.median(samples[name])
        what = f"first token of {arguments.prompt} tokens, {name}"
        table.add_row(what, cell(samples[name], "s"), f"cold: {cell(samples['cold'], 's')}", f"{ratio:.1f}x")
    for name in ("repeated", "random"):
        with_drafts, without = samples[f"{name} ngram"], samples[f"{name} off"]
        ratio = statistics.median(with_drafts) / statistics.median(without)
        what = f"decode, batch 1, {name} text, with drafts"
        table.add_row(what, cell(with_drafts, "tok/s"), f"without: {cell(without, 'tok/s')}", f"{ratio:.1f}x")
    return table


async def measure(arguments: argparse.Namespace) -> Samples:
    samples: Samples = {}
    for repeat in track(range(arguments.repeats), description="measuring"):
        await tiers(arguments, repeat, samples)
        await drafts(arguments, repeat, samples)
    return samples


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"threads": 1, "prompt": 2000, "tokens": 96, "repeats": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    Console(width=140).print(report(asyncio.run(measure(arguments)), arguments))


if __name__ == "__main__":
    main()
