"""The router on the reference backend, through `ops`: bitwise against numpy, the same in any batch, and refusals."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import router_cases
import router_oracle
from dsv4_kernels import counters, known_answers, ops, reference
from dsv4_kernels.errors import ArgumentError


def gate(partials: Tensor, bias: Tensor | None, k: int, scaling: float, renormalise: bool) -> tuple[Tensor, Tensor]:
    return ops.router_gate(partials, bias, k, routed_scaling=scaling, renormalise=renormalise)


@pytest.mark.parametrize(("rows", "hidden", "experts"), [(1, 1, 1), (3, 512, 6), (4, 513, 20), (2, 1600, 33)])
def test_partials_are_products_added_by_halving(rows: int, hidden: int, experts: int) -> None:
    torch.manual_seed(hidden)
    x, weight = router_cases.inputs(rows, hidden, experts)
    want = router_oracle.partials(x.float().numpy(), weight.float().numpy())
    assert np.array_equal(ops.router_partials(x, weight).numpy(), want)
    router_cases.check_values(ops.router_partials, rows, hidden, experts)


def test_partials_of_a_row_are_the_same_in_any_batch() -> None:
    router_cases.check_batches(ops.router_partials, 600, 24, list(range(1, 257)))


def test_partials_at_the_size_of_a_model() -> None:
    router_cases.check_values(ops.router_partials, 2, 7168, 384)


def test_a_row_that_is_not_finite_stays_alone() -> None:
    router_cases.check_row_of_nan_stays_alone(ops.router_partials)


def test_rows_with_a_gap_between_them() -> None:
    torch.manual_seed(1)
    x, weight = router_cases.inputs(4, 1024, 16)
    assert torch.equal(ops.router_partials(x[:, :600], weight[:, :600]), _dense(x, weight, 600))


def _dense(x: Tensor, weight: Tensor, hidden: int) -> Tensor:
    return ops.router_partials(x[:, :hidden].contiguous(), weight[:, :hidden].contiguous())


@pytest.mark.parametrize("step", [2.0, 4096.0])
@pytest.mark.parametrize(("experts", "k"), router_cases.SHAPES)
def test_gate_equals_the_oracle_bit_for_bit(experts: int, k: int, step: float) -> None:
    router_cases.check_gate(gate, experts, k, step)


def test_scores_are_within_two_units_of_the_exact_ones() -> None:
    logits = torch.cat([torch.linspace(-87, 88, 500), torch.linspace(-1, 1, 12)])
    order = torch.argsort(logits, descending=True)
    for part in order.reshape(-1, 32):
        weights, chosen = ops.router_gate(logits[part][None, None], None, len(part), renormalise=False)
        for w, e in zip(weights[0].tolist(), chosen[0].tolist(), strict=True):
            x = float(logits[part][e])
            exact = math.sqrt(max(x, 0.0) + math.log1p(math.exp(-abs(x))))
            assert abs(w - exact) <= 2.0**-22 * exact


def test_ties_and_logits_that_are_not_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[[1.0, 2.0, 2.0, 1.0], [nan, -inf, -200.0, nan], [nan, inf, inf, 0.0], [nan] * 4]])
    weights, chosen = ops.router_gate(rows, None, 3)
    assert chosen.tolist() == [[1, 2, 0], [1, 2, 0], [1, 2, 3], [0, 1, 2]]
    assert weights[1].tolist() == [0.0] * 3
    assert weights[2].tolist()[:2] == [0.5, 0.5]
    assert weights[3].tolist() == [0.0] * 3


def test_bias_chooses_and_does_not_weigh() -> None:
    partials = torch.full((1, 1, 5), 30.0)
    weights, chosen = ops.router_gate(partials, torch.tensor([0.0, 0.0, 0.0, 9.0, -9.0]), 2, routed_scaling=3.0)
    assert chosen.tolist() == [[3, 0]]
    assert weights.tolist() == [[1.5, 1.5]]


def test_no_rows() -> None:
    partials = ops.router_partials(torch.empty(0, 600).bfloat16(), torch.empty(8, 600).bfloat16())
    assert partials.shape == (2, 0, 8)
    weights, chosen = ops.router_gate(partials, None, 3)
    assert weights.shape == chosen.shape == (0, 3)


def test_launches_are_counted() -> None:
    before = counters.snapshot().launches
    partials = ops.router_partials(torch.ones(1, 8).bfloat16(), torch.ones(4, 8).bfloat16(), phase="verify")
    ops.router_gate(partials, None, 1, phase="verify")
    after = counters.snapshot().launches
    for op in ("router_partials", "router_gate"):
        key = (op, "verify", "reference")
        assert after[key] == before.get(key, 0) + 1


class Wrong:
    """The reference with one thing wrong."""

    def __init__(self, what: str) -> None:
        self.what = what

    def router_partials(self, x: Tensor, weight: Tensor, split: int) -> Tensor:
        out = reference.router_partials(x, weight, split)
        return out.flip(0) if self.what == "parts" else out.nextafter(out + 1)

    def router_gate(self, partials: Tensor, bias: Tensor | None, k: int, scaling: float, renormalise: bool) -> Any:
        if self.what == "bias":
            return reference.router_gate(partials, None, k, scaling, renormalise)
        weights, chosen = reference.router_gate(partials, bias, k, scaling, renormalise)
        return weights.nextafter(weights + 1), chosen


@pytest.mark.parametrize(
    ("op", "what"),
    [("router_partials", "parts"), ("router_partials", "bit"), ("router_gate", "bias"), ("router_gate", "bit")],
)
def test_known_answers_find_what_is_wrong(op: str, what: str) -> None:
    assert known_answers.mismatch(op, reference, torch.device("cpu")) == ""
    wrong: Any = Wrong(what)
    assert "differ from the known ones" in known_answers.mismatch(op, wrong, torch.device("cpu"))


X, WEIGHT = torch.zeros(2, 8).bfloat16(), torch.zeros(4, 8).bfloat16()


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (X.float(), WEIGHT, "x.dtype=torch.float32: accepted is torch.bfloat16"),
        (X, WEIGHT.half(), "weight.dtype=torch.float16: accepted is torch.bfloat16"),
        (X, WEIGHT[:, :7], "weight.shape=[4, 7]: accepted is [any, 8]"),
        (X[:, :0], WEIGHT[:, :0], "x.shape[1]=0: accepted is an integer >= 1"),
        (X, WEIGHT.repeat(200, 1), "weight.shape[0]=800: accepted is an integer 1..512"),
        (X[:, ::2], WEIGHT[:, :4], "x.stride=[8, 2]: accepted is a last stride of 1"),
    ],
)
def test_partials_refuse(x: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ops.router_partials(x, weight)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("partials", torch.zeros(2, 3, 8).bfloat16(), "partials.dtype=torch.bfloat16: accepted is torch.float32"),
        ("partials", torch.zeros(3, 8), "partials.shape=[3, 8]: accepted is [any, any, any]"),
        ("partials", torch.zeros(0, 3, 8), "partials.shape[0]=0: accepted is an integer >= 1"),
        ("partials", torch.zeros(2, 3, 513), "partials.shape[2]=513: accepted is an integer 1..512"),
        ("partials", torch.zeros(2, 3, 16)[..., :8], "partials.stride=[48, 16, 1]: accepted is contiguous"),
        ("bias", torch.zeros(7), "bias.shape=[7]: accepted is [8]"),
        ("k", 0, "k=0: accepted is an integer 1..8"),
        ("k", 9, "k=9: accepted is an integer 1..8"),
        ("routed_scaling", float("nan"), "routed_scaling=nan: accepted is a finite number > 0"),
        ("phase", "train", "phase='train': accepted is decode or prefill or verify"),
    ],
)
def test_gate_refuses(name: str, value: object, message: str) -> None:
    arguments: dict[str, Any] = {"partials": torch.zeros(2, 3, 8), "bias": torch.zeros(8), "k": 2} | {name: value}
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ops.router_gate(**arguments)
