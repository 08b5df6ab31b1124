"""What the Hadamard rotation buys vLLM's records: recall of the exact top-k, on a trained tiny model's own queries and
keys.

    PYTHONPATH=kernels:serve python -m tools.vllm_hadamard configs/models/tiny-v4

The model runs once, on exact scores; what it stores is stored as `record68` too, with and without the rotation, and
sampled queries are scored against both by the product's operations. Prints a table for docs/vllm.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.layout import RECORD68
from dsv4_kernels.pool import IndexSpec
from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.tokenizer import BOS_ID, load_tokenizer
from dsv4_serve.evaluation.answering import engine_options
from dsv4_serve.evaluation.forward import every_logit
from dsv4_serve.evaluation.items import document_text, documents
from dsv4_serve.evaluation.shadow import Selection, Shadow, observe
from dsv4_serve.evaluation.variants import variants_of

KS = (16, 64)
CONTEXT = 4096
RECORDS = 382
"""Records of a document, about 3,000 tokens."""
SHADOWS = tuple(
    Shadow.sound(name, IndexSpec(RECORD68, CONVENTIONS["deepseek"], hadamard=rotated))
    for name, rotated in (("as vLLM stores", False), ("with `DSV4_INDEX_HADAMARD`", True))
)


def measure(model: Path, count: int, every: int) -> list[Selection]:
    """Selections of every `every`-th query over `count` documents."""
    built = build(engine_options(model, variants_of(model).exact, None, CONTEXT))
    tokenizer = load_tokenizer(model)
    with torch.inference_mode():
        observers = observe(built.model, SHADOWS, KS, every)
        for number, document in enumerate(documents(0, count, RECORDS), 1):
            print(f"document {number} of {count}", file=sys.stderr, flush=True)
            every_logit(built.model, [BOS_ID, *tokenizer.encode_text(document_text(document))])
    return [selection for observer in observers for selection in observer.selections]


def table(selections: Iterable[Selection]) -> str:
    """A line for each form and k: recall with its 95 % interval, its worst percentile, loss of the picks' scores."""
    groups: defaultdict[tuple[int, str], list[Selection]] = defaultdict(list)
    for selection in selections:
        groups[selection.k, selection.variant].append(selection)
    lines = ["| k | index keys | queries | recall | worst 1 % | margin loss |", "|---|---|---|---|---|---|"]
    for (k, name), group in sorted(groups.items()):
        recall = torch.tensor([selection.recall for selection in group])
        interval = 1.96 * float(recall.std(correction=0)) / len(group) ** 0.5
        worst = float(recall.quantile(0.01))
        loss = sum(selection.margin_loss for selection in group) / len(group)
        told = f"{100 * float(recall.mean()):.1f} ± {100 * interval:.1f} %"
        lines.append(f"| {k} | {name} | {len(group)} | {told} | {100 * worst:.1f} % | {loss:.4f} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="directory of a trained tiny model")
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--every", type=int, default=37, help="one in how many queries is sampled")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    print(table(measure(asked.model, asked.documents, asked.every)))


if __name__ == "__main__":
    main()
