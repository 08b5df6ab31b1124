"""The portable kernels compiled for gfx950 and executed on the emulator: known answers, registers, no scratch."""

from __future__ import annotations

import pytest
import torch

from dsv4_kernels import known_answers, portable, reference, registry
from gfx950_emulator import active


@pytest.mark.parametrize("op", registry.OPS)
def test_known_answers(op: str) -> None:
    with active() as session:
        assert known_answers.mismatch(op, portable, torch.device("cpu")) == ""
    assert session.launches
    for launch in session.launches:
        assert launch.kernel.resources.vgpr_spills == 0
        assert launch.kernel.resources.scratch_bytes == 0
        assert launch.kernel.resources.vgprs <= 224


@pytest.mark.parametrize("rows", [1, 1536])
def test_schedules_need_few_registers_whatever_the_rows(rows: int) -> None:
    lengths = (torch.arange(rows) * 37 % 5001).int()
    with active() as session:
        info = portable.decode_schedule(lengths, 5000, max(1024, 4 * rows), 256)
    assert torch.equal(info, reference.decode_schedule(lengths, 5000, max(1024, 4 * rows), 256))
    assert len(session.launches) == 2
    assert all(launch.kernel.resources.vgprs <= 64 for launch in session.launches)
