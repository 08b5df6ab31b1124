"""The portable router compiled for gfx950 and executed on the emulator, waves in three orders."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

import router_cases
from dsv4_kernels import portable, reference
from dsv4_kernels.router import SPLIT
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order


@pytest.fixture(params=get_args(Order))
def order(request: pytest.FixtureRequest) -> Order:
    chosen: Order = request.param
    return chosen


@pytest.mark.parametrize(("experts", "k"), [(100, 7), (256, 6), (384, 8)])
def test_gate_equals_the_oracle_bit_for_bit(experts: int, k: int, order: Order) -> None:
    with active(order) as session:
        router_cases.check_gate(portable.router_gate, experts, k, step=4096.0)
    assert len(session.launches) == 4


def test_partials(order: Order) -> None:
    def partials(x: Tensor, weight: Tensor) -> Tensor:
        return portable.router_partials(x, weight, SPLIT)

    with active(order):
        router_cases.check_values(partials, 17, 1100, 33)
        router_cases.check_batches(partials, 600, 20, [1, 15, 18], total=20)
        router_cases.check_row_of_nan_stays_alone(partials)


def test_partials_and_gate_together(order: Order) -> None:
    """Sums that are exact in float32: the backends agree bit for bit."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(-8, 9, (3, 1024), generator=generator).bfloat16()
    weight = (torch.randint(-8, 9, (40, 1024), generator=generator) / 1024).bfloat16()
    results = []
    with active(order):
        for backend in (portable, reference):
            parts = backend.router_partials(x, weight, SPLIT)
            results.append((parts, *backend.router_gate(parts, None, 4, 1.5, True)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
