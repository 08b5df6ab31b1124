"""Hopper's logits against float64 on the GPU: `python -m tools.h200.correctness GROUP` prints JSON.

Outputs are poisoned before each launch; what a row does not see must stay, and two launches must agree bit for bit.
The float16 accumulators round one of some two million products of quantised normal data, so that an error of few logits
says how many of those they met; `many` scores a million.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tools.h200.oracle import DEVICE, Case
from torch import Tensor

from dsv4_kernels.hopper import logits as hopper

WIDTH = 2048
ENDS = (1, 63, 64, 65, 127, 128, 129, 1000, 1983, 2047, 2048, 0)
SEQUENCES = (0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 1, 3)
STARTS = (0, 60, 63, 64, 100, 128, 7, 999, 64, 1024, 2000, 0)
POISON = -12345.0
LOOPING = hopper.Programs(brief=0, rows=0.1)
FEW = hopper.Programs(brief=1)
BOUNDS = {"normal": 3e-6, "8 octaves": 5e-4, "30 octaves": 1e-3}
"""Largest relative error (norm) of a few logits that passes; that of 8 octaves is the project's bar."""
MANY = 1e-6
"""The project's bar for quantised normal data, of a million logits."""
MANY_ROWS, MANY_KEYS = 64, 16384


@dataclass(frozen=True, slots=True)
class Variant:
    """How a launch is shaped: one row a sequence or shared sequences, windows, weights, thread blocks."""

    name: str
    shared: bool = False
    windowed: bool = False
    dtype: torch.dtype = torch.bfloat16
    programs: hopper.Programs = hopper.PROGRAMS


GROUPS: dict[str, tuple[int, tuple[Variant, ...]]] = {
    "single": (
        64,
        (
            Variant("one page a program"),
            Variant("three pages a program", programs=FEW),
            Variant("runs of pages over rows", programs=LOOPING),
            Variant("float32 weights", dtype=torch.float32, programs=LOOPING),
        ),
    ),
    "groups": (64, (Variant("groups", shared=True), Variant("groups, windows", shared=True, windowed=True))),
    "heads32": (
        32,
        (
            Variant("one page a program"),
            Variant("windows", windowed=True, programs=LOOPING),
            Variant("groups", shared=True),
        ),
    ),
}


def _ints(values: tuple[int, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def check(case: Case, variant: Variant, kind: str, heads: int) -> dict[str, object]:
    """Run a variant twice on a case and compare with float64."""
    sequences = SEQUENCES if variant.shared else tuple(range(len(ENDS)))
    starts = STARTS if variant.windowed else (0,) * len(ENDS)
    weights = case.weights.to(variant.dtype)
    table = (
        torch.randperm(case.pool.pages, device=DEVICE)[: (max(sequences) + 1) * WIDTH // 64].int().view(-1, WIDTH // 64)
    )
    outputs = []
    for _ in range(2):
        out = torch.full((len(ENDS), WIDTH + 64), POISON, device=DEVICE)
        hopper.launch(
            case.query,
            case.pool,
            weights,
            table,
            _ints(ENDS),
            _ints(sequences) if variant.shared else None,
            _ints(starts) if variant.windowed else None,
            1.5,
            out[:, :WIDTH],
            variant.programs,
        )
        outputs.append(out)
    exact = case.exact(table, list(starts), list(ENDS), list(sequences), weights, 1.5, WIDTH)
    got, seen = outputs[0][:, :WIDTH], ~torch.isnan(exact)
    difference = got[seen].double() - exact[seen]
    error = float(difference.norm() / exact[seen].norm())
    untouched = bool((got[~seen] == POISON).all() and (outputs[0][:, WIDTH:] == POISON).all())
    same = bool(torch.equal(outputs[0], outputs[1]))
    return {
        "variant": f"H={heads} {variant.name}",
        "data": kind,
        "relative_error": error,
        "largest_error": float(difference.abs().max() / exact[seen].abs().max()),
        "untouched": untouched,
        "repeatable": same,
        "passed": error <= BOUNDS[kind] and untouched and same,
    }


def check_many(heads: int, group: int) -> dict[str, object]:
    """Rows that see all keys of quantised normal data, `group` rows a sequence, against float64."""
    sequences, pages = MANY_ROWS // group, MANY_KEYS // 64
    case = Case.normal(MANY_ROWS, heads, sequences * pages)
    table = torch.randperm(case.pool.pages, device=DEVICE).int().view(sequences, pages)
    seqs = [row // group for row in range(MANY_ROWS)]
    out = torch.full((MANY_ROWS, MANY_KEYS), POISON, device=DEVICE)
    ends = _ints((MANY_KEYS,) * MANY_ROWS)
    shared = _ints(tuple(seqs)) if group > 1 else None
    weights = case.weights.bfloat16()
    hopper.launch(case.query, case.pool, weights, table, ends, shared, None, 1.0, out)
    exact = case.exact(table, [0] * MANY_ROWS, [MANY_KEYS] * MANY_ROWS, seqs, weights, 1.0, MANY_KEYS)
    difference = out.double() - exact
    error = float(difference.norm() / exact.norm())
    return {
        "variant": f"H={heads} {MANY_ROWS} rows x {MANY_KEYS} keys" + f", groups of {group}" * (group > 1),
        "data": "normal",
        "relative_error": error,
        "largest_error": float(difference.abs().max() / exact.abs().max()),
        "untouched": True,
        "repeatable": True,
        "passed": error <= MANY,
    }


def run(group: str) -> Iterator[dict[str, object]]:
    """Every variant of a group on every kind of data."""
    if group == "many":
        yield from (check_many(heads, rows) for heads in (64, 32) for rows in (1, 4))
        return
    heads, variants = GROUPS[group]
    rows, pages = len(ENDS), len(ENDS) * WIDTH // 64 + 3
    cases = {
        "normal": Case.normal(rows, heads, pages),
        "8 octaves": Case.spread(rows, heads, pages, 8),
        "30 octaves": Case.spread(rows, heads, pages, 30),
    }
    for variant in variants:
        for kind, case in cases.items():
            yield check(case, variant, kind, heads)


if __name__ == "__main__":
    for result in run(sys.argv[1]):
        print(json.dumps(result), flush=True)
