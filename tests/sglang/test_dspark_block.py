"""What a drafted block reads, and where its rows are verified, by SGLang's own code and by the embedded engine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sglang.kernels.ops.speculative.dspark.dspark_attn_metadata import (
    BuildDsparkSwaPageIndices,
    ComputeDsparkWindowGather,
)
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.speculative.dspark_components.dspark_planner import alloc_verify_window
from torch import Tensor

import step_world
from dsv4_serve.engines.embedded.dspark.block import Anchor, make_block
from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.engines.embedded.running import Request
from dsv4_serve.engines.embedded.sampler import RequestSampler
from dsv4_serve.engines.embedded.work import Work
from step_world import StepWorld

SIZE, WINDOW, RING, PAGE = 5, 128, 136, 256
LENGTHS = [300, 90, 254, 255, 256, 251]
"""Committed tokens. The blocks of 254 and 255 cross a page, that of 251 ends with one; 90 does not fill the window."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepWorld]:
    step_world.install(monkeypatch)
    flags = step_world.dspark(tmp_path, block=SIZE)
    with step_world.world_of(tmp_path, *flags, lengths=LENGTHS, algorithm="DSPARK", draft=True) as made:
        yield made


def window_slots(world: StepWorld, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """SGLang's page indices and their count for every row of the blocks; requests know what is from `first` on."""
    lengths = torch.tensor(LENGTHS)
    valid_from = None
    if first is not None:
        valid_from = torch.zeros(len(LENGTHS) + 1, dtype=torch.int64)
        valid_from[world.requests] = first
    gather = ComputeDsparkWindowGather.execute(
        seq_lens_casual=(lengths[:, None] + torch.arange(1, SIZE + 1)).flatten(),
        req_pool_indices_repeated=world.requests.repeat_interleave(SIZE),
        block_size=SIZE,
        swa_window=WINDOW,
        valid_from=valid_from,
    )
    places = lengths[:, None] + torch.arange(SIZE)
    found: tuple[Tensor, Tensor] = BuildDsparkSwaPageIndices.execute(
        req_to_token=world.runner.req_to_token_pool.req_to_token,
        full_to_swa_mapping=world.pool.full_to_swa_index_mapping,
        req_pool_indices_per_request=gather.req_pool_indices_per_request,
        offsets=gather.offsets,
        invalid=gather.invalid,
        out_loc=world.token_slots().gather(1, places).flatten(),
        context_lens=gather.context_lens,
        block_size=SIZE,
        swa_window=WINDOW,
        page_index_aligned_size=hip_backend.PAGE_INDEX_ALIGNED_SIZE,
    )
    return found


@pytest.mark.parametrize("cached", [False, True], ids=["cold", "behind a cached prefix"])
def test_every_row_reads_the_same_tokens(world: StepWorld, cached: bool) -> None:
    """SGLang lists slots of its window pool, we mask places of a slot's ring; both mean positions of the text."""
    first = torch.tensor([0, 40, 254, 200, 0, 130]) if cached else None
    indices, counts = window_slots(world, first)
    starts = [0] * len(LENGTHS) if first is None else first.tolist()
    anchors = [Anchor(9, n, r, f) for r, (n, f) in enumerate(zip(LENGTHS, starts, strict=True))]
    block = make_block(anchors, SIZE, 2)
    assert block.positions[: block.rows].tolist() == [n + row for n in LENGTHS for row in range(SIZE)]
    mapped = world.pool.full_to_swa_index_mapping[world.token_slots()]
    for request, length in enumerate(LENGTHS):
        tile = block.tile_rows.view(len(LENGTHS), RING)[request] - request * RING
        seen = torch.arange(length - WINDOW, length - WINDOW + RING)
        assert torch.equal(tile, seen % RING)
        ours = seen[block.bias[request, 0] == 0]
        for row in range(SIZE * request, SIZE * (request + 1)):
            theirs = indices[row, : int(counts[row])]
            assert torch.equal(theirs.long(), mapped[request, ours])
            assert (indices[row, int(counts[row]) :] == -1).all()


def test_verified_rows_have_the_same_positions_and_slots(world: StepWorld) -> None:
    """The newest token and the block, over the end of a page where there is one."""
    translator = KVIndexTranslator(
        req_to_token=world.runner.req_to_token_pool.req_to_token,
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: world.pool),
        token_to_kv_pool=world.pool,
        page_size=PAGE,
        device="cpu",
    )
    window = alloc_verify_window(
        batch=SimpleNamespace(seq_lens=torch.tensor(LENGTHS), req_pool_indices=world.requests),
        bs=len(LENGTHS),
        device="cpu",
        verify_num_draft_tokens=SIZE + 1,
        block_pos_offsets=torch.arange(SIZE + 1),
        model_runner=SimpleNamespace(kv_index_translator=translator),
        seq_lens_cpu=torch.tensor(LENGTHS),
    )
    for request, length in enumerate(LENGTHS):
        params = SamplingParams(SIZE + 2, temperature=0.0)
        ours = Request("r", [7] * length, params, RequestSampler(params, 0), lambda output: None, output_ids=[8])
        ours.computed, ours.pages = length, world.pages[request].tolist()
        rows = Work(ours, 1, list(range(SIZE))).decode_rows
        assert [row.position for row in rows] == window.positions_2d[request].tolist()
        slots = [row.pages[row.position // PAGE] * PAGE + row.position % PAGE for row in rows]
        assert slots == window.verify_cache_loc_2d[request].tolist()
    crossed = window.verify_cache_loc_2d[:, 0] // PAGE != window.verify_cache_loc_2d[:, -1] // PAGE
    assert crossed.tolist() == [False, False, True, True, False, True]
