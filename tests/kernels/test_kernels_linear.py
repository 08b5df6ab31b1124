"""Float32 products: exact where sums are, within rounding elsewhere, the same in any batch, never through bfloat16."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import router_cases
from dsv4_kernels import counters, known_answers, ops, portable, reference
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.portable import linear
from dsv4_kernels.router import SPLIT
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order

CPU = torch.device("cpu")


@pytest.fixture(params=["reference", *get_args(Order)])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The reference, then the portable kernels as gfx950 code on the emulator, waves in three orders."""
    name = request.param
    with nullcontext() if name == "reference" else active(name):
        yield reference if name == "reference" else portable


@pytest.mark.parametrize(("rows", "hidden", "outputs"), [(1, 1, 1), (3, 512, 40), (17, 1100, 33)])
def test_results_are_within_rounding_of_float64(backend: Any, rows: int, hidden: int, outputs: int) -> None:
    torch.manual_seed(hidden)
    x, weight = router_cases.inputs(rows, hidden, outputs)
    got = backend.linear_float32(x, weight, SPLIT)
    exact = x.double() @ weight.double().t()
    assert got.dtype == torch.float32
    assert bool(((got - exact).abs() <= 2e-6 * (x.double().abs() @ weight.double().abs().t())).all())


def test_results_are_the_ascending_sum_of_the_routers_partials(backend: Any) -> None:
    torch.manual_seed(1)
    x, weight = router_cases.inputs(5, 1600, 24)
    first, *rest = backend.router_partials(x, weight, SPLIT)
    for part in rest:
        first = first + part
    assert torch.equal(backend.linear_float32(x, weight, SPLIT), first)


def test_a_row_is_the_same_in_any_batch(backend: Any) -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = backend.linear_float32(x, weight, SPLIT)
        return result[None]

    router_cases.check_batches(product, 600, 20, [1, 15, 18], total=20)


def test_known_answers_hold(backend: Any) -> None:
    assert known_answers.mismatch("linear_float32", backend, CPU) == ""


def test_every_batch_of_1_to_256_rows_gives_a_row_the_same_bits() -> None:
    router_cases.check_batches(lambda x, w: ops.linear_float32(x, w)[None], 520, 3, list(range(1, 257)))


def test_more_rows_than_fit_at_once_and_more_outputs_than_a_router_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends agree bit for bit where every sum is exact."""
    monkeypatch.setattr(linear, "ROWS_AT_ONCE", 32)
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(-8, 9, (70, 520), generator=generator).bfloat16()
    weight = torch.randint(-8, 9, (520, 520), generator=generator).bfloat16()
    with active() as session:
        got = portable.linear_float32(x, weight, SPLIT)
    assert len(session.launches) == 6
    assert torch.equal(got, reference.linear_float32(x, weight, SPLIT))
    assert torch.equal(got, (x.double() @ weight.double().t()).float())


def test_no_rows() -> None:
    assert ops.linear_float32(torch.empty(0, 600).bfloat16(), torch.empty(8, 600).bfloat16()).shape == (0, 8)
    assert portable.linear_float32(torch.empty(0, 600).bfloat16(), torch.empty(8, 600).bfloat16(), SPLIT).shape == (
        0,
        8,
    )


def test_launches_are_counted() -> None:
    key = ("linear_float32", "verify", "reference")
    before = counters.snapshot().launches.get(key, 0)
    ops.linear_float32(torch.ones(1, 8).bfloat16(), torch.ones(4, 8).bfloat16(), phase="verify")
    assert counters.snapshot().launches[key] == before + 1


class Rounded:
    """As AITER's product answers a request for float32 where no tuned kernel is listed."""

    def linear_float32(self, x: Tensor, weight: Tensor, split: int) -> Tensor:
        return reference.linear_float32(x, weight, split).bfloat16().float()


class Descending:
    def linear_float32(self, x: Tensor, weight: Tensor, split: int) -> Tensor:
        total = torch.zeros(x.shape[0], weight.shape[0])
        for part in reference.router_partials(x, weight, split).flip(0):
            total = total + part
        return total


def test_known_answers_find_what_is_wrong() -> None:
    wrong: Any = Rounded()
    assert known_answers.mismatch("linear_float32", wrong, CPU) == "results differ from the known ones"
    wrong = Descending()
    assert known_answers.mismatch("linear_float32", wrong, CPU) == "partials are not added in ascending order"


X, WEIGHT = torch.zeros(2, 8).bfloat16(), torch.zeros(4, 8).bfloat16()


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (X.float(), WEIGHT, "x.dtype=torch.float32: accepted is torch.bfloat16"),
        (X, WEIGHT.float(), "weight.dtype=torch.float32: accepted is torch.bfloat16"),
        (X, WEIGHT[:, :7], "weight.shape=[4, 7]: accepted is [any, 8]"),
        (X[:, :0], WEIGHT[:, :0], "x.shape[1]=0: accepted is an integer >= 1"),
        (X, WEIGHT[:0], "weight.shape[0]=0: accepted is an integer >= 1"),
        (X[:, ::2], WEIGHT[:, :4], "x.stride=[8, 2]: accepted is a last stride of 1"),
    ],
)
def test_wrong_tensors_are_refused(x: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ops.linear_float32(x, weight)
