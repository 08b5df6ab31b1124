"""256 requests that verify 6 rows each, in one launch of 1,536 rows: the batch for which SGLang left AITER's schedule.

The metadata is written out here, because SGLang's kernels of it take 20 ms a row in the interpreter; test_v41_steps.py
runs them. The indexer, its workspace and the launch are SGLang's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention.dsv4 import low_ratio_backend_hip
from sglang.srt.layers.attention.dsv4.metadata import PagedIndexerMetadata
from torch import Tensor

import v41_oracle
import v41_world
from launch_counts import LaunchCounts
from request_world import CONTEXT, PAGE
from v41_world import PRODUCER, TOPK, V41World

REQUESTS, DRAFTS = 256, 6


@pytest.fixture
def world(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V41World]:
    """Contexts that end in the third page behind a common prefix, over pages of 64 slots; in the emulator short ones in
    a page of their own, over pages of 8 slots."""
    v41_world.install(monkeypatch, page8=backend != "reference")
    first, pages, shared = (532, 3, 2) if backend == "reference" else (34, 1, 0)
    lengths = [first + r % 29 + DRAFTS for r in range(REQUESTS)]
    tokens = (REQUESTS + 2) * PAGE
    with v41_world.world_of(tmp_path, lengths, DRAFTS, tokens=tokens, pages=pages, shared_pages=shared) as made:
        yield made


def step(world: V41World) -> tuple[Any, Any]:
    """A backend with the metadata of the step that verifies each request's last 6 tokens, and the step."""
    batch = world.verify(DRAFTS, lengths=[n - DRAFTS for n in world.lengths])
    index_pages = (world.pages[:, :, None] * 4 + torch.arange(4)).flatten(1).int()
    scored = PagedIndexerMetadata(
        page_size=PAGE,
        compressed_page_size=64,
        page_table=index_pages.repeat_interleave(DRAFTS, 0),
        compressed_seq_lens=(batch.positions + 1).int(),
        use_topk_v2=False,
        compress_ratio=1,
    )
    workspaces = low_ratio_backend_hip.build_low_ratio_decode_workspaces(
        {1: scored},
        max_context_len=CONTEXT,
        num_requests=REQUESTS,
        page8_ratios=world.pool.low_ratio_index_k_page8_ratios(),
    )
    indices, raw = (torch.full((REQUESTS * DRAFTS, TOPK), -1, dtype=torch.int32) for _ in range(2))
    core = SimpleNamespace(sparse_page_indices=lambda ratio: indices, sparse_raw_indices=lambda ratio: raw)
    made = world.backend()
    made.forward_metadata = SimpleNamespace(
        core_metadata=core,
        low_ratio_indexer_metadata={1: scored}.get,
        fp4_low_ratio_decode_workspaces=workspaces,
    )
    return made, batch


def test_rows_of_256_requests_score_and_select_by_their_own_length(
    world: V41World, backend: str, scored: LaunchCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts within the candidates' span, so that even their source takes the plain top-k."""
    seen: list[Tensor] = []
    launch = low_ratio_backend_hip.aiter_fp4_paged_mqa_logits

    def kept(**given: Any) -> Tensor:
        seen.append(launch(**given))
        return seen[-1]

    monkeypatch.setattr(low_ratio_backend_hip, "aiter_fp4_paged_mqa_logits", kept)
    made, batch = step(world)
    assert len(batch.positions) == 1536
    inputs = world.inputs(PRODUCER, batch.out_cache_loc)
    low_ratio_backend_hip.low_ratio_index_topk_hip_decode(made, world.layers[PRODUCER], *inputs, batch.positions, batch)
    core = made.forward_metadata.core_metadata
    v41_oracle.check(world, batch, {PRODUCER: (core.sparse_page_indices(1), core.sparse_raw_indices(1))}, every=37)
    v41_oracle.check_scores(world, batch, PRODUCER, seen[0], every=37)
    assert scored.made() == {("verify", backend): 1}
