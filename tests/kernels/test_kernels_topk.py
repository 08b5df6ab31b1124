"""Top-k: exact order, ties, lengths, and values that are not numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsv4_kernels import ops


def brute(logits: Tensor, lengths: list[int], k: int) -> list[list[int]]:
    rows = []
    for row, length in zip(logits.double().tolist(), lengths, strict=True):
        live = [-float("inf") if np.isnan(v) else v for v in row[:length]]
        order = sorted(range(length), key=lambda i: (-live[i], i))[:k]
        rows.append(order + [-1] * (k - len(order)))
    return rows


def check(logits: Tensor, lengths: list[int], k: int) -> None:
    best, live = brute(logits, lengths, k), torch.tensor(lengths, dtype=torch.int32)
    got = ops.topk(logits, live, k)
    assert got.dtype == torch.int32
    assert got.tolist() == best
    positions = [sorted(i for i in row if i >= 0) for row in best]
    assert ops.topk(logits, live, k, by_position=True).tolist() == [p + [-1] * (k - len(p)) for p in positions]


@pytest.mark.parametrize("k", [1, 64, 512, 1024, 2048])
def test_random_rows_of_every_boundary_length(k: int) -> None:
    torch.manual_seed(k)
    lengths = [0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 511, 512, 513, 2047, 2048, 2049, 3000]
    logits = torch.randn(len(lengths), 3000)
    for row, length in enumerate(lengths):
        logits[row, length:] = float("inf")
    check(logits, lengths, k)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 6), k=st.integers(1, 40), spread=st.integers(1, 4))
def test_ties_go_to_the_lowest_index(seed: int, rows: int, k: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.integers(-spread, spread + 1, (rows, 60)).astype(np.float32))
    values[torch.from_numpy(rng.random((rows, 60)) < 0.2)] *= -0.0
    check(values, rng.integers(0, 61, rows).tolist(), k)


def test_extreme_values_keep_their_order() -> None:
    inf, tiny, big = float("inf"), 1.4e-45, 3.4e38
    row = [tiny, -tiny, 0.0, -0.0, inf, -inf, float("nan"), big, -big, -float("nan"), inf, 1.0, 1.0000001]
    check(torch.tensor([row]), [len(row)], len(row))


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    logits, lengths = torch.randn(40, 900).round(decimals=1), torch.randint(0, 901, (40,), dtype=torch.int32)
    whole = ops.topk(logits, lengths, 64)
    for row in range(40):
        assert torch.equal(ops.topk(logits[row : row + 1], lengths[row : row + 1], 64)[0], whole[row])


def test_nothing_live_and_nothing_at_all() -> None:
    check(torch.full((2, 5), float("nan")), [0, 5], 3)
    assert ops.topk(torch.empty(0, 7), torch.empty(0, dtype=torch.int32), 3).shape == (0, 3)
    assert ops.topk(torch.empty(2, 0), torch.zeros(2, dtype=torch.int32), 2).tolist() == [[-1, -1]] * 2
