"""Selection and schedules by the portable kernels: the indices of the reference.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1, which
Triton reads when it is imported. On a machine with a GPU: `python -m pytest tests/kernels/portable_selection_cases.py`.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from dsv4_kernels import portable, reference
from portable_device import COMPILED, DEVICE, ints

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("k", [1, 64, 512, 1024, 2048] if COMPILED else [1, 64, 100])
def test_topk_is_the_same(k: int) -> None:
    torch.manual_seed(k)
    lengths = ints(0, 1, 63, 64, 65, 511, 512, 513, 2049, 3000)
    logits = torch.randn(10, 3000, device=DEVICE)
    logits[5:, ::2] = logits[5:, ::2].round()
    logits[7, :300] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40], device=DEVICE).repeat(
        50
    )
    for by_position in (False, True):
        got, want = (b.topk(logits, lengths, k, by_position) for b in (portable, reference))
        assert torch.equal(got, want)


def test_topk_slots_are_the_same() -> None:
    torch.manual_seed(0)
    logits, lengths = torch.randn(6, 256, device=DEVICE).round(decimals=1), ints(0, 5, 64, 100, 255, 256)
    table, seqs = torch.randint(0, 2**31 - 1, (6, 4), dtype=torch.int32).to(DEVICE), ints(3, 0, 0, 1, 5, 5)
    for rows, by_position in itertools.product((None, seqs), (False, True)):
        got, want = (b.topk_slots(logits, lengths, 40, table, rows, 64, by_position) for b in (portable, reference))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_candidate_blocks_are_the_same() -> None:
    torch.manual_seed(1)
    logits = torch.randint(-4, 5, (7, 1100), device=DEVICE).float()
    logits[3, ::7] = float("nan")
    lengths = ints(0, 1, 8, 9, 777, 1096, 1100)
    for count in (1, 20, 200) if COMPILED else (1, 20):
        got = portable.candidate_blocks(logits, lengths, count, 8)
        assert torch.equal(got, reference.candidate_blocks(logits, lengths, count, 8))


@pytest.mark.parametrize("rows", [1, 7, 1536, 16384] if COMPILED else [1, 7, 1536])
def test_schedules_are_the_same(rows: int) -> None:
    torch.manual_seed(rows)
    lengths = torch.randint(0, 5001, (rows,), dtype=torch.int32).to(DEVICE)
    starts, seqs = (lengths // 3).int(), torch.arange(rows, dtype=torch.int32, device=DEVICE) // 2
    for ctas in (rows, rows + 5, max(1024, 4 * rows)):
        got = portable.decode_schedule(lengths, 5000, ctas, 256)
        assert torch.equal(got, reference.decode_schedule(lengths, 5000, ctas, 256))
        got = portable.prefill_schedule(seqs, starts, lengths, 5000, ctas, 256)
        assert torch.equal(got, reference.prefill_schedule(seqs, starts, lengths, 5000, ctas, 256))
