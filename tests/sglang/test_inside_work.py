"""Launches and rows of captured graphs, through SGLang's unmodified graph backend; rows and times of each launch.

A graph here is what a device makes of it: a list of nothing, because capture runs Python and replay does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.srt.model_executor.runner_backend import full_cuda_graph_backend
from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend

from dsv4_serve.engines.hooks import HookError, Hooks
from dsv4_serve.engines.sglang.inside import scoring, work
from index_world import IndexWorld, int32

LENGTHS = [300, 40]


@pytest.fixture(autouse=True)
def _hooked() -> Iterator[None]:
    hooks = Hooks([*work.HOOKS, *scoring.HOOKS])
    hooks.attach()
    hooks.verify()
    yield
    hooks.detach()


class Graph:
    """A captured graph, which counts its replays."""

    replays = 0

    def replay(self) -> None:
        Graph.replays += 1


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> FullCudaGraphBackend:
    """SGLang's backend of full graphs, over a device that records nothing."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    for scope in ("graph_pool_capture_scope", "graph_pool_replay_scope"):
        monkeypatch.setattr(full_cuda_graph_backend, scope, nullcontext)
    made = FullCudaGraphBackend.__new__(FullCudaGraphBackend)
    made._graphs, made._outputs, made._pool = {}, {}, None
    made._cuda_graph_runner = SimpleNamespace()
    made._device_module = SimpleNamespace(synchronize=lambda: None, graph=lambda **rest: nullcontext())
    made._tp_group = SimpleNamespace(barrier=lambda: None)
    made._capture_stream, made._memory_saver_adapter = None, None
    made._precarve = SimpleNamespace(measure=nullcontext, mint=lambda: None)
    made._reuse_output_buffer = False
    return made


def decode(world: IndexWorld) -> None:
    queries = world.queries(2)
    workspace = hip.prepare_fp4_decode_workspace(world.page_table, int32(LENGTHS))
    world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=workspace)


@contextmanager
def grown() -> Iterator[work.Work]:
    """What the block added to the totals."""
    before, found = work.total(), work.Work()
    yield found
    found.add(work.total() - before)


DECODE = ("paged_logits", "decode", "reference")
ROWS = ("paged_logits", "decode", "whole")


def test_a_replay_counts_what_the_capture_launched(graphs: FullCudaGraphBackend) -> None:
    world = IndexWorld(LENGTHS)
    with grown() as captured:
        graphs.capture_one("two requests", lambda: decode(world))
    # Two forwards warm up, the third is recorded.
    assert captured.launches[DECODE] == 3
    assert captured.rows[ROWS] == 6
    with grown() as replayed:
        for _ in range(5):
            graphs.replay("two requests", None)
    assert Graph.replays == 5
    assert replayed.launches[DECODE] == 5
    assert replayed.rows[ROWS] == 10


def test_what_runs_in_python_during_a_replay_counts_once(graphs: FullCudaGraphBackend) -> None:
    """A breakable graph runs its eager parts at every replay."""
    world = IndexWorld(LENGTHS)
    graphs.capture_one("a", lambda: decode(world))
    replay = next(hook.wrap for hook in work.HOOKS if hook.attribute == "BreakableCudaGraphBackend.replay")
    with grown() as replayed:
        replay(lambda backend, key: decode(world))(graphs, "a")
    assert replayed.launches[DECODE] == 1
    assert replayed.rows[ROWS] == 2


def test_rows_of_every_launch_by_operation_phase_and_scope() -> None:
    world = IndexWorld([300, 77, 130, 264], "page8")
    table = world.page_table.repeat_interleave(2, 0)
    lengths = [n for length in world.lengths for n in (length - 1, length)]
    workspace = hip.prepare_fp4_rowgroup_decode_workspace(table, 2)
    with grown() as found:
        world.score(world.queries(8), table, lengths, is_decode=True, decode_workspace=workspace)
    assert found.rows == {("rowgroup_logits", "verify", "whole"): 8}
    c4 = IndexWorld([40])
    with grown() as found:
        c4.score(c4.queries(1), c4.page_table, [40], is_decode=False)
        hip.rowgroup_paged_mqa_logits(
            q_fp4=(queries := world.queries(1)).q_fp4,
            q_scale=queries.q_scale,
            k_payload=world.payload,
            k_scale=world.scale,
            weights=queries.weights,
            weight_scale=1.0,
            block_tables=torch.tensor([[8, 9]], dtype=torch.int32),
            query_start_loc=int32([0, 1]),
            row_ends=int32([16]),
            max_query_len=1,
            max_seq_len=16,
            page8=True,
            pages_per_block=1,
        )
    assert found.rows == {("paged_logits", "prefill", "whole"): 1, ("rowgroup_logits", "decode", "candidates"): 1}


class Event:
    """A device event; the device passes it when the test says so. Each takes a quarter of a second."""

    passed = False

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """On the current stream."""

    def query(self) -> bool:
        return Event.passed

    def elapsed_time(self, end: Event) -> float:
        return 250.0


def test_one_in_so_many_launches_is_timed_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event, raising=False)
    timer = scoring.Timer(every=2)
    monkeypatch.setattr(scoring, "timer", timer)
    world = IndexWorld(LENGTHS)
    for _ in range(5):
        decode(world)
    timer.collect()
    assert timer.launches == {}
    monkeypatch.setattr(Event, "passed", True)
    timer.collect()
    assert timer.launches == {"decode": 2}
    assert timer.seconds == {"decode": 0.5}


def test_a_launch_that_is_being_captured_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = scoring.Timer(every=1)
    assert timer.due()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not timer.due()


def test_timing_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(scoring.TIMING, raising=False)
    assert scoring.configured() == 0
    assert not scoring.Timer(0).due()
    monkeypatch.setenv(scoring.TIMING, "often")
    with pytest.raises(HookError, match="DSV4_INDEXER_TIMING='often': accepted is 0"):
        scoring.configured()
