"""Draft steps of EAGLE and DSpark, by SGLang's unmodified backends: each has its own length and its own cache slot.

A draft layer has no C4 indexer; what must be right is which token a step is, where its key goes, and which slots of the
window it attends to. The expectations are written out from the request's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import step_world
from step_world import StepWorld

STEPS, WINDOW = 3, 128
LENGTHS = [300, 90, 254, 255]
"""Accepted tokens. The drafts of the last two cross a page; 90 does not fill the window."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepWorld]:
    step_world.install(monkeypatch)
    with step_world.world_of(
        tmp_path, *step_world.eagle(STEPS + 1), lengths=LENGTHS, algorithm="EAGLE", draft=True
    ) as made:
        yield made


def draft_batch(world: StepWorld, lengths: list[int]) -> Any:
    """What EAGLE's worker hands over once for all steps: accepted lengths, and the slots of all steps by request."""
    batch = world.batch(ForwardMode.DECODE, STEPS, lengths=[n + 1 for n in lengths])
    batch.seq_lens = batch.seq_lens_cpu = torch.tensor(lengths)
    batch.positions = batch.seq_lens.clone()
    return batch


def check(world: StepWorld, made: Any, lengths: list[int]) -> None:
    """Every step that runs a forward has its own token."""
    tokens = world.token_slots()
    for step in range(STEPS - 1):
        core = made.attn_backends[step].forward_metadata.core_attn_metadata
        positions = [n + step for n in lengths]
        slots = torch.tensor([int(tokens[r, p]) for r, p in enumerate(positions)])
        assert core.positions_casual.tolist() == positions
        assert core.seq_lens_casual.tolist() == [p + 1 for p in positions]
        assert core.raw_out_loc.tolist() == slots.tolist()
        assert core.swa_out_cache_loc.tolist() == world.pool.full_to_swa_index_mapping[slots].tolist()
        for row, position in enumerate(positions):
            seen = tokens[row, max(0, position + 1 - WINDOW) : position + 1].flip(0)
            wanted = world.pool.full_to_swa_index_mapping[seen].tolist()
            assert core.swa_page_indices[row, : len(wanted)].tolist() == wanted
            assert int(core.swa_topk_lengths[row]) == len(wanted)


def multi_step(world: StepWorld) -> Any:
    return hip_backend.DeepseekV4MultiStepBackend(world.runner, 1, STEPS)


def test_steps_without_a_graph(world: StepWorld) -> None:
    made = multi_step(world)
    made.init_forward_metadata(draft_batch(world, LENGTHS))
    check(world, made, LENGTHS)


def test_a_replayed_graph_follows_the_lengths_and_slots_of_its_own_step(world: StepWorld) -> None:
    made = multi_step(world)
    made.init_cuda_graph_state(len(LENGTHS), len(LENGTHS))
    first = draft_batch(world, [n - 20 for n in LENGTHS])
    made.init_forward_metadata_out_graph(first, in_capture=True)
    made.on_after_cuda_graph_warmup()
    raw = [step.forward_metadata for step in made.attn_backends]
    assert all(isinstance(metadata, hip_backend.DSV4RawDecodeMetadata) for metadata in raw)
    # The graph reads these buffers for good, so a replay must write into them.
    addresses = [metadata.out_cache_loc.data_ptr() for metadata in raw]
    assert len(set(addresses)) == STEPS

    replay = draft_batch(world, LENGTHS)
    made.init_forward_metadata_out_graph(replay)
    for step, address in zip(made.attn_backends[: STEPS - 1], addresses, strict=False):
        assert step.forward_metadata.out_cache_loc.data_ptr() == address
    made.init_forward_metadata_in_graph(replay)
    check(world, made, LENGTHS)


def test_steps_that_shared_a_slot_would_fail_here(world: StepWorld) -> None:
    """Negative control: the second step with the first one's slots."""
    made = multi_step(world)
    made.init_forward_metadata(draft_batch(world, LENGTHS))
    first, second = (made.attn_backends[step].forward_metadata.core_attn_metadata for step in (0, 1))
    second.raw_out_loc = first.raw_out_loc
    with pytest.raises(AssertionError):
        check(world, made, LENGTHS)


def test_a_dspark_block_sees_the_window_before_it_and_all_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V4.1's draft: one block a request, built inside the graph from the committed length alone."""
    step_world.install(monkeypatch)
    flags = step_world.dspark(tmp_path, block=STEPS)
    with step_world.world_of(tmp_path, *flags, lengths=LENGTHS, algorithm="DSPARK", draft=True) as world:
        made = world.backend()
        # The model here is V4's; a V4.1 draft differs to this code in this flag only.
        made.is_dsv41 = True
        made.init_cuda_graph_state(len(LENGTHS), STEPS * len(LENGTHS))
        first = world.batch(ForwardMode.TARGET_VERIFY, STEPS, lengths=[n - 20 for n in LENGTHS])
        made.init_forward_metadata_out_graph(first, in_capture=True)
        replay = world.batch(ForwardMode.TARGET_VERIFY, STEPS)
        made.init_forward_metadata_out_graph(replay)
        assert isinstance(made.forward_metadata, hip_backend.DSV4RawDSparkDraftMetadata)
        made.init_forward_metadata_in_graph(replay)
        core = made.forward_metadata.core_attn_metadata
        tokens, swa = world.token_slots(), world.pool.full_to_swa_index_mapping
    assert core.positions_casual.tolist() == [n + step for n in LENGTHS for step in range(STEPS)]
    for request, length in enumerate(LENGTHS):
        block = tokens[request, length : length + STEPS]
        seen = swa[tokens[request, max(0, length - WINDOW) : length + STEPS]].tolist()
        for row in range(STEPS * request, STEPS * (request + 1)):
            assert core.swa_page_indices[row, : len(seen)].tolist() == seen
            assert int(core.swa_topk_lengths[row]) == len(seen)
        rows = slice(STEPS * request, STEPS * (request + 1))
        assert core.raw_out_loc[rows].tolist() == block.tolist()
        assert core.swa_out_cache_loc[rows].tolist() == swa[block].tolist()
