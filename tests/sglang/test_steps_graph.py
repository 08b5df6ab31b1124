"""Which part of a step's metadata is made inside a captured graph and which outside, by SGLang's unmodified backend.

A capture records what runs; here a replay runs the same function again over the same buffers. Decode's schedule is
made inside, so that a replay follows the lengths of its step; prefill's and verify's outside, because AITER's scheduler
frees scratch that its kernel reads. One schedule serves both C4 layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.fp4_indexer_schedule_hip import MAX_FUSED_ROWS
from sglang.srt.layers.attention import deepseek_v4_backend_hip_radix as hip_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import step_world
from launch_counts import LaunchCounts
from step_world import LAYERS, StepWorld

LENGTHS = [2400, 300, 2305, 2304]
"""Tokens with the new one; the third request's is the first of its tenth page, the fourth's completes a key."""


@pytest.fixture
def world(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepWorld]:
    step_world.install(monkeypatch)
    with step_world.world_of(tmp_path, lengths=LENGTHS) as made:
        yield made


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each schedule was built, and whether a capture was under way."""
    counts: Counter[str] = Counter()

    def counting(name: str, original: Any) -> Any:
        def build(*args: Any, **kwargs: Any) -> Any:
            counts[f"{name} captured" if torch.cuda.is_current_stream_capturing() else name] += 1
            return original(*args, **kwargs)

        return build

    for name in ("decode", "prefill", "rowgroup_decode"):
        function = f"prepare_fp4_{name}_workspace"
        monkeypatch.setattr(hip, function, counting(name, getattr(hip, function)))
    return counts


def captured(monkeypatch: pytest.MonkeyPatch, made: Any, batch: Any) -> None:
    """`made` builds the graph's part of a step while a capture is under way."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        made.init_forward_metadata_in_graph(batch)


def test_decode_schedules_are_made_inside_the_graph_once_for_all_layers(
    world: StepWorld, backend: str, scored: LaunchCounts, built: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world.backend()
    made.init_cuda_graph_state(len(LENGTHS), len(LENGTHS))
    first = world.batch(ForwardMode.DECODE, 1, lengths=[n - 9 for n in LENGTHS])
    made.init_forward_metadata_out_graph(first, in_capture=True)
    assert isinstance(made.forward_metadata, hip_backend.DSV4RawDecodeMetadata)
    assert built == {}
    captured(monkeypatch, made, first)
    assert built == {"decode captured": 1}

    replay = world.batch(ForwardMode.DECODE, 1)
    made.init_forward_metadata_out_graph(replay)
    assert built == {"decode captured": 1}
    captured(monkeypatch, made, replay)
    world.check(world.forward(made, replay), replay)
    assert built == {"decode captured": 2}
    assert scored.made() == {("decode", backend): len(LAYERS)}


def test_a_row_group_workspace_is_made_inside_the_graph_too(
    backend: str, scored: LaunchCounts, built: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_world.install(monkeypatch)
    monkeypatch.setenv("SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP", "1")
    with step_world.world_of(tmp_path, lengths=LENGTHS) as world:
        made, batch = world.backend(), world.batch(ForwardMode.DECODE, 1)
        made.init_cuda_graph_state(len(LENGTHS), len(LENGTHS))
        made.init_forward_metadata_out_graph(batch, in_capture=True)
        captured(monkeypatch, made, batch)
        world.check(world.forward(made, batch), batch)
    assert built == {"rowgroup_decode captured": 1}
    assert scored.made() == {("decode", backend): len(LAYERS)}


def test_prefill_schedules_are_made_once_for_all_layers(
    world: StepWorld, backend: str, scored: LaunchCounts, built: Counter[str]
) -> None:
    rows = 6
    made = world.backend()
    lengths = [n + rows for n in LENGTHS]
    batch = world.batch(
        ForwardMode.EXTEND,
        rows,
        seq_lens=torch.tensor(lengths),
        seq_lens_cpu=torch.tensor(lengths),
        extend_seq_lens=torch.tensor([rows] * len(lengths)),
        extend_seq_lens_cpu=[rows] * len(lengths),
        extend_start_loc=torch.arange(len(lengths)) * rows,
        extend_num_tokens=rows * len(lengths),
        extend_prefix_lens=torch.tensor(LENGTHS),
        extend_prefix_lens_cpu=LENGTHS,
    )
    made.init_forward_metadata(batch)
    world.check(world.forward(made, batch), batch)
    assert built == {"prefill": 1}
    assert scored.made() == {("prefill", backend): len(LAYERS)}


def test_verify_schedules_are_made_outside_the_graph_into_the_same_buffers(
    backend: str, scored: LaunchCounts, built: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_world.install(monkeypatch)
    with step_world.world_of(tmp_path, *step_world.eagle(4), lengths=LENGTHS, algorithm="EAGLE") as world:
        made = world.backend()
        made.init_cuda_graph_state(len(LENGTHS), 4 * len(LENGTHS))
        first = world.batch(ForwardMode.TARGET_VERIFY, 4, lengths=[n - 9 for n in LENGTHS])
        made.init_forward_metadata_out_graph(first, in_capture=True)
        address = made.forward_metadata.fp4_prefill_workspace.cta_info.data_ptr()
        captured(monkeypatch, made, first)
        assert built == {"prefill": 1}

        replay = world.batch(ForwardMode.TARGET_VERIFY, 4)
        made.init_forward_metadata_out_graph(replay)
        captured(monkeypatch, made, replay)
        world.check(world.forward(made, replay), replay)
        assert made.forward_metadata.fp4_prefill_workspace.cta_info.data_ptr() == address
    assert built == {"prefill": 2}
    assert scored.made() == {("prefill", backend): len(LAYERS)}


def test_more_verify_rows_than_a_fused_schedule_holds_stay_out_of_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DSpark's block waits for the graph only while its schedule is safe to capture."""
    step_world.install(monkeypatch)
    flags = step_world.dspark(tmp_path, block=3)
    with step_world.world_of(tmp_path, *flags, lengths=LENGTHS, algorithm="DSPARK") as world:
        made = world.backend()
        assert made._fp4_graph_row_limit == MAX_FUSED_ROWS == 4096
        made._fp4_graph_row_limit = 4 * len(LENGTHS) - 1
        made.init_cuda_graph_state(len(LENGTHS), 4 * len(LENGTHS))
        made.init_forward_metadata_out_graph(world.batch(ForwardMode.TARGET_VERIFY, 4))
        assert isinstance(made.forward_metadata, hip_backend.DSV4Metadata)
        assert made.forward_metadata.fp4_prefill_workspace is not None
