"""Does the decode schedule stay in registers when there are many rows, and is it the schedule that it should be?"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.probes.flydsl_source import NotProbed, load, prepare

ROWS, NEXT_N, SLOTS, CHUNK, LONGEST = 160, 2, 1024, 256, 16384
"""160 rows are the first power of two past 128, where upstream's kernel begins to spill."""


def probe(tree: Path) -> Finding:
    """Compile what `compute_varctx_schedule` launches for gfx950, execute it, and look at its registers."""
    prepare()
    # Triton warns where nobody chose; the emulator's own runs choose the same.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    try:
        module = load(tree, "pa_mqa_logits_fp4")
        return _judge(module.compute_varctx_schedule)
    except (NotProbed, ImportError, AttributeError) as error:
        return Finding("unknown", str(error))


def _judge(compute: Any) -> Finding:
    from gfx950_emulator import active

    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, LONGEST + 1, (ROWS,), dtype=torch.int32, generator=draw)
    began = time.monotonic()
    with active() as session:
        _, schedule, _ = compute(lengths, CHUNK, SLOTS, LONGEST, next_n=NEXT_N)
    seconds = time.monotonic() - began
    if not session.launches:
        return Finding("unknown", "nothing was launched")
    used = [launch.kernel.resources for launch in session.launches]
    spills = sum(each.vgpr_spills + each.sgpr_spills for each in used)
    registers = max(each.vgprs for each in used)
    told = f"{ROWS} rows: {registers} VGPR, {spills} spills, {seconds:.0f} s to compile and emulate"
    if not torch.equal(schedule, expected(lengths)):
        return Finding("broken", f"{told}; the schedule is wrong", ("schedule",))
    return Finding("broken" if spills else "sound", told, ("spills",) if spills else ())


def expected(lengths: Tensor) -> Tensor:
    """int32 [SLOTS, 4]: sequence * NEXT_N + row, first chunk, chunks, length. The fewest chunks a slot that suffice."""
    chunks = [-(-int(length) // CHUNK) for length in lengths]
    per_slot = 1
    while NEXT_N * sum(-(-count // per_slot) for count in chunks) > SLOTS:
        per_slot += 1
    slots = []
    for sequence, count in enumerate(chunks):
        for first in range(0, count, per_slot):
            taken = min(per_slot, count - first)
            slots += [[sequence * NEXT_N + row, first, taken, int(lengths[sequence])] for row in range(NEXT_N)]
    slots += [[0, 0, 1, 0]] * (SLOTS - len(slots))
    return torch.tensor(slots, dtype=torch.int32)
