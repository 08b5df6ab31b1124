"""Instructions and registers of the gfx950 paged logits: the bounds that docs/kernels.md states."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from dsv4_kernels.gfx950 import logits as gfx950_logits
from dsv4_kernels.pool import IndexSpec
from gfx950_emulator import active
from gfx950_emulator.front_end.kernel import Resources
from gfx950_scoring import Scoring
from logits_scoring import ints


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@dataclass(frozen=True, slots=True)
class Counted:
    """A wave's work on one sequence, and the most that it may take: instructions per 64 keys and row, registers."""

    heads: int
    rows: int
    fast: bool
    most: float
    registers: int
    layout: str = "split64"
    gap: int = 0
    blocks: bool = False


COUNTED = (
    Counted(64, 1, True, 126, 96),
    Counted(32, 1, True, 86, 66),
    Counted(64, 2, True, 112.5, 136),
    Counted(32, 2, True, 72.5, 96),
    Counted(64, 4, True, 105.5, 232),
    Counted(32, 4, True, 65.5, 152),
    Counted(64, 1, False, 161, 96),
    Counted(32, 1, False, 106, 64),
    # Pages further apart than their size, as in a pool of several layers, cost nothing.
    Counted(64, 1, True, 126, 96, gap=4096),
    Counted(32, 1, True, 86, 66, gap=48),
    Counted(64, 1, True, 147, 104, "split8"),
    Counted(32, 1, True, 106, 80, "split8"),
    Counted(32, 4, True, 70.5, 160, "split8"),
    # vLLM's records: a byte of scales a tile where split64 has a word a page; pages of 128 add scalar work alone.
    Counted(64, 1, True, 128, 96, "record68", gap=4096),
    Counted(32, 4, True, 66.25, 152, "record68", gap=4096),
    Counted(32, 1, True, 107, 72, "record68_p128", gap=4096),
    Counted(32, 1, True, 154, 80, "record68_p128", gap=4096, blocks=True),
    Counted(64, 1, True, 194, 104, "record68", gap=4096, blocks=True),
)


def measured(of: Counted) -> tuple[float, Resources]:
    """Executed wave-instructions of one wave per 64 keys and row in steady state, and the kernel's static resources."""
    counts = []
    for keys in (512, 1024):
        spec = IndexSpec.named(of.layout, hadamard=False)
        pages = keys // spec.layout.page_slots
        case = Scoring(rows=of.rows, heads=of.heads, pages=pages, gap=of.gap, spec=spec)
        seqs = torch.zeros(of.rows, dtype=torch.int32) if of.rows > 1 else None
        call = case.call(case.tables(1, pages), ints(*[keys] * of.rows), keys, seqs=seqs)
        if of.blocks:
            call = replace(call, page_table=torch.randperm(keys // 8).int()[None], table_slots=8)
        with active() as session:
            gfx950_logits.launch(call, torch.empty(of.rows, keys), rows_per_wave=of.rows, fast=of.fast, splits=1)
        counts.append(session.launches[0].wave_instructions)
    return (counts[1] - counts[0]) / 8 / of.rows, session.launches[0].kernel.resources


@pytest.mark.parametrize("of", COUNTED, ids=str)
def test_instructions_and_registers(of: Counted) -> None:
    count, resources = measured(of)
    assert count <= of.most
    assert resources.vgprs <= of.registers
    assert resources.agprs == 0
    assert (resources.vgpr_spills, resources.sgpr_spills, resources.scratch_bytes, resources.lds_bytes) == (0, 0, 0, 0)


def test_a_window_far_from_the_start_costs_what_one_at_the_start_does(fast: bool) -> None:
    case = Scoring(rows=1, heads=32)
    table, seqs = case.tables(1, 20), ints(0)
    counts = []
    for start in (0, 640, 1216):
        session = case.check(table, ints(start + 64), 1280, seqs=seqs, starts=ints(start), rows_per_wave=1, fast=fast)
        counts.append(session.launches[0].wave_instructions)
    assert max(counts) == min(counts)
