"""V4.1's low-ratio launches of the unmodified adapter, pages of 64 and of 8 slots, whole contexts and candidates."""

from __future__ import annotations

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import candidate_blocks_hip as candidates
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip

from index_world import IndexWorld, Kind, int32
from launch_counts import LaunchCounts

LENGTHS = [300, 77, 130, 264]
BUCKET = hip.LOW_RATIO_PAGE_TABLE_BUCKET
POOLS: list[Kind] = ["low_ratio", "page8"]


@pytest.fixture(scope="module", params=POOLS)
def world(request: pytest.FixtureRequest, backend: str) -> IndexWorld:
    return IndexWorld(LENGTHS, request.param)


def test_row_group_decode(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    queries = world.queries(4)
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(world.page_table, 1, page_table_bucket=BUCKET)
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, [0, 1, 2, 3], LENGTHS)
    assert scored.made() == {("decode", backend): 1}


def test_row_group_verify_of_two_rows_a_request(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    lengths = [n for length in LENGTHS for n in (length - 1, length)]
    table = world.page_table.repeat_interleave(2, 0)
    queries = world.queries(8)
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(table, 2, page_table_bucket=BUCKET)
    assert workspace.rows_per_seq == 2
    logits = world.score(queries, table, lengths, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, [0, 0, 1, 1, 2, 2, 3, 3], lengths)
    assert scored.made() == {("verify", backend): 1}


def test_decode_without_a_workspace(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    """Pages of 64 take a schedule here; pages of 8 can only be read by the row-group kernel."""
    queries = world.queries(4)
    logits = world.score(
        queries, world.page_table, LENGTHS, is_decode=True, page_table_bucket=BUCKET, rowgroup_table_columns=68
    )
    world.check(logits, queries, [0, 1, 2, 3], LENGTHS)
    assert scored.made() == {("decode", backend): 1}


def test_row_group_prefill_of_ragged_requests(world: IndexWorld, backend: str, scored: LaunchCounts) -> None:
    rows_per_request = [1, 3, 2]
    requests = [r for r, n in enumerate(rows_per_request) for _ in range(n)]
    lengths = [300, 1, 76, 77, 64, 65]
    queries = world.queries(len(requests))
    workspace = hip.prepare_fp4_rowgroup_prefill_workspace(world.page_table[requests], rows_per_request)
    starts = hip.rowgroup_prefill_query_start_loc(workspace, slice(0, 6), rows_per_request)
    page8 = world.kind == "page8"
    logits = hip.rowgroup_paged_mqa_logits(
        q_fp4=queries.q_fp4,
        q_scale=queries.q_scale,
        k_payload=world.payload,
        k_scale=world.scale,
        weights=queries.weights,
        weight_scale=1.0,
        block_tables=workspace.request_page_table,
        query_start_loc=starts,
        row_ends=int32(lengths),
        max_query_len=3,
        max_seq_len=workspace.max_seq_len,
        page8=page8,
        pages_per_block=8 if page8 else 1,
        is_decode=False,
    )
    world.check(logits, queries, requests, lengths)
    assert scored.made() == {("verify", backend): 1}


def test_candidate_blocks_of_a_page8_pool_score_as_their_positions(backend: str, scored: LaunchCounts) -> None:
    """A consumer layer scores only the blocks that the producer chose, newest block last and partly filled."""
    world = IndexWorld(LENGTHS, "page8")
    queries = world.queries(4)
    chosen = [[37, 3, 0, 20], [9, 1, 0, -1], [16, 2, 11, 5], [32, 31, 7, 0]]
    blocks = torch.tensor(chosen, dtype=torch.int32)
    table = candidates.candidate_page8_table(blocks, int32(LENGTHS), world.page_table, block_size=8, page_size=64)
    logits = hip.rowgroup_paged_mqa_logits(
        q_fp4=queries.q_fp4,
        q_scale=queries.q_scale,
        k_payload=world.payload,
        k_scale=world.scale,
        weights=queries.weights,
        weight_scale=1.0,
        block_tables=table.block_tables,
        query_start_loc=table.query_start_loc,
        row_ends=table.compact_lens,
        max_query_len=1,
        max_seq_len=blocks.shape[1] * 8,
        page8=True,
        pages_per_block=1,
    )
    for row, length in enumerate(LENGTHS):
        full = world.expected(queries, row, row)
        kept = [b for b in table.ids[row].tolist() if b >= 0]
        assert sorted(kept) == sorted(b for b in blocks[row].tolist() if b >= 0)
        positions = [p for b in kept for p in range(8 * b, min(8 * b + 8, length))]
        assert int(table.compact_lens[row]) == len(positions)
        torch.testing.assert_close(logits[row, : len(positions)].double(), full[positions], rtol=2e-6, atol=2e-6)
    assert scored.made() == {("decode", backend): 1}


def test_bytes_of_the_other_page_size_give_other_scores(backend: str) -> None:
    """Negative control: both pools have the same sizes, so only the layout's name tells them apart."""
    world = IndexWorld(LENGTHS, "page8")
    queries = world.queries(4)
    world.kind = "low_ratio"
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, page_table_bucket=BUCKET)
    world.kind = "page8"
    with pytest.raises(AssertionError, match="not close"):
        world.check(logits, queries, [0, 1, 2, 3], LENGTHS)
