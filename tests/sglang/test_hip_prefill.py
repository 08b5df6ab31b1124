"""SGLang's unmodified HIP adapter at prefill: schedules, windows and chunks over our kernels equal the oracle."""

from __future__ import annotations

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from torch import Tensor

from index_world import IndexWorld, Queries, int32
from launch_counts import LaunchCounts

REQUESTS = [0] * 9 + [1] * 3 + [2] * 2
LENGTHS = [0, 0, 1, 63, 64, 65, 255, 256, 257, 5, 6, 7, 299, 300]


@pytest.fixture(scope="module")
def world(backend: str) -> IndexWorld:
    return IndexWorld([300, 8, 300])


@pytest.fixture
def rows(world: IndexWorld) -> tuple[Queries, Tensor]:
    """A mixed extend step: consecutive rows of three requests, each with its request's page-table row."""
    return world.queries(len(REQUESTS)), world.page_table[torch.tensor(REQUESTS)]


def test_prefill_with_the_workspace_of_the_step(
    world: IndexWorld, rows: tuple[Queries, Tensor], backend: str, scored: LaunchCounts
) -> None:
    queries, table = rows
    workspace = hip.prepare_fp4_prefill_workspace(table, int32(LENGTHS))
    logits = world.score(queries, table, LENGTHS, is_decode=False, prefill_workspace=workspace)
    world.check(logits, queries, REQUESTS, LENGTHS)
    assert scored.made() == {("prefill", backend): 1}


def test_a_refreshed_workspace_keeps_its_buffers_and_takes_the_new_step(
    world: IndexWorld, rows: tuple[Queries, Tensor], backend: str, scored: LaunchCounts
) -> None:
    queries, table = rows
    first = hip.prepare_fp4_prefill_workspace(table.flip(0), int32(LENGTHS[::-1]))
    second = hip.prepare_fp4_prefill_workspace(table, int32(LENGTHS), workspace=first)
    assert second.cta_info.data_ptr() == first.cta_info.data_ptr()
    logits = world.score(queries, table, LENGTHS, is_decode=False, prefill_workspace=second)
    world.check(logits, queries, REQUESTS, LENGTHS)
    assert scored.made() == {("prefill", backend): 1}


def test_prefill_without_a_workspace(
    world: IndexWorld, rows: tuple[Queries, Tensor], backend: str, scored: LaunchCounts
) -> None:
    queries, table = rows
    logits = world.score(queries, table, LENGTHS, is_decode=False)
    world.check(logits, queries, REQUESTS, LENGTHS)
    assert scored.made() == {("prefill", backend): 1}


def test_prefill_with_a_workspace_of_another_row_count(
    world: IndexWorld, rows: tuple[Queries, Tensor], backend: str, scored: LaunchCounts
) -> None:
    queries, table = rows
    stale = hip.prepare_fp4_prefill_workspace(table[:5], int32(LENGTHS[:5]))
    logits = world.score(queries, table, LENGTHS, is_decode=False, prefill_workspace=stale)
    world.check(logits, queries, REQUESTS, LENGTHS)
    assert scored.made() == {("prefill", backend): 1}


def test_prefill_schedule_covers_every_chunk_once(rows: tuple[Queries, Tensor]) -> None:
    workspace = hip.prepare_fp4_prefill_workspace(rows[1], int32(LENGTHS))
    seen = [
        (row, chunk)
        for row, batch, start, count, low, high in workspace.cta_info.tolist()
        for chunk in range(start, start + count)
        if high
        if (batch, low, high) == (row, 0, LENGTHS[row])
    ]
    wanted = [(row, chunk) for row, n in enumerate(LENGTHS) for chunk in range(-(-n // 256))]
    assert sorted(seen) == wanted


def test_rows_over_the_logits_budget_run_in_chunks_of_one_block(
    world: IndexWorld,
    rows: tuple[Queries, Tensor],
    backend: str,
    scored: LaunchCounts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine reduces each chunk to its top-k before the next one overwrites the pooled block."""
    queries, table = rows
    monkeypatch.setattr(hip, "_LOGITS_BUDGET_ELEMS", 5 * 512)
    monkeypatch.setattr(hip, "_LOGITS_POOL", {})
    step = hip.logits_rows_per_chunk(table)
    assert step == 5
    blocks = set()
    for start in range(0, len(queries), step):
        part = slice(start, min(start + step, len(queries)))
        chunk = Queries(queries.q_fp4[part], queries.q_scale[part], queries.weights[part])
        logits = world.score(chunk, table[part], LENGTHS[part], is_decode=False)
        world.check(logits, chunk, REQUESTS[part], LENGTHS[part])
        blocks.add(logits.data_ptr())
    assert len(blocks) == 1
    assert scored.made() == {("prefill", backend): 3}


def test_a_prefill_bound_that_is_too_long_changes_the_rows_it_covers(
    world: IndexWorld, rows: tuple[Queries, Tensor]
) -> None:
    """Negative control: what lies past a bound is really left alone."""
    queries, table = rows
    logits = world.score(queries, table, LENGTHS, is_decode=False)
    longer = [min(n + 1, 300) for n in LENGTHS]
    with pytest.raises(AssertionError, match="not close"):
        world.check(logits, queries, REQUESTS, longer)
