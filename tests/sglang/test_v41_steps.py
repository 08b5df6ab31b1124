"""Whole steps of V4.1's low-ratio path by SGLang's unmodified HIP backend, over our kernels: metadata, workspaces,
compression of the step's tokens, candidate blocks and consumers; each selection against float64 scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang.kernels.ops.attention.dsv4.candidate_blocks_hip import CandidateBlocks
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import v41_oracle
import v41_world
from launch_counts import LaunchCounts
from v41_world import BLOCK, V41World

LENGTHS = [1278, 1151, 1203, 300]
"""Committed tokens. The first request's drafts cross into its sixth page; the last has fewer entries than are taken."""


@pytest.fixture
def page8(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def world(
    backend: str, page8: bool, drafts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[V41World]:
    v41_world.install(monkeypatch, page8=page8)
    with v41_world.world_of(tmp_path, LENGTHS, drafts) as made:
        yield made


@pytest.mark.parametrize(("drafts", "page8"), [(4, False), (6, True), (7, False)], indirect=["page8"])
def test_verify_rows(world: V41World, drafts: int, page8: bool, backend: str, scored: LaunchCounts) -> None:
    made, batch = world.backend(), world.verify(drafts)
    made.init_forward_metadata(batch)
    v41_oracle.check(world, batch, world.forward(made, batch))
    # A request's rows share each key they load; a consumer's rows have candidates of their own in a pool of page 8.
    assert scored.made() == ({("verify", backend): 2, ("decode", backend): 1} if page8 else {("verify", backend): 3})


@pytest.mark.parametrize(("drafts", "page8"), [(6, False), (6, True)], indirect=["page8"])
def test_decode_rows(world: V41World, page8: bool, backend: str, scored: LaunchCounts) -> None:
    made, batch = world.backend(), world.batch(ForwardMode.DECODE, 1)
    made.init_forward_metadata(batch)
    v41_oracle.check(world, batch, world.forward(made, batch))
    assert scored.made() == {("decode", backend): 3}
    assert_published(world, batch, made.candidate_masks)


def assert_published(world: V41World, batch: Any, published: CandidateBlocks) -> None:
    """The producer's blocks of every row are the oracle's, and its newest block is among them."""
    for row, position in enumerate(batch.positions.tolist()):
        here = slice(row, row + 1)
        wanted = v41_oracle.candidates(world, batch.out_cache_loc[here], batch.positions[here], row)
        found = published.ids[row][published.ids[row] >= 0]
        assert set(found.tolist()) == {p // BLOCK for p in wanted[0].nonzero().flatten().tolist()}
        assert position // BLOCK in found


@pytest.mark.parametrize(("drafts", "page8"), [(6, True)], indirect=["page8"])
def test_extend_rows_behind_a_prefix(world: V41World, backend: str) -> None:
    made = world.backend()
    batch = world.extend(range(2), [n - 3 for n in LENGTHS[:2]])
    made.init_forward_metadata(batch)
    v41_oracle.check(world, batch, world.forward(made, batch))
