"""Paged logits of the reference backend: against float64, and bit for bit whatever else is in the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import fp4_oracle as oracle
from dsv4_kernels import ops
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

TOKENS = 3840
PAGES = TOKENS // 64
SCALE = 128**-0.5 * 64**-0.5


class Case:
    """A pool of random keys with scales over many octaves, and queries with weights of both signs."""

    def __init__(self, name: str = "split64", rows: int = 70, heads: int = 64, octaves: int = 20) -> None:
        torch.manual_seed(rows + heads)
        self.spec = IndexSpec.named(name)
        self.pool = IndexPool.allocate(self.spec, TOKENS // self.spec.layout.page_slots)
        tokens = self.pool.tokens
        cos, sin = torch.ones(1, 32), torch.zeros(1, 32)
        weight = torch.exp2(torch.randint(-octaves, octaves + 1, (128,)).float())
        zero = torch.zeros(tokens, dtype=torch.int64)
        ops.write_index_keys(self.pool, torch.randn(tokens, 128), weight, 0.0, cos, sin, zero, torch.arange(tokens))
        q = torch.randn(rows, heads, 128)
        self.query = ops.quantize_query(q, cos, sin, zero[:rows], spec=self.spec)
        self.weights = torch.randn(rows, heads)

    def rows(self, index: Tensor) -> Query:
        q = self.query
        part = [None if t is None else t[index] for t in (q.payload, q.scale, q.values)]
        return Query(q.spec, q.heads, *part)

    def exact(self, row: int, table: Tensor, length: int) -> np.ndarray:
        slots = (table.long()[:, None] * 64 + torch.arange(64)).flatten()[:length]
        keys = ops.readback(self.pool, slots).double().numpy()
        if self.query.payload is None or self.query.scale is None:
            assert self.query.values is not None
            q = self.query.values[row].double().numpy()
        else:
            scale = self.query.scale[row].numpy().flatten()
            heads = range(self.query.heads)
            bytes_ = [[scale[oracle.query_scale_offset(0, h, c)] for c in range(4)] for h in heads]
            q = oracle.dequantize(oracle.unpacked(self.query.payload[row].numpy()), np.array(bytes_, np.uint8))
        return oracle.logits(q, keys, self.weights[row].double().numpy(), SCALE)


def decode(case: Case, rows: Tensor, table: Tensor, lengths: Tensor, width: int) -> Tensor:
    return ops.paged_logits(
        case.rows(rows),
        case.pool,
        case.weights[rows],
        table,
        lengths,
        weight_scale=SCALE,
        max_seq_len=width,
    )


def close(got: Tensor, expected: np.ndarray) -> bool:
    magnitude = float(np.abs(expected).sum()) / max(expected.size, 1)
    return bool((np.abs(got.double().numpy() - expected) <= 2e-6 * np.maximum(np.abs(expected), magnitude)).all())


@pytest.mark.parametrize("name", ["split64", "fp8", "bf16", "float32"])
@pytest.mark.parametrize("heads", [16, 48, 64])
def test_against_float64(name: str, heads: int) -> None:
    case = Case(name, rows=8, heads=heads, octaves=0)
    lengths = torch.tensor([0, 1, 15, 64, 65, 257, 1000, 1280], dtype=torch.int32)
    table = torch.stack([torch.randperm(PAGES)[:20] for _ in range(8)]).int()
    got = decode(case, torch.arange(8), table, lengths, 1280)
    assert got.shape == (8, 1280)
    for row, length in enumerate(lengths.tolist()):
        assert close(got[row, :length], case.exact(row, table[row], length))
        assert (got[row, length:] == -float("inf")).all()


def test_scales_over_forty_octaves_and_double_accumulation() -> None:
    case = Case(rows=3, octaves=20)
    table = torch.stack([torch.randperm(PAGES)[:5] for _ in range(3)]).int()
    lengths = torch.tensor([300, 320, 7], dtype=torch.int32)
    for accumulate in (torch.float32, torch.float64):
        got = ops.paged_logits(
            case.query,
            case.pool,
            case.weights,
            table,
            lengths,
            weight_scale=SCALE,
            max_seq_len=320,
            accumulate=accumulate,
        )
        for row, length in enumerate(lengths.tolist()):
            assert close(got[row, :length], case.exact(row, table[row], length))


def test_prefill_rows_share_a_sequence() -> None:
    case = Case(rows=70, octaves=2)
    seqs = torch.tensor([0] * 30 + [2] * 1 + [1] * 39, dtype=torch.int32)
    table = torch.stack([torch.randperm(PAGES)[:12] for _ in range(3)]).int()
    lengths = torch.cat([torch.arange(30) // 4, torch.tensor([700]), 400 + torch.arange(39)]).int()
    got = ops.paged_logits(
        case.query,
        case.pool,
        case.weights,
        table,
        lengths,
        weight_scale=SCALE,
        max_seq_len=750,
        row_to_seq=seqs,
        phase="prefill",
    )
    for row, length in enumerate(lengths.tolist()):
        assert close(got[row, :length], case.exact(row, table[int(seqs[row])], length))
        assert (got[row, length:] == -float("inf")).all()


def test_entries_past_the_length_are_never_read() -> None:
    case = Case(rows=2)
    table = torch.tensor([[3, 4, -7, 10**6], [5, -1, -1, -1]], dtype=torch.int32)
    lengths = torch.tensor([128, 0], dtype=torch.int32)
    got = decode(case, torch.arange(2), table, lengths, 200)
    assert torch.isfinite(got[0, :128]).all()
    with pytest.raises(ArgumentError, match=r"page_table=-7\.\.5: accepted is pages 0\.\.59"):
        decode(case, torch.arange(2), table, lengths + 1, 200)


def test_two_rows_may_share_pages_and_tables_may_be_strided() -> None:
    case = Case(rows=2)
    wide = torch.full((2, 16), -1, dtype=torch.int32)
    wide[:, :4] = torch.tensor([9, 9, 2, 9], dtype=torch.int32)
    lengths = torch.tensor([250, 250], dtype=torch.int32)
    got = decode(case, torch.arange(2), wide[:, :4], lengths, 256)
    assert torch.equal(got[0, :58], got[0, 64:122])
    assert close(got[1, :250], case.exact(1, wide[1, :4], 250))


@pytest.mark.parametrize(
    ("name", "heads", "longest"),
    [
        ("split64", 64, 700),
        ("split64", 16, 700),
        ("split64", 48, 300),
        ("fp8", 64, 300),
        ("float32", 64, 700),
        ("split64", 64, 3000),
    ],
)
def test_a_row_is_bitwise_the_same_in_any_batch(name: str, heads: int, longest: int) -> None:
    case = Case(name, heads=heads)
    torch.manual_seed(11)
    lengths = torch.cat(
        [torch.randint(0, longest + 1, (60,)), torch.tensor([0, 1, 15, 16, 63, 64, 65, 255, 256, 257])]
    ).int()
    table = torch.stack([torch.randperm(PAGES)[:47] for _ in range(70)]).int()
    alone = [decode(case, torch.tensor([r]), table[r : r + 1], lengths[r : r + 1], 3008) for r in range(70)]
    known = torch.cat(alone)
    for count in (2, 3, 5, 7, 9, 31, 70):
        rows = torch.randperm(70)[:count]
        width = int(lengths[rows].max()) + 5
        narrow = table[rows, : -(-width // 64)]
        wide = torch.cat([narrow, torch.full((count, count), 10**8, dtype=torch.int32)], 1)
        for tables in (narrow, wide):
            got = decode(case, rows, tables, lengths[rows], width)
            assert torch.equal(got, known[rows, :width])


@pytest.mark.parametrize("name", ["split64", "bf16"])
def test_a_row_is_bitwise_the_same_in_prefill_and_decode(name: str) -> None:
    case = Case(name)
    table = torch.randperm(PAGES)[:47].int()[None]
    lengths = (torch.arange(70) * 43).int()
    known = decode(case, torch.arange(70), table.expand(70, -1), lengths, 3000)
    for start, stop in ((0, 70), (0, 1), (1, 3), (5, 12), (60, 70), (69, 70), (33, 64)):
        rows = torch.arange(start, stop)
        got = ops.paged_logits(
            case.rows(rows),
            case.pool,
            case.weights[rows],
            table,
            lengths[rows],
            weight_scale=SCALE,
            max_seq_len=3000,
            row_to_seq=torch.zeros(len(rows), dtype=torch.int32),
            phase="prefill",
        )
        assert torch.equal(got, known[rows])


def test_keys_that_are_not_finite_give_no_index_out_of_range() -> None:
    case = Case(rows=1)
    case.pool.scale.view(-1)[oracle.SCALE_OFFSET["split64"](10, 2)] = 255
    table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    got = decode(case, torch.tensor([0]), table, lengths, 64)
    assert torch.isnan(got[0, 10])
    index = ops.topk(got, lengths, 48)[0]
    assert sorted(index[:40].tolist()) == list(range(40))
    assert index[39] == 10
    assert (index[40:] == -1).all()


@pytest.mark.parametrize("name", ["split64", "split8", "split128", "bf16"])
def test_windows(name: str) -> None:
    case = Case(name, rows=12, octaves=1)
    page = case.spec.layout.page_slots
    columns = 1280
    table = torch.randperm(case.pool.pages)[: columns // page].int()[None]
    starts = torch.tensor([0, 0, 1, 63, 64, 65, 100, 700, 1000, 5, 128, 1279], dtype=torch.int32)
    ends = torch.tensor([1280, 0, 1, 64, 128, 70, 1000, 701, 900, 1280, 256, 1280], dtype=torch.int32)

    def run(rows: Tensor, seqs: Tensor | None, tables: Tensor, first: Tensor | None) -> Tensor:
        return ops.paged_logits(
            case.rows(rows),
            case.pool,
            case.weights[rows],
            tables,
            ends[rows],
            weight_scale=SCALE,
            max_seq_len=columns,
            row_to_seq=seqs,
            starts=first,
            phase="prefill",
        )

    every = torch.arange(12)
    whole = run(every, torch.zeros(12, dtype=torch.int32), table, None)
    together = run(every, torch.zeros(12, dtype=torch.int32), table, starts)
    alone = run(every, None, table.expand(12, -1), starts)
    column = torch.arange(columns)
    expected = whole.masked_fill(column < starts[:, None], -float("inf"))
    assert torch.equal(together, expected)
    assert torch.equal(alone, expected)
