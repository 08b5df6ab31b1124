"""The AITER names on top of ops: bytes, rows, windows, row groups and what stays unwritten, against float64."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fp4_oracle as oracle
from dsv4_kernels import aiter_api as aiter
from dsv4_kernels.errors import ArgumentError

PAGES, HEADS, SCALE = 12, 32, 0.0078125
UNTOUCHED = 12345.0


def angles() -> tuple[Tensor, Tensor]:
    turns = torch.outer(torch.arange(512.0), 0.9 ** torch.arange(32.0))
    return turns.cos(), turns.sin()


class Written:
    """A split pool of page size 64 or 8 that AITER's writer name filled, and queries that its query name packed."""

    def __init__(self, rows: int, page: int = 64) -> None:
        generator = torch.Generator().manual_seed(rows + page)
        self.page, pages = page, PAGES * 64 // page
        scale_shape = (pages, 1, 4, page)
        payload_shape = (pages, 1, 4, 64, 16) if page == 64 else (pages, 1, 4, 4, 2, 16)
        self.payload = torch.zeros(payload_shape, dtype=torch.uint8)
        self.scale = torch.zeros(scale_shape, dtype=torch.uint8)
        cos, sin = angles()
        self.slots = torch.arange(pages * page)
        aiter.rmsnorm_rope_rotate_activation_fp4quant_kvcache(
            self.payload.view(aiter.FP4X2),
            self.scale,
            torch.randn(len(self.slots), 1, 128, generator=generator),
            torch.rand(128, generator=generator) + 0.5,
            cos,
            sin,
            self.slots % 512,
            self.slots,
            1e-6,
            rope_dim=64,
            kv_block_size=page,
            do_rotate_act=True,
        )
        self.q = torch.empty(rows, HEADS, 64, dtype=aiter.FP4X2)
        self.q_scale = torch.full((rows, 1, 4, 16, 4), 99, dtype=torch.uint8)
        queries = torch.randn(rows, HEADS, 128, generator=generator)
        aiter.rope_rotate_activation(self.q, queries, cos, sin, torch.arange(rows), rope_dim=64, out_scale=self.q_scale)
        self.weights = torch.randn(rows, HEADS, generator=generator).bfloat16()
        self.out = torch.full((rows, 512), UNTOUCHED)

    def exact(self, row: int, slots: Tensor) -> oracle.F64:
        scales = self.q_scale[row].flatten().numpy()
        bytes_ = np.array(
            [[scales[oracle.query_scale_offset(0, h, c)] for c in range(4)] for h in range(HEADS)], np.uint8
        )
        q = oracle.dequantize(oracle.unpacked(self.q.view(torch.uint8)[row].numpy()), bytes_)
        return oracle.logits(q, self.keys(slots), self.weights[row].double().numpy(), SCALE)

    def keys(self, slots: Tensor) -> oracle.F64:
        payload, scale = self.payload.flatten().numpy(), self.scale.flatten().numpy()
        return oracle.read_keys(f"split{self.page}", payload, scale, slots.numpy())

    def decode(self, table: Tensor, lengths: Tensor | None, **more: Any) -> Tensor:
        rows = self.q.shape[0]
        return aiter.flydsl_pa_mqa_logits_fp4(
            self.q.view(torch.uint8).view(rows, 1, HEADS, 64),
            self.q_scale.view(rows, 1, 1, 4, 16, 4),
            self.payload,
            self.scale,
            table,
            self.weights,
            lengths,
            512,
            weight_scale=SCALE,
            kv_block_size=self.page,
            **more,
        )


def seen(table_row: Tensor, length: int, page: int = 64) -> Tensor:
    return (table_row.long()[:, None] * page + torch.arange(page)).flatten()[:length]


def check_row(case: Written, logits: Tensor, row: int, slots: Tensor, beyond: float, start: int = 0) -> None:
    stop = start + len(slots)
    if len(slots):
        expected = torch.from_numpy(case.exact(row, slots))
        torch.testing.assert_close(logits[row, start:stop].double(), expected, rtol=2e-6, atol=2e-6)
    assert (logits[row, stop:] == beyond).all()
    assert (logits[row, :start] == beyond).all()


TABLE = torch.tensor([[3, 1, 7, 5], [2, 2, 9, 0], [11, 4, 6, 8]], dtype=torch.int32)
LENGTHS = torch.tensor([200, 0, 256], dtype=torch.int32)


def test_decode_writes_what_a_row_sees_and_no_more() -> None:
    case = Written(3)
    info = torch.zeros(3, 4, dtype=torch.int32)
    logits = case.decode(TABLE, LENGTHS, out=case.out, cta_info=info, total_ctas=3)
    assert logits.data_ptr() == case.out.data_ptr()
    for row, length in enumerate(LENGTHS.tolist()):
        check_row(case, logits, row, seen(TABLE[row], length), UNTOUCHED)


@pytest.mark.parametrize("given", [False, True])
def test_decode_without_a_schedule_fills_with_minus_infinity(given: bool) -> None:
    case = Written(3)
    logits = case.decode(TABLE, LENGTHS, out=case.out if given else None)
    for row, length in enumerate(LENGTHS.tolist()):
        check_row(case, logits, row, seen(TABLE[row], length), float("-inf"))


def test_draft_rows_of_a_sequence_see_one_key_more_each() -> None:
    case = Written(6)
    case.q = case.q.view(torch.uint8)
    logits = aiter.flydsl_pa_mqa_logits_fp4(
        case.q.view(3, 2, HEADS, 64),
        case.q_scale.view(3, 2, 1, 4, 16, 4),
        case.payload,
        case.scale,
        TABLE,
        case.weights,
        LENGTHS,
        512,
        weight_scale=SCALE,
        next_n=2,
    )
    for row in range(6):
        length = max(0, int(LENGTHS[row // 2]) - 1 + row % 2)
        check_row(case, logits, row, seen(TABLE[row // 2], length), float("-inf"))


def test_prefill_keeps_to_its_windows() -> None:
    case = Written(4)
    starts = torch.tensor([0, 70, 5, 256], dtype=torch.int32)
    ends = torch.tensor([1, 200, 5, 256], dtype=torch.int32)
    sequence = torch.tensor([2, 0, 1, 0], dtype=torch.int32)
    logits = aiter.flydsl_pa_mqa_logits_fp4_prefill(
        case.q.view(torch.uint8),
        case.q_scale,
        case.payload,
        case.scale,
        TABLE,
        case.weights,
        sequence,
        starts,
        ends,
        512,
        weight_scale=SCALE,
        out=case.out,
        cta_info=torch.zeros(4, 6, dtype=torch.int32),
        n_ctas=4,
    )
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        slots = seen(TABLE[sequence[row]], end)[start:]
        check_row(case, logits, row, slots, UNTOUCHED, start)


@pytest.mark.parametrize(("page", "pages_per_block"), [(64, 1), (8, 8), (8, 1)])
def test_row_groups_of_ragged_sequences(page: int, pages_per_block: int) -> None:
    case = Written(6, page)
    loc = torch.tensor([0, 1, 1, 6], dtype=torch.int32)
    ends = torch.tensor([200, 0, 9, 26, 27, 28], dtype=torch.int32)
    table = TABLE if pages_per_block * page == 64 else TABLE.repeat(1, 7) * 3 % 96
    plan = aiter.make_fp4_mqa_plan(3, 5, 6, HEADS, page, 512, pages_per_block)
    logits = case.decode(
        table,
        None,
        out=case.out,
        row_ends=ends,
        query_start_loc=loc,
        max_query_len=5,
        pages_per_block=pages_per_block,
        plan=plan,
    )
    for row, length in enumerate(ends.tolist()):
        slots = seen(table[0 if row == 0 else 2], length, page * pages_per_block)
        check_row(case, logits, row, slots, UNTOUCHED)


def test_a_plan_for_another_launch_is_refused() -> None:
    case = Written(3)
    plan = aiter.make_fp4_mqa_plan(3, 1, 3, 64, 64, 512)
    with pytest.raises(ArgumentError, match=r"plan=.*64.*accept.*32"):
        case.decode(TABLE, None, row_ends=LENGTHS, query_start_loc=torch.arange(4).int(), max_query_len=1, plan=plan)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rope_dim": 32}, "rope_dim=32"),
        ({"group_size": 16}, "group_size=16"),
        ({"shuffle_scale": False}, "shuffle_scale=False"),
        ({"out_scale": None}, "out_scale=None"),
        ({"out": torch.empty(1, 16, 64, dtype=torch.uint8)}, "out.dtype=torch.uint8"),
    ],
)
def test_query_arguments_that_aiter_would_take_in_silence(change: dict[str, Any], told: str) -> None:
    cos, sin = angles()
    arguments: dict[str, Any] = {
        "out": torch.empty(1, 16, 64, dtype=aiter.FP4X2),
        "input": torch.zeros(1, 16, 128),
        "cos": cos,
        "sin": sin,
        "positions": torch.zeros(1, dtype=torch.int64),
        "rope_dim": 64,
        "out_scale": torch.empty(1, 1, 4, 16, 4, dtype=torch.uint8),
    }
    with pytest.raises(ArgumentError, match=told):
        aiter.rope_rotate_activation(**(arguments | change))


def test_a_page_size_without_a_layout_is_refused() -> None:
    case = Written(3)
    case.page = 32
    with pytest.raises(ArgumentError, match=r"kv_block_size=32.*8 or 64 or 128"):
        case.decode(TABLE, LENGTHS)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"page_size": 128}, "page_size=128"), ({"heads": 24}, "heads=24"), ({"num_rows": 7}, "num_rows=7")],
)
def test_impossible_plans_are_refused(change: dict[str, int], told: str) -> None:
    plan = {"num_seqs": 3, "max_qlen": 2, "num_rows": 6, "heads": 64, "page_size": 64, "max_seq_len": 512}
    with pytest.raises(ArgumentError, match=told):
        aiter.make_fp4_mqa_plan(**(plan | change))


def test_prefill_schedule_by_prefix_sums_equals_the_one_made_in_one_go() -> None:
    """Engines make the sums themselves and launch AITER's second kernel; both ways must give the same bytes."""
    names = aiter.MODULES["aiter.ops.flydsl.kernels.mqa_logits.pa_mqa_logits_fp4_prefill"]
    launcher, compute = names["_prefill_cta_info_kernel"], names["compute_prefill_schedule"]
    ends = torch.tensor([0, 700, 256, 4000, 1], dtype=torch.int32)
    starts, batch = torch.zeros_like(ends), torch.tensor([4, 1, 0, 2, 2], dtype=torch.int32)
    for slots in (5, 8, 64):
        expected = torch.empty(slots, 6, dtype=torch.int32)
        most, _, total = compute(batch, starts, ends, 256, slots, 4096, expected)  # type: ignore[operator]
        assert total == slots
        chunks = (ends + 255) // 256
        need = (chunks + most - 1) // most
        inclusive = need.cumsum(0).int()
        found = torch.empty_like(expected)
        launcher[(1,)](  # type: ignore[index]
            inclusive, inclusive - need, chunks, batch, starts, ends, most, inclusive[-1], found, 5, slots, BLOCK_P=256
        )
        assert torch.equal(found, expected)


def test_every_name_is_callable_with_aiters_leading_arguments() -> None:
    leading = {
        "rope_rotate_activation": ["out", "input", "cos", "sin", "positions", "rope_dim", "out_scale"],
        "rmsnorm_rope_rotate_activation_fp4quant_kvcache": ["kvcache", "scale", "input", "norm_weight", "cos", "sin"],
        "flydsl_pa_mqa_logits_fp4": ["q_fp4", "q_scale", "kv_cache", "kv_scale", "block_tables", "weights"],
        "flydsl_pa_mqa_logits_fp4_prefill": ["q_fp4", "q_scale", "kv_cache", "kv_scale", "block_tables", "weights"],
        "make_fp4_mqa_plan": ["num_seqs", "max_qlen", "num_rows", "heads", "page_size", "max_seq_len"],
    }
    offered = {name: value for names in aiter.MODULES.values() for name, value in names.items()}
    for name, first in leading.items():
        function = offered[name]
        assert callable(function)
        assert list(inspect.signature(function).parameters)[: len(first)] == first
