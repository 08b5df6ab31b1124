"""Draft rows that the target verifies, by SGLang's unmodified backend: each row sees its own prefix, across pages.

Every selection of both C4 layers is compared with the oracle's, which knows only the row's request and position.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

import step_world
from launch_counts import LaunchCounts
from request_world import PAGE
from step_world import LAYERS, StepWorld

DRAFTS = 4
LENGTHS = [2400, 300, 2301, 2302]
"""Committed tokens. Two requests' drafts cross into a tenth page (9 * 256 = 2304), where 2302 completes no key and 2301
one; 300 has too few keys to be scored."""


@pytest.fixture
def world(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepWorld]:
    step_world.install(monkeypatch)
    with step_world.world_of(tmp_path, *step_world.eagle(DRAFTS), lengths=LENGTHS, algorithm="EAGLE") as made:
        yield made


def index_bytes(world: StepWorld, layer: int) -> Tensor:
    """uint8 [slots, 68]: payload and scales of every key of a layer, in no order that matters here."""
    payload = world.pool.get_index_k_fp4_payload_buffer(layer).view(torch.uint8).view(-1, 4, 64, 16)
    scale = world.pool.get_index_k_fp4_scale_buffer(layer).view(-1, 4, 16, 4).transpose(2, 3).reshape(-1, 4, 64)
    rows = torch.cat([payload.permute(0, 2, 1, 3).flatten(2), scale.permute(0, 2, 1)], -1)
    return rows.reshape(-1, 68)


def test_eagle_rows_select_by_their_own_length(world: StepWorld, backend: str, scored: LaunchCounts) -> None:
    made, batch = world.backend(), world.batch(ForwardMode.TARGET_VERIFY, DRAFTS)
    made.init_forward_metadata(batch)
    lengths = made.forward_metadata.core_attn_metadata.seq_lens_casual.tolist()
    assert lengths == [length + draft + 1 for length in LENGTHS for draft in range(DRAFTS)]
    world.check(world.forward(made, batch), batch)
    assert scored.made() == {("prefill", backend): len(LAYERS)}


def test_the_page_table_reaches_the_page_that_only_drafts_are_in(world: StepWorld) -> None:
    made, batch = world.backend(), world.batch(ForwardMode.TARGET_VERIFY, DRAFTS)
    made.init_forward_metadata(batch)
    table = made.forward_metadata.core_attn_metadata.page_table
    assert table.shape == (len(LENGTHS) * DRAFTS, 10)
    # Without the drafts the longest request but one would end in its ninth page.
    assert -(-2302 // PAGE) == 9
    for row, position in enumerate(batch.positions.tolist()):
        used = position // PAGE + 1
        assert table[row, :used].tolist() == world.pages[row // DRAFTS, :used].tolist()


def test_only_the_keys_that_drafts_complete_are_written(world: StepWorld) -> None:
    before = {layer: index_bytes(world, layer) for layer in LAYERS}
    made, batch = world.backend(), world.batch(ForwardMode.TARGET_VERIFY, DRAFTS)
    made.init_forward_metadata(batch)
    world.forward(made, batch)
    completed = {
        int(world.key_slots(row // DRAFTS, position // 4 + 1)[-1])
        for row, position in enumerate(batch.positions.tolist())
        if position % 4 == 3
    }
    assert len(completed) == len(LENGTHS)
    for layer in LAYERS:
        changed = (index_bytes(world, layer) != before[layer]).any(1).nonzero().flatten()
        assert set(changed.tolist()) == completed


def test_a_table_without_the_drafts_page_selects_other_keys(world: StepWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a table that ends with the committed tokens would score someone else's keys."""
    made, batch = world.backend(), world.batch(ForwardMode.TARGET_VERIFY, DRAFTS)
    made.init_forward_metadata(batch)
    made.forward_metadata.core_attn_metadata.page_table[:, 9] = 0
    picked = world.forward(made, batch)
    with pytest.raises(AssertionError):
        world.check(picked, batch)


def test_hidden_rows_that_padding_added_change_nothing(world: StepWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under data parallel attention a step's hidden states have more rows than its metadata."""
    made, batch = world.backend(), world.batch(ForwardMode.TARGET_VERIFY, DRAFTS)
    made.init_forward_metadata(batch)
    real = world.inputs

    def padded(layer: int, rows: int) -> tuple[Tensor, Tensor]:
        x, q_lora = real(layer, rows)
        return torch.cat([x, x[:3]]), torch.cat([q_lora, q_lora[:3]])

    with monkeypatch.context() as patch:
        patch.setattr(world, "inputs", padded)
        picked = world.forward(made, batch)
    assert {len(rows) for rows in picked.values()} == {len(LENGTHS) * DRAFTS}
    world.check(picked, batch, every=2)


def test_many_verify_rows_share_their_requests_keys(
    backend: str, scored: LaunchCounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 64 rows on, C4 verify rows run as row groups, with a workspace built once for both layers."""
    step_world.install(monkeypatch)
    monkeypatch.setenv("SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP", "1")
    flags = step_world.eagle(drafts=8)
    with step_world.world_of(tmp_path, *flags, lengths=[2297 + r for r in range(8)], algorithm="EAGLE") as world:
        made, batch = world.backend(), world.batch(ForwardMode.TARGET_VERIFY, 8)
        made.init_forward_metadata(batch)
        workspace = made.forward_metadata.fp4_decode_workspace
        assert workspace.query_start_loc.tolist() == list(range(0, 65, 8))
        assert made.forward_metadata.fp4_prefill_workspace is None
        world.check(world.forward(made, batch), batch, every=3)
    assert scored.made() == {("verify", backend): len(LAYERS)}


def test_dspark_rows_get_their_metadata_inside_the_graph(
    backend: str, scored: LaunchCounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DSpark's uniform block stays raw until capture, so that a replay sees the lengths of its own step."""
    step_world.install(monkeypatch)
    flags = step_world.dspark(tmp_path, block=3)
    with step_world.world_of(tmp_path, *flags, lengths=LENGTHS, algorithm="DSPARK") as world:
        made = world.backend()
        assert made.target_verify_num_draft_tokens == DRAFTS
        made.init_cuda_graph_state(len(LENGTHS), len(LENGTHS) * DRAFTS)
        first = world.batch(ForwardMode.TARGET_VERIFY, DRAFTS, lengths=[n - 7 for n in LENGTHS])
        made.init_forward_metadata_out_graph(first, in_capture=True)
        assert isinstance(made.forward_metadata, hip_backend.DSV4RawVerifyMetadata)
        batch = world.batch(ForwardMode.TARGET_VERIFY, DRAFTS)
        made.init_forward_metadata_out_graph(batch)
        made.init_forward_metadata_in_graph(batch)
        world.check(world.forward(made, batch), batch)
    assert scored.made() == {("prefill", backend): len(LAYERS)}
