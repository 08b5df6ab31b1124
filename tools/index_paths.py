"""Whether an index kept in pages of 8, or scored in row groups, picks what one in pages of 64 picks: bit for bit?

    python -m tools.index_paths MODEL_DIR                                   # backend reference
    TRITON_INTERPRET=1 python -m tools.index_paths MODEL_DIR --backend portable
    python -m tools.index_paths MODEL_DIR --backend gfx950                  # code objects on the emulator

A model reads a generated document; queries and keys of a sample of its positions then go through all three paths.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv4_kernels import backends, ops
from dsv4_kernels.conversion import convert
from dsv4_kernels.layout import layout
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.tokenizer import BOS_ID, load_tokenizer
from dsv4_serve.evaluation.forward import every_logit
from dsv4_serve.evaluation.items import document_text, documents
from dsv4_serve.evaluation.shadow import indexers
from gfx950_emulator import active

TOPK = 64
ROWS = 4
"""Queries of one sampled call: what a draft has, and a row group shares keys among."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one model and backend: sampled queries, scores of theirs, and how many came out otherwise than page 64's.

    `page8` and `rowgroup` count scores whose 32 bits differ, `picks` the queries of either path whose top-64 differ.
    Against the reference backend: `largest` difference of a score, and `reference_picks` queries that pick otherwise.
    """

    model: str
    backend: str
    queries: int
    scores: int
    page8: int
    rowgroup: int
    picks: int
    largest: float
    reference_picks: int


class Recorder:
    """A backend that notes its paged calls while `on`."""

    def __init__(self) -> None:
        self._backend = backends.load("reference")
        self.on, self.calls = False, list[LogitsCall]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def paged_logits(self, call: LogitsCall) -> Tensor:
        if self.on:
            self.calls.append(replace(call, out=None))
        return self._backend.paged_logits(call)


class Sampler:
    """Observes an indexer: scores ROWS neighbouring queries of each group again, for the recorder to note."""

    def __init__(self, recorder: Recorder, pool: IndexPool) -> None:
        self._recorder, self._pool = recorder, pool

    def stored(self, write: Callable[[IndexPool], None]) -> None:
        """The engine's own pool is used."""

    def scored(self, score: Callable[[IndexPool, Tensor], Tensor], rows: Tensor, seen: Tensor) -> None:
        self._recorder.on = True
        score(self._pool, torch.arange(max(0, len(rows) - ROWS), len(rows)))
        self._recorder.on = False


def capture(model: Path, records: int) -> list[LogitsCall]:
    """Scoring calls of the model's indexers over a document, with its FP4 keys as they lie in its pages."""
    built = build(EngineOptions(model, model.name, indexer_dtype="fp4", max_total_tokens=4096, context_length=4096))
    text = document_text(documents(0, 1, records)[0])
    recorder = Recorder()
    for _, indexer, pool in indexers(built.model):
        indexer.observer = Sampler(recorder, pool)
    with backends.stand_in(recorder):
        every_logit(built.model, [BOS_ID, *load_tokenizer(model).encode_text(text)])
    return recorder.calls


def as_rowgroup(call: LogitsCall) -> LogitsCall:
    """The call's rows, which are of one sequence, as one group."""
    ends = torch.tensor([0, call.rows], dtype=torch.int32)
    return replace(call, query_start_loc=ends, max_query_len=call.rows)


def in_pages_of_8(call: LogitsCall) -> LogitsCall:
    """The same keys in pages of 8, which only row groups read."""
    spec = call.pool.spec
    eight = IndexSpec(layout("split8"), spec.convention, spec.hadamard)
    pool = IndexPool.allocate(eight, call.pool.pages * 8)
    convert(call.pool, pool)
    eighths = call.page_table[:, :, None] * 8 + torch.arange(8, dtype=torch.int32)
    return as_rowgroup(replace(call, pool=pool, page_table=eighths.flatten(1)))


def seen(logits: Tensor, call: LogitsCall) -> Tensor:
    """Scores that the rows see, -inf elsewhere: backends leave the rest unwritten."""
    return logits.masked_fill(torch.arange(logits.shape[1]) >= call.lengths[:, None], -torch.inf)


def picks(logits: Tensor, call: LogitsCall) -> Tensor:
    """int32 [rows, TOPK] by the product's own top-k."""
    return ops.topk(logits, call.lengths, TOPK)


def compare(model: Path, backend: str, records: int, most: int | None = None) -> Comparison:
    """Run the captured calls (`most`: so many, spread over them) through a backend's three paths."""
    calls = capture(model, records)
    calls = calls if most is None else calls[:: max(1, len(calls) // most)][:most]
    run, reference = backends.load(backend), backends.load("reference")
    counts = {"queries": 0, "scores": 0, "page8": 0, "rowgroup": 0, "picks": 0, "reference_picks": 0}
    largest = 0.0
    with active() if backend == "gfx950" else nullcontext():
        for call in calls:
            plain = seen(run.paged_logits(call), call)
            grouped = seen(run.rowgroup_logits(as_rowgroup(call)), call)
            eighths = seen(run.rowgroup_logits(in_pages_of_8(call)), call)
            exact = seen(reference.paged_logits(call), call)
            chosen = picks(plain, call)
            counts["queries"] += call.rows
            counts["scores"] += int(call.lengths.sum())
            counts["page8"] += _different(eighths, plain)
            counts["rowgroup"] += _different(grouped, plain)
            others = (picks(grouped, call) != chosen).any(1) | (picks(eighths, call) != chosen).any(1)
            counts["picks"] += int(others.sum())
            counts["reference_picks"] += int((picks(exact, call) != chosen).any(1).sum())
            largest = max(largest, float((plain - exact).nan_to_num(0).abs().max()))
    return Comparison(model.name, backend, largest=largest, **counts)


def _different(a: Tensor, b: Tensor) -> int:
    return int((a.contiguous().view(torch.int32) != b.contiguous().view(torch.int32)).sum())


def main() -> None:
    """Command line: one JSON line a model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, nargs="+", help="model directories")
    parser.add_argument("--backend", choices=("reference", "portable", "gfx950"), default="reference")
    parser.add_argument("--records", type=int, default=158, help="records of the document, eight tokens each")
    parser.add_argument("--calls", type=int, help="scoring calls to compare, spread over all that were captured")
    arguments = parser.parse_args()
    for model in arguments.model:
        print(json.dumps(asdict(compare(model, arguments.backend, arguments.records, arguments.calls))), flush=True)


if __name__ == "__main__":
    main()
