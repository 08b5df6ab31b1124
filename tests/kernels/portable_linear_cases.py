"""Portable float32 products: in Triton's interpreter on a CPU (`test_kernels_portable.py`), compiled on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import router_cases
from dsv4_kernels import known_answers, portable, reference
from dsv4_kernels.router import SPLIT
from portable_device import COMPILED, DEVICE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PROJECTIONS = [(2048, 7168), (1024, 5120), (512, 4096), (384, 7168)] if COMPILED else [(40, 1100)]
"""Outputs and hidden sizes: of compressors and routers; small where the interpreter runs them."""


def product(x: Tensor, weight: Tensor) -> Tensor:
    return portable.linear_float32(x.to(DEVICE), weight.to(DEVICE), SPLIT).cpu()


def test_known_answers_hold() -> None:
    assert known_answers.mismatch("linear_float32", portable, DEVICE) == ""


@pytest.mark.parametrize(("outputs", "hidden"), PROJECTIONS)
def test_results_are_within_rounding_of_float64(outputs: int, hidden: int) -> None:
    torch.manual_seed(hidden)
    x, weight = router_cases.inputs(17, hidden, outputs)
    exact = x.double() @ weight.double().t()
    reach = x.double().abs() @ weight.double().abs().t()
    assert bool(((product(x, weight) - exact).abs() <= 2e-6 * reach).all())


@pytest.mark.parametrize(("outputs", "hidden"), PROJECTIONS)
def test_a_row_is_the_same_in_any_batch(outputs: int, hidden: int) -> None:
    batches = list(range(1, 257)) if COMPILED else [1, 15, 17, 33, 255]
    router_cases.check_batches(lambda x, weight: product(x, weight)[None], hidden, outputs, batches)


def test_rows_past_those_of_a_step_equal_the_reference_where_sums_are_exact() -> None:
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(-8, 9, (300, 520), generator=generator).bfloat16()
    weight = torch.randint(-8, 9, (24, 520), generator=generator).bfloat16()
    assert torch.equal(product(x, weight), reference.linear_float32(x, weight, SPLIT))
