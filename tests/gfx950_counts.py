"""What kernels execute on the emulated gfx950, and the tables of docs/v41.md that say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gfx950_emulator import active
from gfx950_emulator.launch import LaunchRecord

DOCUMENT = Path(__file__).parents[1] / "docs" / "v41.md"
Work = Callable[[int], None]
"""An operation on as many rows as it is told."""


def table_lines(*columns: str) -> list[tuple[str, ...]]:
    """Every line below the heading of these columns, without the marks of code."""
    heading = f"| {' | '.join(columns)} |\n"
    _, found, below = DOCUMENT.read_text().partition(heading)
    assert found, f"{DOCUMENT.name} has no table {heading}"
    lines = below.partition("\n\n")[0].splitlines()[1:]
    return [tuple(cell.strip().strip("`") for cell in line.strip("|").split("|")) for line in lines]


def angles(positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE, float32 [positions, 32]."""
    angle = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return angle.cos(), angle.sin()


def launches(work: Work, rows: int) -> Sequence[LaunchRecord]:
    """Of `rows` rows. Registers may go to vector lanes, nothing to memory."""
    with active() as session:
        work(rows)
    for launch in session.launches:
        resources = launch.kernel.resources
        assert (resources.vgpr_spills, resources.scratch_bytes) == (0, 0)
    return session.launches


def instructions_a_row(work: Work, rows: int) -> tuple[list[float], Sequence[LaunchRecord]]:
    """Wave-instructions that each launch executes more for each of `rows` rows more; the launches of twice as many."""
    few, many = launches(work, rows), launches(work, 2 * rows)
    pairs = zip(few, many, strict=True)
    return [(b.wave_instructions - a.wave_instructions) / rows for a, b in pairs], many
