"""Report lines of the portable kernels, compiled for gfx950 and executed on the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dsv4_kernels import known_answers, portable
from dsv4_serve.kernel_report.random_case import random_call
from dsv4_serve.kernel_report.row import KernelRow
from gfx950_emulator import active
from gfx950_emulator.launch import LaunchRecord

KEYS = (1024, 2048)
"""Keys of the two runs whose counts are subtracted: every program is in its loop from the first page on."""


def operation_rows(op: str) -> Iterator[KernelRow]:
    """A line for each kernel that `op` launches. RuntimeError where its known answers do not hold on the emulator."""
    with active() as session:
        difference = known_answers.mismatch(op, portable, torch.device("cpu"))
    if difference:
        raise RuntimeError(f"portable {op} on the emulator: {difference}")
    seen: dict[str, LaunchRecord] = {}
    for launch in session.launches:
        seen.setdefault(launch.kernel.name, launch)
    for name, launch in seen.items():
        yield _row(f"portable_{op}_{name.strip('_')}", op, launch)


def logits_row(heads: int, rows: int) -> KernelRow:
    """Portable logits of one row, or of rows that share their keys, counted like the others over all programs."""
    with active() as session:
        for keys in KEYS:
            portable.paged_logits(random_call(keys, heads, rows, shared=rows > 1))
    few, many = (launch.wave_instructions for launch in session.launches)
    executed = (many - few) * 64 / (KEYS[1] - KEYS[0])
    name = f"portable_paged_logits_h{heads}_r{rows}"
    return _row(name, "paged_logits", session.launches[0], heads, rows, executed)


def _row(
    name: str,
    op: str,
    launch: LaunchRecord,
    heads: int | None = None,
    rows: int | None = None,
    executed: float | None = None,
) -> KernelRow:
    resources = launch.kernel.resources
    return KernelRow(
        name=name,
        op=op,
        backend="portable",
        arch="gfx950",
        vgpr=resources.vgprs,
        agpr=resources.agprs,
        sgpr=resources.sgprs,
        lds=launch.lds_bytes,
        scratch=resources.scratch_bytes,
        spills=resources.vgpr_spills + resources.sgpr_spills,
        occupancy=resources.occupancy,
        heads=heads,
        rows=rows,
        wave_instructions_per_64_keys=executed,
    )
