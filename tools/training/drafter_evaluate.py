"""What a drafter is worth in the engine: `python -m tools.training.drafter_evaluate --corpus DIR [--out FILE]`.

The embedded engine answers the same prompts three times, on this machine's CPU: without drafts, by look-up in the
request's own text, and with the drafter. The answers must be the same. A step is one verified draft of one request,
whatever else is in its batch.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tools.training import stories
from tools.training.corpus import Corpus
from tools.training.records import question_prompt, records
from tools.training.tokens import BOS, EOS, encode, prompt

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions, Speculative
from dsv4_serve.engines.embedded.request import SamplingParams

SOURCES: tuple[Speculative, ...] = ("off", "ngram", "dspark")
MAX_TOKENS = 96


@dataclass(frozen=True)
class Measured:
    """Of all prompts of a kind: generated tokens, decode steps, and the seconds that they took together."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    seconds: float


def prompts(corpus: Corpus, count: int, seed: int = 7) -> dict[str, list[list[int]]]:
    """Prompts that training has not seen, by kind: token ids."""
    rng = random.Random(seed)
    found: dict[str, list[list[int]]] = {"look-up": [], "copy": [], "story": [], "prose": []}
    for _ in range(count):
        document = records(rng, 120)
        found["look-up"].append(prompt(question_prompt(document, rng.choice(document).key)))
        at = rng.randrange(len(corpus.heldout) - 400)
        found["copy"].append(prompt("Repeat: " + corpus.heldout[at : at + 70].decode(errors="ignore").strip()))
        found["story"].append(prompt(f"Tell me a story about {stories.subject(rng)}."))
        found["prose"].append([BOS, *encode(corpus.heldout[at : at + 300])])
    return found


async def answer(engine: AsyncEngine, asked: Sequence[list[int]], at_once: int = 1) -> tuple[list[list[int]], Measured]:
    """Greedy answers, `at_once` requests at a time, and what they took beyond their first tokens."""
    params = SamplingParams(MAX_TOKENS, temperature=0.0, stop_token_ids=frozenset({EOS}))
    before, turns = _counted(engine), asyncio.Semaphore(at_once)

    async def one(number: int, ids: list[int]) -> tuple[list[int], float]:
        found: list[int] = []
        async with turns:
            began = time.monotonic()
            async for output in engine.generate(str(number), ids, params):
                if not found:
                    began = time.monotonic()
                found.append(output.token_id)
        return found, time.monotonic() - began

    both = await asyncio.gather(*(one(number, ids) for number, ids in enumerate(asked)))
    verified, emitted, drafted, accepted = (after - old for after, old in zip(_counted(engine), before, strict=True))
    tokens = sum(len(found) - 1 for found, _ in both)
    # Each step gives one token and those of its draft that were right.
    steps, seconds = tokens - emitted + verified, sum(taken for _, taken in both)
    return [found for found, _ in both], Measured(tokens, steps, drafted, accepted, seconds)


def _counted(engine: AsyncEngine) -> tuple[int, int, int, int]:
    """Verified steps, their tokens, drafted and accepted tokens so far."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(engine.metrics_text()):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    names = ("acceptance_length_count", "acceptance_length_sum", "drafted_tokens_total", "accepted_tokens_total")
    verified, emitted, drafted, accepted = (int(totals.get(f"dsv4_{name}", 0)) for name in names)
    return verified, emitted, drafted, accepted


async def measure(
    model: Path, source: Speculative, asked: dict[str, list[list[int]]], at_once: int = 1
) -> tuple[dict[str, list[list[int]]], dict[str, Measured]]:
    """Answers and figures by kind of prompt, with this source of drafts."""
    options = EngineOptions(model, "tiny", max_total_tokens=16384, speculative=source, prefix_cache=False)
    engine = AsyncEngine.create(options)
    engine.start()
    try:
        both = {kind: await answer(engine, ids, at_once) for kind, ids in asked.items()}
    finally:
        await engine.stop()
    return {kind: answers for kind, (answers, _) in both.items()}, {
        kind: figures for kind, (_, figures) in both.items()
    }


def main() -> None:
    """Measure and print a table, ratios against decoding without drafts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model-dir", type=Path, default=Path("configs/models/tiny-v4"))
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by tools.training.corpus")
    parser.add_argument("--count", type=int, default=20, help="prompts of each kind")
    parser.add_argument("--at-once", type=int, default=1, help="requests in a batch; times mean little then")
    parser.add_argument("--out", type=Path, help="JSON")
    options = parser.parse_args()
    asked = prompts(Corpus.load(options.corpus), options.count)
    results: dict[str, dict[str, Measured]] = {}
    wanted: dict[str, list[list[int]]] = {}
    for source in SOURCES:
        print(f"{source}: {options.count} prompts of each kind", flush=True)
        answers, results[source] = asyncio.run(measure(options.model_dir, source, asked, options.at_once))
        wanted = wanted or answers
        if answers != wanted:
            raise SystemExit(f"{source}: other answers than without drafts")
    print("| prompts | source | tokens | tokens a step | drafted tokens right | tokens a second, ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in asked:
        plain = results["off"][kind]
        for source in SOURCES:
            one = results[source][kind]
            right = f"{one.accepted / one.drafted:.0%}" if one.drafted else ""
            row = (
                kind,
                source,
                one.tokens,
                f"{one.tokens / one.steps:.2f}",
                right,
                f"{plain.seconds / one.seconds:.2f}",
            )
            print(f"| {' | '.join(map(str, row))} |")
    if options.out is not None:
        named = {source: {kind: asdict(one) for kind, one in kinds.items()} for source, kinds in results.items()}
        options.out.write_text(json.dumps(named, indent=1) + "\n")


if __name__ == "__main__":
    main()
