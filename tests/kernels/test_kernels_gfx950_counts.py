"""Instructions and registers of the gfx950 paged logits: the bounds that docs/kernels.md states."""

from __future__ import annotations

import re

import pytest
import torch

from dsv4_kernels.gfx950 import logits as gfx950_logits
from gfx950_emulator import active
from gfx950_scoring import Scoring, ints


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def wave_instructions(heads: int, rows: int, fast: bool) -> tuple[float, dict[str, int]]:
    """Executed wave-instructions of one wave per 64 keys and row in steady state, and the kernel's static resources."""
    counts = []
    for pages in (8, 16):
        case = Scoring(rows=rows, heads=heads, pages=pages)
        table, ends = case.tables(1, pages), ints(*[64 * pages] * rows)
        out = torch.empty(rows, 64 * pages)
        with active() as session:
            seqs = torch.zeros(rows, dtype=torch.int32) if rows > 1 else None
            call = case.call(table, ends, 64 * pages, seqs=seqs)
            kernel = gfx950_logits.launch(call, out, rows_per_wave=rows, fast=fast, splits=1)
        counts.append(session.launches[0].wave_instructions)
    text = kernel.asm["amdgcn"]  # type: ignore[attr-defined]
    names = ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size", "group_segment_fixed_size")
    found = {name: re.search(rf"\.{name}:\s+(\d+)", text) for name in names}
    resources = {name: int(m.group(1)) for name, m in found.items() if m is not None}
    assert kernel.metadata.shared == 0  # type: ignore[attr-defined]
    return (counts[1] - counts[0]) / 8 / rows, resources


@pytest.mark.parametrize(
    ("heads", "rows", "fast", "most", "registers"),
    [
        (64, 1, True, 130, 96),
        (32, 1, True, 90, 64),
        (64, 2, True, 113, 136),
        (32, 2, True, 73, 96),
        (64, 4, True, 107, 232),
        (32, 4, True, 67, 152),
        (64, 1, False, 165, 96),
        (32, 1, False, 110, 64),
    ],
)
def test_instructions_and_registers(heads: int, rows: int, fast: bool, most: int, registers: int) -> None:
    count, resources = wave_instructions(heads, rows, fast)
    assert count <= most
    assert resources["vgpr_count"] <= registers
    assert resources["vgpr_spill_count"] == 0
    assert resources["private_segment_fixed_size"] == 0
    assert resources["group_segment_fixed_size"] == 0


def test_a_window_far_from_the_start_costs_what_one_at_the_start_does(fast: bool) -> None:
    case = Scoring(rows=1, heads=32)
    table, seqs = case.tables(1, 20), ints(0)
    counts = []
    for start in (0, 640, 1216):
        session = case.check(table, ints(start + 64), 1280, seqs=seqs, starts=ints(start), rows_per_wave=1, fast=fast)
        counts.append(session.launches[0].wave_instructions)
    assert max(counts) == min(counts)
