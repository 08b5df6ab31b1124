"""V4.1's two-level selection, and slots out of the fused top-k."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsv4_kernels import ops
from dsv4_kernels.conversion import convert
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexPool, IndexSpec

LENGTHS = [0, 1, 7, 8, 9, 15, 16, 17, 60, 64]


def brute_blocks(row: list[float], length: int, count: int) -> list[int]:
    reach = -(-length // 8)
    scores = []
    for b in range(reach):
        live = [v for v in row[8 * b : min(8 * b + 8, length)] if not np.isnan(v)]
        scores.append(float("inf") if b == reach - 1 else max(live, default=-float("inf")))
    best = sorted(range(reach), key=lambda b: (-scores[b], b))[:count]
    return sorted(best) + [-1] * (count - len(best))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 12), columns=st.sampled_from([64, 61]))
def test_candidate_blocks(seed: int, count: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.integers(-3, 4, (len(LENGTHS), columns)).astype(np.float32))
    logits[torch.from_numpy(rng.random(logits.shape) < 0.1)] = float("nan")
    lengths = [min(n, columns) for n in LENGTHS]
    got = ops.candidate_blocks(logits, torch.tensor(lengths, dtype=torch.int32), count)
    assert got.tolist() == [brute_blocks(r, n, count) for r, n in zip(logits.tolist(), lengths, strict=True)]


def test_newest_block_is_kept_though_its_scores_are_the_lowest() -> None:
    logits = torch.arange(40, 0, -1).float()[None]
    assert ops.candidate_blocks(logits, torch.tensor([33], dtype=torch.int32), 2).tolist() == [[0, 4]]


def test_table_names_page_8_blocks_and_counts_keys() -> None:
    blocks = torch.tensor([[0, 3, 9], [2, -1, -1], [-1, -1, -1]], dtype=torch.int32)
    lengths = torch.tensor([75, 17, 0], dtype=torch.int32)
    pages = torch.tensor([[5, 7], [6, 0], [0, 0]], dtype=torch.int32)
    table = ops.candidate_table(blocks, lengths, pages)
    assert table.pages.tolist() == [[40, 43, 57], [50, 0, 0], [0, 0, 0]]
    assert table.lengths.tolist() == [8 + 8 + 3, 1, 0]
    selected = torch.tensor([[0, 9, 18, -1], [0, -1, -1, -1], [-1] * 4], dtype=torch.int32)
    assert ops.candidate_positions(selected, table).tolist() == [[0, 25, 74, -1], [16, -1, -1, -1], [-1] * 4]


def test_two_levels_find_what_a_full_scan_of_the_blocks_finds() -> None:
    torch.manual_seed(3)
    full = IndexPool.allocate(IndexSpec.named("split64", "rne_v41", hadamard=False), 6)
    small = IndexPool.allocate(IndexSpec.named("split8", "rne_v41", hadamard=False), 48)
    cos, sin, zero = torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(384, dtype=torch.int64)
    ops.write_index_keys(full, torch.randn(384, 128), torch.ones(128), 1e-6, cos, sin, zero, torch.arange(384))
    convert(full, small)
    query = ops.quantize_query(torch.randn(3, 32, 128), cos, sin, zero[:3], spec=full.spec)
    weights = torch.rand(3, 32)
    pages = torch.stack([torch.randperm(6) for _ in range(3)]).int()
    lengths = torch.tensor([384, 101, 5], dtype=torch.int32)
    dense = ops.paged_logits(query, full, weights, pages, lengths, weight_scale=1.0, max_seq_len=384)
    table = ops.candidate_table(ops.candidate_blocks(dense, lengths, 10), lengths, pages)
    few = ops.paged_logits(query, small, weights, table.pages, table.lengths, weight_scale=1.0, max_seq_len=80)
    got = ops.candidate_positions(ops.topk(few, table.lengths, 16), table)
    allowed = torch.full_like(dense, -float("inf"))
    for row in range(3):
        for block in table.blocks[row].tolist():
            if block >= 0:
                allowed[row, 8 * block : 8 * block + 8] = dense[row, 8 * block : 8 * block + 8]
    expected = ops.topk(allowed, lengths, 16)
    live = torch.arange(16) < table.lengths[:, None]
    assert torch.equal(got, torch.where(live, expected, -1))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    k=st.integers(1, 70),
    page=st.sampled_from([8, 64]),
    shared=st.booleans(),
)
def test_topk_slots_follow_the_page_table(seed: int, rows: int, k: int, page: int, shared: bool) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(rows, 128).round(decimals=1)
    lengths = torch.randint(0, 129, (rows,), dtype=torch.int32)
    seqs = torch.randint(0, 2, (rows,), dtype=torch.int32) if shared else None
    table = torch.randint(0, 2**31 - 1, (2 if shared else rows, 128 // page), dtype=torch.int32)
    index, slots = ops.topk_slots(logits, lengths, k, table, page_slots=page, row_to_seq=seqs)
    assert torch.equal(index, ops.topk(logits, lengths, k))
    for row in range(rows):
        seq = int(seqs[row]) if seqs is not None else row
        for i, slot in zip(index[row].tolist(), slots[row].tolist(), strict=True):
            assert slot == (-1 if i < 0 else int(table[seq, i // page]) * page + i % page)


def arguments() -> dict[str, Tensor]:
    return {
        "logits": torch.zeros(2, 16),
        "lengths": torch.tensor([16, 3], dtype=torch.int32),
        "page_table": torch.zeros(2, 2, dtype=torch.int32),
        "blocks": torch.tensor([[0, 1], [0, -1]], dtype=torch.int32),
    }


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lengths", torch.tensor([17, 3], dtype=torch.int32), "lengths=3..17: accepted is 0..16"),
        ("lengths", torch.tensor([1, 3]), "lengths.dtype=torch.int64: accepted is torch.int32"),
        ("logits", torch.zeros(2, 16, dtype=torch.float64), "logits.dtype=torch.float64: accepted is torch.float32"),
        ("page_table", torch.zeros(3, 2, dtype=torch.int32), "page_table.shape=[3, 2]: accepted is [2, any]"),
        ("page_table", torch.zeros(2, 1, dtype=torch.int32), "lengths=3..16: accepted is 0..8"),
    ],
)
def test_topk_slots_refuses(name: str, value: Tensor, message: str) -> None:
    a = arguments() | {name: value}
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ops.topk_slots(a["logits"], a["lengths"], 4, a["page_table"], page_slots=8)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("blocks", torch.tensor([[0, 16], [0, -1]], dtype=torch.int32), "blocks=-1..16: accepted is -1..15"),
        ("blocks", torch.tensor([[0, -2], [0, -1]], dtype=torch.int32), "blocks=-2..0: accepted is -1..15"),
        ("lengths", torch.tensor([1], dtype=torch.int32), "lengths.shape=[1]: accepted is [2]"),
        ("page_table", torch.zeros(2, 2), "page_table.dtype=torch.float32: accepted is torch.int32"),
    ],
)
def test_candidate_table_refuses(name: str, value: Tensor, message: str) -> None:
    a = arguments() | {name: value}
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ops.candidate_table(a["blocks"], a["lengths"], a["page_table"])


def test_other_candidate_refusals() -> None:
    a = arguments()
    with pytest.raises(ArgumentError, match="page_slots=12: accepted is a multiple of 8"):
        ops.candidate_table(a["blocks"], a["lengths"], a["page_table"], page_slots=12)
    with pytest.raises(ArgumentError, match="count=0: accepted is an integer >= 1"):
        ops.candidate_blocks(a["logits"], a["lengths"], 0)
    table = ops.candidate_table(a["blocks"], a["lengths"], a["page_table"])
    with pytest.raises(ArgumentError, match=r"selected=16\.\.16: accepted is -1\.\.15"):
        ops.candidate_positions(torch.full((2, 1), 16, dtype=torch.int32), table)
