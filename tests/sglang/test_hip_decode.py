"""SGLang's unmodified HIP adapter at decode and verify: every launch variant over our kernels equals the oracle."""

from __future__ import annotations

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip

from index_world import IndexWorld, int32
from launch_counts import LaunchCounts

LENGTHS = [299, 0, 300, 257]
ROWS = range(len(LENGTHS))


@pytest.fixture(scope="module")
def world(backend: str) -> IndexWorld:
    return IndexWorld(LENGTHS)


def test_decode_with_the_workspace_of_the_step(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    queries = world.queries(4)
    workspace = hip.prepare_fp4_decode_workspace(world.page_table, int32(LENGTHS))
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, list(ROWS), LENGTHS)
    assert scored.made() == {("decode", backend): 1}


def test_one_workspace_serves_every_layer_of_a_step(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    workspace = hip.prepare_fp4_decode_workspace(world.page_table, int32(LENGTHS))
    for layer in (world, IndexWorld(LENGTHS, layer=1)):
        queries = layer.queries(4)
        logits = layer.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=workspace)
        layer.check(logits, queries, list(ROWS), LENGTHS)
    assert scored.made() == {("decode", backend): 2}


def test_decode_without_a_workspace(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    queries = world.queries(4)
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True)
    world.check(logits, queries, list(ROWS), LENGTHS)
    assert scored.made() == {("decode", backend): 1}


def test_decode_with_a_workspace_of_another_row_count(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    queries = world.queries(4)
    stale = hip.prepare_fp4_decode_workspace(world.page_table[:3], int32(LENGTHS[:3]))
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=stale)
    world.check(logits, queries, list(ROWS), LENGTHS)
    assert scored.made() == {("decode", backend): 1}


def test_padded_rows_have_no_length_and_page_zero(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    """A captured graph runs more rows than there are requests."""
    table = torch.cat([world.page_table, torch.zeros_like(world.page_table[:2])])
    lengths = [*LENGTHS, 0, 0]
    queries = world.queries(6)
    workspace = hip.prepare_fp4_decode_workspace(table, int32(lengths))
    logits = world.score(queries, table, lengths, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, [*ROWS, 0, 0], lengths)
    assert scored.made() == {("decode", backend): 1}


def test_row_group_with_a_row_a_request(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    queries = world.queries(4)
    columns = hip.rowgroup_table_columns(4096, 4)
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(world.page_table, 1, table_columns=columns)
    assert workspace.guarded_page_table.shape[1] == columns
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, list(ROWS), LENGTHS)
    assert scored.made() == {("decode", backend): 1}


def test_row_group_of_verify_rows_shares_a_request(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    """Four draft rows a request; each sees what the row before sees, or one compressed key more."""
    requests = [r for r in ROWS for _ in range(4)]
    lengths = [max(0, LENGTHS[r] - 1 + (step >= 2)) for r in ROWS for step in range(4)]
    queries = world.queries(16)
    table = world.page_table.repeat_interleave(4, 0)
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(table, 4, min_grouped_seqs=1)
    assert workspace.query_start_loc.tolist() == [0, 4, 8, 12, 16]
    logits = world.score(queries, table, lengths, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, requests, lengths)
    assert scored.made() == {("verify", backend): 1}


@pytest.mark.parametrize("requests", [3, 4])
def test_few_verify_requests_score_row_by_row_until_there_are_four(
    world: IndexWorld, backend: str, scored: LaunchCounts, requests: int
) -> None:
    table = world.page_table[:requests].repeat_interleave(2, 0)
    lengths = [n for r in range(requests) for n in (max(0, LENGTHS[r] - 1), LENGTHS[r])]
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(table, 2)
    assert workspace.rows_per_seq == (2 if requests == 4 else 1)
    queries = world.queries(2 * requests)
    logits = world.score(queries, table, lengths, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, [r for r in range(requests) for _ in range(2)], lengths)
    assert scored.made() == {("verify" if requests == 4 else "decode", backend): 1}


def test_row_group_workspace_of_another_row_count(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    queries = world.queries(4)
    stale = hip.prepare_fp4_rowgroup_decode_workspace(world.page_table[:2], 1, table_columns=44)
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=stale)
    world.check(logits, queries, list(ROWS), LENGTHS)
    assert scored.made() == {("decode", backend): 1}


def test_a_wrong_page_changes_the_scores(world: IndexWorld) -> None:
    """Negative control: the expectations depend on the page table."""
    queries = world.queries(4)
    table = world.page_table.clone()
    table[2] = table[2].flip(0)
    logits = world.score(queries, table, LENGTHS, is_decode=True)
    with pytest.raises(AssertionError, match="not close"):
        world.check(logits, queries, list(ROWS), LENGTHS)
