"""Row groups: the operation, its own selection beside AITER, and logits written in place."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import aiter_stand_ins as stand_ins
from dsv4_kernels import backends, known_answers, ops, reference
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

CPU = torch.device("cpu")
STARTS = torch.tensor([0, 1, 4], dtype=torch.int32)
LENGTHS = torch.tensor([100, 126, 127, 128], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _fresh_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_active", {})


def world(layout: str) -> tuple[Query, IndexPool, Tensor, Tensor]:
    spec = IndexSpec.named(layout, "aiter")
    pages = 256 // spec.layout.page_slots
    generator = torch.Generator().manual_seed(1)
    pool = IndexPool.allocate(spec, pages, CPU)
    pool.payload.copy_(torch.randint(0, 256, pool.payload.shape, generator=generator, dtype=torch.uint8))
    pool.scale.fill_(127)
    angles = (torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(4, dtype=torch.int64))
    query = reference.quantize_query(torch.randn(4, 32, 128, generator=generator), *angles, spec)
    table = torch.randperm(pages, generator=generator).int().view(2, pages // 2)
    return query, pool, torch.randn(4, 32, generator=generator).bfloat16(), table


@pytest.mark.parametrize("layout", ["split64", "split8"])
def test_grouped_rows_score_as_they_do_alone(layout: str) -> None:
    query, pool, weights, table = world(layout)
    grouped = ops.rowgroup_logits(
        query, pool, weights, table, LENGTHS, STARTS, max_query_len=3, weight_scale=0.5, max_seq_len=128
    )
    alone = ops.paged_logits(query, pool, weights, table[[0, 1, 1, 1]], LENGTHS, weight_scale=0.5, max_seq_len=128)
    assert torch.equal(grouped, alone)


@pytest.mark.parametrize("layout", ["split64", "split8"])
def test_rows_of_a_sequence_of_their_own(layout: str) -> None:
    query, pool, weights, table = world(layout)
    starts = torch.arange(5, dtype=torch.int32)
    grouped = ops.rowgroup_logits(
        query, pool, weights, table[[0, 1, 1, 0]], LENGTHS, starts, max_query_len=1, weight_scale=0.5, max_seq_len=128
    )
    alone = ops.paged_logits(query, pool, weights, table[[0, 1, 1, 0]], LENGTHS, weight_scale=0.5, max_seq_len=128)
    assert torch.equal(grouped, alone)


def test_logits_go_where_the_caller_says() -> None:
    query, pool, weights, table = world("split64")
    out = torch.full((4, 128), 7.0)
    got = ops.rowgroup_logits(
        query, pool, weights, table, LENGTHS, STARTS, max_query_len=3, weight_scale=0.5, max_seq_len=128, out=out
    )
    assert got is out
    assert float(out[0, 0]) != 7.0
    with pytest.raises(ArgumentError, match=r"out.shape=\[4, 100\]: accepted is \[4, 128\]"):
        ops.paged_logits(
            query,
            pool,
            weights,
            table[[0, 1, 1, 1]],
            LENGTHS,
            weight_scale=0.5,
            max_seq_len=128,
            out=torch.empty(4, 100),
        )


def test_the_bounds_must_fit_the_page_table() -> None:
    query, pool, weights, table = world("split64")
    with pytest.raises(ArgumentError, match=r"query_start_loc.shape=\[2\]: accepted is \[3\]"):
        ops.rowgroup_logits(
            query, pool, weights, table, LENGTHS, STARTS[:2], max_query_len=3, weight_scale=1, max_seq_len=128
        )


def install(monkeypatch: pytest.MonkeyPatch, **replaced: object) -> dict[str, str]:
    """What serves the scores beside this AITER."""
    for name, module in stand_ins.modules(**replaced).items():
        monkeypatch.setitem(sys.modules, name, module)
    backends.activate(CPU, "aiter", allow_fallback=True)
    return {s.op: s.selected for s in backends.selections(CPU) if s.op.endswith("_logits")}


def test_an_aiter_without_row_groups_keeps_its_other_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install(monkeypatch) == {"paged_logits": "aiter", "rowgroup_logits": "reference"}
    reason = {s.op: s.reason for s in backends.selections(CPU)}["rowgroup_logits"]
    assert "aiter.ops.flydsl has no make_fp4_mqa_plan" in reason


def test_an_aiter_with_row_groups_serves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install(monkeypatch, **stand_ins.ROW_GROUPS) == {"paged_logits": "aiter", "rowgroup_logits": "aiter"}
    query, pool, weights, table = world("split64")
    got = ops.rowgroup_logits(
        query, pool, weights, table, LENGTHS, STARTS, max_query_len=3, weight_scale=0.5, max_seq_len=128
    )
    backends.activate(CPU, "reference")
    known = ops.rowgroup_logits(
        query, pool, weights, table, LENGTHS, STARTS, max_query_len=3, weight_scale=0.5, max_seq_len=128
    )
    for row, length in enumerate(LENGTHS.tolist()):
        assert torch.equal(got[row, :length], known[row, :length])


def first_page_only(*arguments: Any, **named: Any) -> Tensor:
    table = arguments[4]
    return stand_ins.decode_with_row_groups(*arguments[:4], table[:, :1].expand_as(table), *arguments[5:], **named)


def test_wrong_row_groups_cost_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any, query_start_loc: Tensor | None = None, **named: Any) -> Tensor:
        of = stand_ins.decode_with_row_groups if query_start_loc is None else first_page_only
        return of(*arguments, query_start_loc=query_start_loc, **named)

    replaced: dict[str, object] = stand_ins.ROW_GROUPS | {"flydsl_pa_mqa_logits_fp4": wrong}
    assert install(monkeypatch, **replaced) == {"paged_logits": "aiter", "rowgroup_logits": "reference"}


class Ungrouped:
    """Each row reads the table of its own number."""

    def rowgroup_logits(self, call: LogitsCall) -> Tensor:
        table = call.page_table[torch.arange(call.rows) % call.page_table.shape[0]]
        return reference.paged_logits(replace(call, row_to_seq=None, query_start_loc=None, page_table=table))


def test_the_known_answer_tells_rows_of_other_sequences() -> None:
    assert known_answers.mismatch("rowgroup_logits", reference, CPU) == ""
    found = known_answers.mismatch("rowgroup_logits", Ungrouped(), CPU)  # type: ignore[arg-type]
    assert found == "logits of row 1 of a group in split64 with 64 heads differ from the known ones"
