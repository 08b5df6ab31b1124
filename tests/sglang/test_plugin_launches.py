"""Every launch of SGLang's HIP adapter through the plugin, beside an AITER that has none of its names.

Over the reference and over our gfx950 code objects in the emulator; expectations by the oracle's formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import candidate_blocks_hip as candidates
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip

import emulated_gfx950
import plugin_world
from index_world import IndexWorld, Queries, int32
from launch_counts import LaunchCounts

LENGTHS = [299, 0, 300, 257]
ROWS = [0, 1, 2, 3]


@pytest.fixture(scope="module", params=["reference", "gfx950"], autouse=True)
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """The plugin in place and no name of AITER's; what our operations chose to score keys."""
    name = str(request.param)
    with ExitStack() as stack:
        if name == "gfx950":
            stack.enter_context(emulated_gfx950.serving(request.getfixturevalue("gfx950_kernels")))
        stack.enter_context(plugin_world.aiter())
        chosen = stack.enter_context(plugin_world.routed(backend=name))
        assert {chosen.selections[op].selected for op in ("paged_logits", "rowgroup_logits")} == {name}
        yield name


@pytest.fixture(scope="module")
def world(served: str) -> IndexWorld:
    return IndexWorld(LENGTHS)


@pytest.fixture
def grouped() -> LaunchCounts:
    return LaunchCounts("rowgroup_logits")


@pytest.mark.parametrize("workspace", ["of the step", "none", "of other rows"])
def test_decode(world: IndexWorld, served: str, scored: LaunchCounts, workspace: str) -> None:
    queries = world.queries(4)
    held = None if workspace == "none" else hip.prepare_fp4_decode_workspace(world.page_table, int32(LENGTHS))
    if workspace == "of other rows":
        held = hip.prepare_fp4_decode_workspace(world.page_table[:3], int32(LENGTHS[:3]))
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=held)
    world.check(logits, queries, ROWS, LENGTHS)
    assert scored.made() == {("decode", served): 1}


def test_decode_with_padded_rows(world: IndexWorld) -> None:
    table = torch.cat([world.page_table, torch.zeros_like(world.page_table[:2])])
    lengths = [*LENGTHS, 0, 0]
    queries = world.queries(6)
    workspace = hip.prepare_fp4_decode_workspace(table, int32(lengths))
    logits = world.score(queries, table, lengths, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, [*ROWS, 0, 0], lengths)


def test_a_step_without_rows(world: IndexWorld) -> None:
    """A data-parallel rank that has nothing to do."""
    queries = world.queries(0)
    assert queries.q_fp4.shape == (0, 64, 64)
    for is_decode in (True, False):
        assert world.score(queries, world.page_table[:0], [], is_decode=is_decode).shape == (0, 512)


@pytest.mark.parametrize("stale", [False, True])
def test_row_group_decode(world: IndexWorld, served: str, grouped: LaunchCounts, stale: bool) -> None:
    assert hip.aiter_has_fp4_rowgroup()
    queries = world.queries(4)
    table = world.page_table[:2] if stale else world.page_table
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(table, 1, table_columns=44)
    logits = world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, ROWS, LENGTHS)
    assert grouped.made() == {("decode", served): 1}


def test_row_group_verify_of_four_rows_a_request(world: IndexWorld, served: str, grouped: LaunchCounts) -> None:
    requests = [r for r in ROWS for _ in range(4)]
    lengths = [max(0, LENGTHS[r] - 1 + (step >= 2)) for r in ROWS for step in range(4)]
    queries = world.queries(16)
    table = world.page_table.repeat_interleave(4, 0)
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(table, 4, min_grouped_seqs=1)
    logits = world.score(queries, table, lengths, is_decode=True, decode_workspace=workspace)
    world.check(logits, queries, requests, lengths)
    assert grouped.made() == {("verify", served): 1}


EXTEND = [0] * 5 + [2] * 4 + [3] * 2
EXTEND_LENGTHS = [0, 1, 63, 64, 65, 255, 256, 257, 300, 256, 257]


@pytest.fixture
def extend(world: IndexWorld) -> tuple[Queries, torch.Tensor]:
    """A mixed extend step: consecutive rows of three requests, each with its request's page-table row."""
    return world.queries(len(EXTEND)), world.page_table[torch.tensor(EXTEND)]


@pytest.mark.parametrize("workspace", ["of the step", "refreshed", "none", "of other rows"])
def test_prefill(
    world: IndexWorld, served: str, extend: tuple[Queries, torch.Tensor], scored: LaunchCounts, workspace: str
) -> None:
    queries, table = extend
    rows = slice(0, 5) if workspace == "of other rows" else slice(None)
    made = hip.prepare_fp4_prefill_workspace(table[rows], int32(EXTEND_LENGTHS)[rows])
    if workspace == "refreshed":
        first = hip.prepare_fp4_prefill_workspace(table.flip(0), int32(EXTEND_LENGTHS[::-1]))
        made = hip.prepare_fp4_prefill_workspace(table, int32(EXTEND_LENGTHS), workspace=first)
        assert made.guarded_page_table.data_ptr() == first.guarded_page_table.data_ptr()
        assert made.row_to_batch.data_ptr() == first.row_to_batch.data_ptr()
    held = None if workspace == "none" else made
    logits = world.score(queries, table, EXTEND_LENGTHS, is_decode=False, prefill_workspace=held)
    world.check(logits, queries, EXTEND, EXTEND_LENGTHS)
    assert scored.made() == {("prefill", served): 1}


def test_neighbouring_rows_of_a_request_share_its_keys(extend: tuple[Queries, torch.Tensor]) -> None:
    workspace = hip.prepare_fp4_prefill_workspace(extend[1], int32(EXTEND_LENGTHS))
    assert workspace.row_to_batch.tolist() == [0] * 5 + [5] * 4 + [9] * 2


def test_prefill_chunks_take_the_pooled_block(
    world: IndexWorld, extend: tuple[Queries, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, table = extend
    monkeypatch.setattr(hip, "_LOGITS_BUDGET_ELEMS", 5 * 512)
    monkeypatch.setattr(hip, "_LOGITS_POOL", {})
    blocks = set()
    for start in range(0, len(queries), hip.logits_rows_per_chunk(table)):
        part = slice(start, start + 5)
        chunk = Queries(queries.q_fp4[part], queries.q_scale[part], queries.weights[part])
        logits = world.score(chunk, table[part], EXTEND_LENGTHS[part], is_decode=False)
        world.check(logits, chunk, EXTEND[part], EXTEND_LENGTHS[part])
        blocks.add(logits.data_ptr())
    assert len(blocks) == 1


LOW = [300, 77, 130, 264]


@pytest.mark.parametrize("kind", ["low_ratio", "page8"])
def test_v41_decode_verify_and_prefill(served: str, grouped: LaunchCounts, kind: str) -> None:
    low = IndexWorld(LOW, "page8" if kind == "page8" else "low_ratio")
    bucket = hip.LOW_RATIO_PAGE_TABLE_BUCKET
    queries = low.queries(4)
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(low.page_table, 1, page_table_bucket=bucket)
    logits = low.score(queries, low.page_table, LOW, is_decode=True, decode_workspace=workspace)
    low.check(logits, queries, ROWS, LOW)

    table, lengths = low.page_table.repeat_interleave(2, 0), [n for length in LOW for n in (length - 1, length)]
    queries = low.queries(8)
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(table, 2, page_table_bucket=bucket)
    logits = low.score(queries, table, lengths, is_decode=True, decode_workspace=workspace)
    low.check(logits, queries, [r for r in ROWS for _ in range(2)], lengths)

    counts, requests, lengths = [1, 3, 2], [0, 1, 1, 1, 2, 2], [300, 1, 76, 77, 64, 65]
    queries = low.queries(6)
    prefill = hip.prepare_fp4_rowgroup_prefill_workspace(low.page_table[requests], counts)
    logits = hip.rowgroup_paged_mqa_logits(
        q_fp4=queries.q_fp4,
        q_scale=queries.q_scale,
        k_payload=low.payload,
        k_scale=low.scale,
        weights=queries.weights,
        weight_scale=1.0,
        block_tables=prefill.request_page_table,
        query_start_loc=hip.rowgroup_prefill_query_start_loc(prefill, slice(0, 6), counts),
        row_ends=int32(lengths),
        max_query_len=3,
        max_seq_len=prefill.max_seq_len,
        page8=kind == "page8",
        pages_per_block=8 if kind == "page8" else 1,
        is_decode=False,
    )
    low.check(logits, queries, requests, lengths)
    assert grouped.made() == {(phase, served): 1 for phase in ("decode", "verify", "prefill")}


def test_pages_of_eight_without_a_workspace(served: str, grouped: LaunchCounts) -> None:
    low = IndexWorld(LOW, "page8")
    queries = low.queries(4)
    logits = low.score(queries, low.page_table, LOW, is_decode=True, page_table_bucket=64, rowgroup_table_columns=68)
    low.check(logits, queries, ROWS, LOW)
    assert grouped.made() == {("decode", served): 1}


def test_candidate_blocks_of_a_page8_pool() -> None:
    low = IndexWorld(LOW, "page8")
    queries = low.queries(4)
    blocks = torch.tensor([[37, 3, 0, 20], [9, 1, 0, -1], [16, 2, 11, 5], [32, 31, 7, 0]], dtype=torch.int32)
    table = candidates.candidate_page8_table(blocks, int32(LOW), low.page_table, block_size=8, page_size=64)
    logits = hip.rowgroup_paged_mqa_logits(
        q_fp4=queries.q_fp4,
        q_scale=queries.q_scale,
        k_payload=low.payload,
        k_scale=low.scale,
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
    for row, length in enumerate(LOW):
        full = low.expected(queries, row, row)
        positions = [p for b in table.ids[row].tolist() if b >= 0 for p in range(8 * b, min(8 * b + 8, length))]
        assert int(table.compact_lens[row]) == len(positions)
        torch.testing.assert_close(logits[row, : len(positions)].double(), full[positions], rtol=2e-6, atol=2e-6)
