"""V4.1's index path in the portable kernels compiled for gfx950, on the emulator with waves in three orders."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from dsv4_kernels import portable, reference
from dsv4_kernels.pool import IndexPool, IndexSpec
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order

HEADS = 32


@pytest.fixture(params=get_args(Order))
def order(request: pytest.FixtureRequest) -> Order:
    chosen: Order = request.param
    return chosen


def angles() -> tuple[Tensor, Tensor]:
    angle = torch.arange(64)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("layout", ["split64", "split8"])
def test_keys_in_two_stages_without_hadamard(layout: str, order: Order) -> None:
    """Octaves, zeros of both signs and what is not a number; a slot of -1."""
    torch.manual_seed(1)
    spec = IndexSpec.named(layout, "rne_v41", hadamard=False)
    k = torch.randn(6, 128) * torch.exp2(torch.randint(-20, 21, (6, 1)).float())
    k[2, ::3], k[3], k[4, 70] = -0.0, 0.0, torch.nan
    arguments = k.bfloat16(), torch.rand(128) + 0.5, 1e-6, *angles(), torch.arange(6) * 9
    slots = torch.tensor([70, 3, 0, 129, -1, 64])
    pools = [IndexPool.allocate(spec, 192 // spec.layout.page_slots) for _ in range(2)]
    with active(order):
        portable.write_index_keys(pools[0], *arguments, slots)
    reference.write_index_keys(pools[1], *arguments, slots)
    assert torch.equal(pools[0].payload, pools[1].payload)
    assert torch.equal(pools[0].scale, pools[1].scale)


def test_a_query_with_its_head_weights_in_one_launch(order: Order) -> None:
    torch.manual_seed(2)
    spec = IndexSpec.named("split64", "rne_v41", hadamard=False)
    q, weights = torch.randn(2, HEADS, 128).bfloat16(), torch.randn(2, HEADS)
    arguments = q, *angles(), torch.tensor([5, 60]), weights, 0.125, spec
    with active(order) as session:
        got, scaled = portable.quantize_query_with_weights(*arguments)
    want, known = reference.quantize_query_with_weights(*arguments)
    assert len(session.launches) == 1
    for ours, theirs in ((got.payload, want.payload), (got.scale, want.scale), (scaled, known)):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


def test_candidate_blocks_and_what_is_selected_by_position(order: Order) -> None:
    torch.manual_seed(3)
    logits, lengths = torch.randn(4, 200).round(decimals=1), torch.tensor([0, 5, 120, 200], dtype=torch.int32)
    logits[3, ::7] = torch.nan
    table = torch.randint(0, 2**31 - 1, (4, 4), dtype=torch.int32)
    results = []
    for backend in (portable, reference):
        with active(order):
            slots = backend.topk_slots(logits, lengths, 30, table, None, 64, True)
            results.append((backend.candidate_blocks(logits, lengths, 9, 8), *slots))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    for row in results[0][1].tolist():
        kept = [index for index in row if index >= 0]
        assert row == sorted(kept) + [-1] * (30 - len(kept))
