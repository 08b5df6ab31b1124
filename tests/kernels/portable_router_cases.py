"""The portable router: in Triton's interpreter on a CPU (`test_kernels_portable.py`), compiled on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import router_cases
from dsv4_kernels import known_answers, portable
from dsv4_kernels.router import SPLIT
from portable_device import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def partials(x: Tensor, weight: Tensor) -> Tensor:
    return portable.router_partials(x.to(DEVICE), weight.to(DEVICE), SPLIT).cpu()


def gate(parts: Tensor, bias: Tensor | None, k: int, scaling: float, renormalise: bool) -> tuple[Tensor, Tensor]:
    of = None if bias is None else bias.to(DEVICE)
    weights, chosen = portable.router_gate(parts.to(DEVICE), of, k, scaling, renormalise)
    return weights.cpu(), chosen.cpu()


@pytest.mark.parametrize("op", ["router_partials", "router_gate"])
def test_known_answers_hold(op: str) -> None:
    assert known_answers.mismatch(op, portable, DEVICE) == ""


@pytest.mark.parametrize(("experts", "k"), router_cases.SHAPES)
def test_gate_equals_the_oracle_bit_for_bit(experts: int, k: int) -> None:
    router_cases.check_gate(gate, experts, k, step=2.0 if experts % 3 else 4096.0)


@pytest.mark.parametrize(("rows", "hidden", "experts"), [(1, 1, 1), (17, 513, 20), (5, 1600, 33), (2, 5120, 256)])
def test_partials_stay_within_rounding(rows: int, hidden: int, experts: int) -> None:
    router_cases.check_values(partials, rows, hidden, experts)


def test_partials_of_a_row_are_the_same_in_any_batch() -> None:
    router_cases.check_batches(partials, 600, 20, [1, 2, 15, 17, 33, 100, 255])


@pytest.mark.parametrize("start", [0, 1, 8])
def test_rows_far_apart_and_odd_starts_give_the_same_bits(start: int) -> None:
    x, weight = router_cases.inputs(256, 640, 20)
    wide = torch.full((2, 256, 653), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    views = [wide[i, :n, start : start + 640] for i, n in enumerate((256, 20))]
    for view, values in zip(views, (x, weight), strict=True):
        view.copy_(values)
    got = portable.router_partials(views[0], views[1], SPLIT)
    assert torch.equal(got.cpu(), partials(x, weight))


def test_a_row_that_is_not_finite_stays_alone() -> None:
    router_cases.check_row_of_nan_stays_alone(partials)


def test_nothing_to_do() -> None:
    assert partials(torch.empty(0, 600).bfloat16(), torch.empty(8, 600).bfloat16()).shape == (2, 0, 8)
    assert gate(torch.empty(2, 0, 8), None, 3, 1.0, True)[0].shape == (0, 3)
