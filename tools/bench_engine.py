"""The embedded engine against transformers' `generate` on the same weights, and prompts cold against warm.

    .venv/bin/python tools/bench_engine.py [--threads 2] [--prompt 1000] [--tokens 64] [--repeats 3] [--model DIR]

Both sides run in this process on the same threads, in turn, `repeats` times; the table gives medians and spreads.
Decoding is measured from the first generated token on. A first round with another seed is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.engines.embedded.tiny import write_tiny_model

LONG_PROMPT = 2000


def random_prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Distinct random byte prompts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(18, 274, (count, tokens), generator=generator).tolist()


async def engine_decode(engine: AsyncEngine, prompts: list[list[int]], tokens: int) -> float:
    """Tokens a second while all requests decode: from the last one's first token to the first one's last."""
    times: list[list[float]] = [[] for _ in prompts]
    params = SamplingParams(max_tokens=tokens, temperature=0.0)

    async def one(number: int, ids: list[int]) -> None:
        async for _ in engine.generate(f"bench-{number}", ids, params):
            times[number].append(time.perf_counter())

    # Prompts are cached first, so that all requests start to decode together.
    await asyncio.gather(*(_first_token(engine, ids) for ids in prompts))
    await asyncio.gather(*(one(n, ids) for n, ids in enumerate(prompts)))
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    return sum(begin < moment <= end for t in times for moment in t) / (end - begin)


async def _first_token(engine: AsyncEngine, ids: list[int]) -> float:
    begin = time.perf_counter()
    async for _ in engine.generate("bench", ids, SamplingParams(max_tokens=1, temperature=0.0)):
        return time.perf_counter() - begin
    raise RuntimeError("the engine gave no token")


class StepClock:
    """A logits processor that notes when each step's logits are there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return scores


def transformers_decode(model: Any, prompts: list[list[int]], tokens: int) -> float:
    """The same with `generate`, from the first step's logits to the last's."""
    ids, clock = torch.tensor(prompts), StepClock()
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 2}
    with torch.no_grad():
        model.generate(ids, attention_mask=torch.ones_like(ids), logits_processor=[clock], **options)
    return len(prompts) * (tokens - 1) / (clock.times[-1] - clock.times[0])


def load_transformers(directory: Path) -> Any:
    """The reference model in float32."""
    import transformers

    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model: Any = transformers.DeepseekV4ForCausalLM.from_pretrained(directory, dtype=torch.float32)  # nosec B615
    return model.eval()


class Samples:
    """Named measurements over the repeats."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def cell(self, name: str, unit: str) -> str:
        values = self.values[name]
        return f"{self.median(name):,.2f} {unit} ({min(values):,.2f} to {max(values):,.2f})"


async def measure(directory: Path, arguments: argparse.Namespace) -> Samples:
    """Run both sides in turn."""
    options = EngineOptions(model_path=directory, served_model_name="bench", threads=arguments.threads)
    engine = AsyncEngine.create(options)
    engine.start()
    reference = load_transformers(directory)
    samples = Samples()
    await engine_decode(engine, random_prompts(8, arguments.prompt, seed=999), 8)
    transformers_decode(reference, random_prompts(1, arguments.prompt, seed=999), 4)
    for repeat in track(range(arguments.repeats), description="measuring"):
        for batch in (1, 8):
            prompts = random_prompts(batch, arguments.prompt, seed=repeat)
            samples.add(f"engine {batch}", await engine_decode(engine, prompts, arguments.tokens))
            samples.add(f"transformers {batch}", transformers_decode(reference, prompts, arguments.tokens))
        (long,) = random_prompts(1, LONG_PROMPT, seed=1000 + repeat)
        samples.add("cold", await _first_token(engine, long))
        samples.add("warm", await _first_token(engine, long))
    await engine.stop()
    return samples


def report(samples: Samples, arguments: argparse.Namespace) -> Table:
    """The table."""
    title = f"{arguments.prompt}-token prompts, {arguments.tokens} new tokens, {arguments.threads} threads"
    table = Table("measurement", "embedded engine", "compared with", "ratio", title=title)
    for batch in (1, 8):
        ours, theirs = f"engine {batch}", f"transformers {batch}"
        ratio = samples.median(ours) / samples.median(theirs)
        generate = f"generate: {samples.cell(theirs, 'tok/s')}"
        table.add_row(f"decode, batch {batch}", samples.cell(ours, "tok/s"), generate, f"{ratio:.2f}x")
    ratio = samples.median("cold") / samples.median("warm")
    row = f"first token of {LONG_PROMPT} tokens, warm", samples.cell("warm", "s"), f"cold: {samples.cell('cold', 's')}"
    table.add_row(*row, f"{ratio:.2f}x")
    return table


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    integers: dict[str, int] = {"threads": torch.get_num_threads(), "prompt": 1000, "tokens": 64, "repeats": 3}
    for name, default in integers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", type=Path, help="a model directory; the random tiny model if not given")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run: Callable[[Path], Samples] = lambda directory: asyncio.run(measure(directory, arguments))  # noqa: E731
    if arguments.model is not None:
        samples = run(arguments.model)
    else:
        with tempfile.TemporaryDirectory() as name:
            write_tiny_model(Path(name))
            samples = run(Path(name))
    Console(width=140).print(report(samples, arguments))


if __name__ == "__main__":
    main()
