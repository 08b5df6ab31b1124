"""What the trained model can do: look-ups by distance and index mode, copying, held-out perplexity.

Look-ups are scored in chat form with the answers fed in (teacher forcing): a question counts when all three digits
are the most likely ones. The same rows serve every index mode, so differences are paired.
"""

import argparse
import json
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tools.training import checkpoint, ngram, records, stories, tasks
from tools.training.corpus import Corpus
from tools.training.index_formats import FORMATS, FORMATS_V41
from tools.training.model import ModelOutput
from tools.training.models import TinyModel
from tools.training.row import Kind, Row
from tools.training.selection import IndexMode
from tools.training.tokens import EOS, encode, prompt
from tools.training.v41.model import TinyV41
from torch import Tensor

from dsv4_serve.engines.embedded.families import load_config

TOPK = 64
DOCUMENT_TOKENS = 3_500
QUESTIONS = 20
DISTANCE_STEP = 512


def serving(model: TinyModel) -> IndexMode:
    """Exact scores, and everything else as the model is served."""
    return IndexMode(topk=TOPK, stored_kv=isinstance(model, TinyV41))


def modes(model: TinyModel) -> dict[str, IndexMode]:
    """What look-ups are compared by: number formats of the index, sizes of the choice, ablations."""
    exact, v41 = serving(model), isinstance(model, TinyV41)
    formats = FORMATS_V41 if v41 else FORMATS
    found = {"dense": replace(exact, topk=None), "exact": exact}
    found |= {name: replace(exact, transform=transform) for name, transform in formats.items()}
    found |= {"exact top-8": replace(exact, topk=8)}
    found |= {f"{name} top-8": replace(exact, topk=8, transform=transform) for name, transform in formats.items()}
    if v41:
        found |= {"exact, one level": replace(exact, two_level=False), "exact, KV not rounded": IndexMode(topk=TOPK)}
    return found | {"random index": replace(exact, selection="random"), "no entries": replace(exact, selection="none")}


@dataclass(frozen=True)
class Exam:
    """A row of one document and its questions; `distances` run from a record to the prediction of its first digit."""

    row: Row
    distances: list[int]


def exams(documents: int, seed: int, letters: str = records.LETTERS) -> list[Exam]:
    """One exam a document, QUESTIONS questions each; keys are made of `letters` (few letters: keys much alike)."""
    found = []
    for number in range(documents):
        rng = random.Random(f"exam/{seed}/{number}")
        # The intro's length shifts where records fall among the compressor's windows.
        intro = "Records:" + "\n" * (1 + number % 8)
        document = records.records(rng, DOCUMENT_TOKENS // records.RECORD_BYTES, letters)
        asked = rng.sample(document, QUESTIONS)
        row = records.exam(document, asked, intro)
        first_digits = [i for i, kind in enumerate(row.kinds) if kind == Kind.LOOKUP][:: len(asked[0].value)]
        begins = 2 + len(intro)
        distances = [
            digit - 1 - (begins + records.RECORD_BYTES * document.index(record))
            for digit, record in zip(first_digits, asked, strict=True)
        ]
        found.append(Exam(row, distances))
    return found


@torch.no_grad()
def predict(model: TinyModel, row: Row, mode: IndexMode) -> Tensor:
    """Most likely next token at every position but the last, int64 [length - 1], on the CPU."""
    ids = torch.tensor([row.ids], device=model.head.weight.device)
    output: ModelOutput = model(ids, mode)
    return output.logits[0, :-1].argmax(-1).cpu()


def lookup(model: TinyModel, papers: list[Exam]) -> dict[str, dict[str, Any]]:
    """For each index mode: share of questions right, in all and by distance bucket, and of other reply tokens."""
    results = {}
    for name, mode in modes(model).items():
        by_distance: dict[int, list[bool]] = defaultdict(list)
        other: list[float] = []
        for paper in papers:
            guess, kinds = predict(model, paper.row, mode), torch.tensor(paper.row.kinds[1:])
            right = guess == torch.tensor(paper.row.ids[1:])
            other.append(right[kinds == Kind.REPLY].float().mean().item())
            answers = right[kinds == Kind.LOOKUP].view(len(paper.distances), -1).all(-1)
            for distance, ok in zip(paper.distances, answers.tolist(), strict=True):
                by_distance[distance // DISTANCE_STEP * DISTANCE_STEP].append(ok)
        everything = [ok for answers in by_distance.values() for ok in answers]
        results[name] = {
            "accuracy": sum(everything) / len(everything),
            "questions": len(everything),
            "reply": sum(other) / len(other),
            "by_distance": {str(key): [sum(v), len(v)] for key, v in sorted(by_distance.items())},
        }
    return results


def missing_keys(model: TinyModel, documents: int) -> float:
    """Share of questions about a key that is not in the document that are answered `none`."""
    right = 0
    for number in range(documents):
        rng = random.Random(f"missing/{number}")
        *document, absent = records.records(rng, DOCUMENT_TOKENS // records.RECORD_BYTES + 1)
        ids = prompt(records.question_prompt(document, absent.key)) + encode(f"{absent.key}:")
        row = Row(1 << 20).add(ids, Kind.IGNORED).add("none", Kind.LOOKUP)
        right += int(predict(model, row, serving(model))[-4:].tolist() == encode("none"))
    return right / documents


@torch.no_grad()
def perplexity(model: TinyModel, text: bytes, window: int = 2000, limit: int = 128) -> float:
    """Per byte, over at most `limit` separate windows; the first 64 bytes of each are context only."""
    device = model.head.weight.device
    nats, count = 0.0, 0
    for start in range(0, min(len(text), window * limit), window):
        ids = torch.tensor([[0, *encode(text[start : start + window])]], device=device)
        if ids.shape[1] < 128:
            break
        losses = F.cross_entropy(model(ids, serving(model)).logits[0, :-1], ids[0, 1:], reduction="none")
        nats += losses[64:].sum().item()
        count += len(losses) - 64
    return float(torch.tensor(nats / count).exp())


def story_text(seed: str, count: int) -> bytes:
    """Stories one after another."""
    rng = random.Random(seed)
    return "\n\n".join(stories.story(rng, stories.subject(rng)) for _ in range(count)).encode()


def language(model: TinyModel, corpus: Corpus) -> dict[str, dict[str, float]]:
    """Held-out perplexity per byte beside that of an order-3 byte model trained on the same text."""
    results = {}
    texts = {
        "python prose": (corpus.train, corpus.heldout),
        "stories": (story_text("train", 8000), story_text("held out", 100)),
    }
    for name, (train, heldout) in texts.items():
        ours, baseline = perplexity(model, heldout), ngram.perplexity(train, heldout, order=3)
        results[name] = {"model": ours, "order-3": baseline, "ratio": baseline / ours}
    return results


def turns(model: TinyModel, corpus: Corpus, count: int) -> dict[str, float]:
    """Share of replies (with eos) that are right token by token under teacher forcing, for copy and continue."""
    results = {}
    for name, turn in (("copy", tasks.copy_turn), ("small talk", tasks.small_talk_turn)):
        right = 0
        held = replace(corpus, train=corpus.heldout)
        for number in range(count):
            request, answer = turn(random.Random(f"turn/{name}/{number}"), held)
            row = Row(1 << 20).add(prompt(request), Kind.IGNORED).add(answer, Kind.REPLY).add([EOS], Kind.REPLY)
            guess, kinds = predict(model, row, serving(model)), torch.tensor(row.kinds[1:])
            right += int((guess == torch.tensor(row.ids[1:]))[kinds == Kind.REPLY].all())
        results[name] = right / count
    return results


def everything(model: TinyModel, corpus: Corpus, documents: int) -> dict[str, Any]:
    """All of the above; look-ups on `documents` documents of QUESTIONS questions each."""
    return {
        "lookup": lookup(model, exams(documents, seed=7)),
        "lookup, keys alike": lookup(model, exams(documents, seed=8, letters="abcdefgh")),
        "missing keys": missing_keys(model, 2 * documents),
        "language": language(model, corpus),
        "turns": turns(model, corpus, max(20, 2 * documents)),
    }


def main() -> None:
    """Evaluate a model directory and write the results as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model-dir", type=Path, required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by tools.training.corpus")
    parser.add_argument("--documents", type=int, default=25)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    family, config = load_config(arguments.model_dir)
    model, progress = checkpoint.load(arguments.model_dir / "model.safetensors", config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"step {progress.steps}, on {device}", flush=True)
    corpus = Corpus.load(arguments.corpus, family.model_type)
    results = everything(model.to(device).eval(), corpus, arguments.documents)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["language"]))


if __name__ == "__main__":
    main()
