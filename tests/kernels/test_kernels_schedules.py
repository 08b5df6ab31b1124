"""Schedules, row groups and guarded tables against slot-by-slot brute force."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_kernels import ops
from dsv4_kernels.dispatch import THRESHOLDS, decode_ctas, rows_per_chunk
from dsv4_kernels.errors import ArgumentError


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def published(lengths: list[int], max_seq_len: int, ctas: int) -> list[tuple[int, int, int]]:
    """Row, first chunk and chunk count of each slot, by trying every chunks-per-workgroup in turn."""
    chunks = [-(-n // 256) for n in lengths]
    most = max(1, -(-max_seq_len // 256))
    fits = [s for s in range(1, most + 1) if sum(-(-c // s) for c in chunks) <= ctas]
    per_cta = fits[0] if fits else max(1, *chunks)
    slots = [(r, f, min(per_cta, c - f)) for r, c in enumerate(chunks) for f in range(0, c, per_cta)]
    return slots[:ctas]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(
        st.one_of(st.sampled_from([0, 1, 255, 256, 257, 5000]), st.integers(0, 9000)), min_size=1, max_size=40
    ),
    spare=st.integers(0, 60),
)
def test_decode_schedule_is_the_published_formula(lengths: list[int], spare: int) -> None:
    ctas = len(lengths) + spare
    info = ops.decode_schedule(ints(*lengths), max_seq_len=9000, ctas=ctas).tolist()
    slots = published(lengths, 9000, ctas)
    assert info[: len(slots)] == [[r, f, n, lengths[r]] for r, f, n in slots]
    assert info[len(slots) :] == [[0, 0, 1, 0]] * (ctas - len(slots))


@pytest.mark.parametrize("rows", [1536, 16384])
def test_decode_schedule_of_many_rows(rows: int) -> None:
    lengths = (torch.arange(rows) * 37 % 5001).int()
    info = ops.decode_schedule(lengths, max_seq_len=5000)
    assert len(info) == decode_ctas(rows, 5000) == max(1024, 4 * rows)
    slots = published(lengths.tolist(), 5000, len(info))
    assert info[: len(slots), :3].tolist() == [list(s) for s in slots]


@settings(max_examples=40, deadline=None)
@given(
    windows=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=20),
    spare=st.integers(0, 40),
)
def test_prefill_schedule_is_the_published_formula(windows: list[tuple[int, int]], spare: int) -> None:
    starts, ends = [min(w) for w in windows], [max(w) for w in windows]
    seqs = [i // 3 for i in range(len(windows))]
    ctas = len(windows) + spare
    info = ops.prefill_schedule(ints(*starts), ints(*ends), ints(*seqs), max_seq_len=3000, ctas=ctas).tolist()
    slots = published(ends, 3000, ctas)
    assert info[: len(slots)] == [[r, seqs[r], f, n, starts[r], ends[r]] for r, f, n in slots]
    assert info[len(slots) :] == [[0, 0, 0, 1, 0, 0]] * (ctas - len(slots))


def test_prefill_schedule_has_a_floor_of_workgroups() -> None:
    assert len(ops.prefill_schedule(ints(0), ints(5), ints(0), max_seq_len=5)) == THRESHOLDS.prefill_ctas


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=0, max_size=12), rows=st.integers(1, 6))
def test_row_groups_cover_each_row_once(counts: list[int], rows: int) -> None:
    loc = torch.tensor([0, *counts]).cumsum(0).int()
    expected = []
    for seq, (first, last) in enumerate(zip(loc[:-1].tolist(), loc[1:].tolist(), strict=True)):
        expected += [[r, min(rows, last - r), seq] for r in range(first, last, rows)]
    assert ops.row_groups(loc, rows).tolist() == expected


@pytest.mark.parametrize(("columns", "bucket", "width"), [(1, 4, 8), (4, 4, 8), (5, 4, 12), (0, 4, 8), (65, 64, 132)])
def test_guarded_table(columns: int, bucket: int, width: int) -> None:
    table = torch.arange(1, 2 * columns + 1, dtype=torch.int32).view(2, columns)
    got = ops.guarded_page_table(table, bucket=bucket)
    assert got.shape == (2, width)
    assert torch.equal(got[:, :columns], table)
    assert not got[:, columns:].any()


def test_dispatch_numbers() -> None:
    assert decode_ctas(1, 8192) == 32
    assert decode_ctas(64, 65536) == 1024
    assert decode_ctas(512, 65536) == 2048
    assert rows_per_chunk(8192) == (2048 << 20) // (4 * 8192)
    assert rows_per_chunk(1 << 40) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.decode_schedule(ints(5), max_seq_len=4), "lengths=5..5: accepted is 0..4"),
        (lambda: ops.decode_schedule(ints(1, 2), max_seq_len=4, ctas=1), "ctas=1: accepted is an integer >= 2"),
        (lambda: ops.decode_schedule(ints(), max_seq_len=4), "lengths.shape=[0]: accepted is at least one row"),
        (lambda: ops.decode_schedule(torch.tensor([1]), max_seq_len=4), "lengths.dtype=torch.int64"),
        (
            lambda: ops.prefill_schedule(ints(0), ints(1, 2), ints(0, 0), max_seq_len=4),
            "starts.shape=[1]: accepted is [2]",
        ),
        (lambda: ops.prefill_schedule(ints(0), ints(9), ints(0), max_seq_len=4), "ends=9..9: accepted is 0..4"),
        (
            lambda: ops.prefill_schedule(ints(0), ints(1), torch.tensor([0]), max_seq_len=4),
            "row_to_seq.dtype=torch.int64",
        ),
        (
            lambda: ops.row_groups(ints(0, 5, 3), 2),
            "query_start_loc=[0, 5, 3]: accepted is ascending row numbers from 0",
        ),
        (lambda: ops.row_groups(ints(1, 5), 2), "query_start_loc=[1, 5]: accepted is ascending row numbers from 0"),
        (lambda: ops.row_groups(ints(0, 5), 0), "rows=0: accepted is an integer >= 1"),
        (lambda: ops.guarded_page_table(ints(0, 5)), "page_table.shape=[2]: accepted is [any, any]"),
        (lambda: ops.guarded_page_table(ints(0, 5).view(1, 2), bucket=0), "bucket=0: accepted is an integer >= 1"),
    ],
)
def test_wrong_plan_argument(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ArgumentError, match=re.escape(message)):
        call()
