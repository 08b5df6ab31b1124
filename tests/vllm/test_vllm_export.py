"""What the workers counted, in vLLM's own /metrics and as the launcher's families."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from prometheus_client import REGISTRY, generate_latest
from vllm.compilation.cuda_graph import CUDAGraphEntry, CUDAGraphWrapper
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, ForwardContext, override_forward_context
from vllm.v1.attention.backends.mla import indexer as gates
from vllm.v1.metrics import prometheus
from vllm.v1.worker.gpu_worker import Worker

import vllm_index_world as world
from dsv4_kernels import counters
from dsv4_serve.engines import inside_work, vllm_metrics
from dsv4_serve.engines.vllm import export, graphs

V4 = world.Model()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(export.DIRECTORY, str(tmp_path))
    with world.registered():
        yield
    for held in [c for c in REGISTRY._collector_to_names if isinstance(c, export.Collector)]:
        REGISTRY.unregister(held)


def worker(rank: int, tensor_parallel: int = 2) -> Any:
    parallel = SimpleNamespace(
        data_parallel_rank=0, tensor_parallel_size=tensor_parallel, pipeline_parallel_size=1, rank=rank
    )
    config = V4.config()
    assert gates.dsa_indexer_uses_fp4(config)
    return SimpleNamespace(vllm_config=config, parallel_config=parallel, rank=rank)


def scrape() -> str:
    """The text of vLLM's own registry, which its API server mounts at /metrics."""
    return generate_latest(prometheus.get_prometheus_registry()).decode()


def values(text: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    family = next((f for f in vllm_metrics.translate(text) if f.name == name.removesuffix("_total")), None)
    samples = [] if family is None else family.samples
    return {tuple(s.labels[label] for label in labels): s.value for s in samples}


def test_launches_rows_and_fallbacks_reach_the_launcher() -> None:
    counters.count_launch("paged_logits", "verify", "reference")
    inside_work.count_rows("paged_logits", "verify", "candidates", 24)
    counters.count_fallback("index_dtype", "context parallel size")
    for rank in range(2):
        exporter = export.exporter_of(worker(rank))
        assert exporter is not None
        exporter.publish()
    text = scrape()
    assert 'replica="0"' in text
    launches = values(text, "dsv4_indexer_launches_total", "op", "phase", "backend")
    known = inside_work.total()
    # Two tensor ranks do the same work: it is told once.
    assert launches == {key: float(n) for key, n in known.launches.items()}
    rows = values(text, "dsv4_indexer_rows_total", "op", "phase", "scope")
    assert rows == {key: float(n) for key, n in known.rows.items()}
    assert values(text, "dsv4_indexer_fallbacks_total", "op", "reason")["index_dtype", "context parallel size"] >= 1
    assert values(text, "dsv4_indexer_path", "phase", "op", "backend")["verify", "paged_logits", "reference"] == 1
    assert ("record68", "fp4", "deepseek") in values(text, "dsv4_index_format", "layout", "format", "convention")


def test_a_worker_exports_once_its_model_is_loaded_and_then_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("threading.Thread", lambda **how: SimpleNamespace(start=lambda: started.append(how)))
    hook = next(h for h in export.HOOKS if h.attribute == "Worker.load_model")
    assert getattr(Worker.load_model, "__dsv4_hook__", None) == hook
    assert hook.wrap(lambda of: "loaded")(worker(1)) == "loaded"
    assert [how["daemon"] for how in started] == [True]
    assert [p.name for p in Path(os.environ[export.DIRECTORY]).iterdir()] == ["0-0-1.prom"]


def test_a_model_without_an_index_exports_nothing() -> None:
    other = worker(0)
    other.vllm_config.model_config.hf_config.index_n_heads = 0
    assert export.exporter_of(other) is None
    assert values(scrape(), "dsv4_indexer_launches_total") == {}


def test_a_registry_has_the_workers_once() -> None:
    assert prometheus.get_prometheus_registry() is prometheus.get_prometheus_registry()
    scrape()
    held = prometheus.get_prometheus_registry()._collector_to_names
    ours = [c for c in held if isinstance(c, export.Collector) and str(c.directory) == os.environ[export.DIRECTORY]]
    assert len(ours) == 1


def test_the_directory_goes_with_the_process_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(export.DIRECTORY)
    export.prepare()
    made = os.environ[export.DIRECTORY]
    assert Path(made).stat().st_mode & 0o777 == 0o700
    export.prepare()
    assert os.environ[export.DIRECTORY] == made
    export._remove(made, os.getpid() + 1)
    assert Path(made).is_dir()
    export._remove(made, os.getpid())
    assert not Path(made).exists()


# Replays of captured graphs


@contextmanager
def step(mode: CUDAGraphMode) -> Iterator[BatchDescriptor]:
    descriptor = BatchDescriptor(num_tokens=4)
    context = ForwardContext(
        no_compile_layers={},
        attn_metadata={},
        slot_mapping={},
        cudagraph_runtime_mode=mode,
        batch_descriptor=descriptor,
    )
    with override_forward_context(context):
        yield descriptor


def launches() -> int:
    return inside_work.total().launches["paged_logits", "decode", "reference"]


def test_replays_count_what_their_capture_launched() -> None:
    """vLLM's own wrapper; a CPU records no graph, so the capture is entered by hand, and the replays are vLLM's."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            counters.count_launch("paged_logits", "decode", "reference")
        return x

    made = object.__new__(CUDAGraphWrapper)
    vars(made).update(
        runnable=forward,
        runtime_mode=CUDAGraphMode.FULL,
        concrete_cudagraph_entries={},
        is_debugging_mode=False,
        cudagraph_options=SimpleNamespace(debug_log_enable=False),
    )

    def capture(wrapper: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = wrapper.runnable(x)
        entry = CUDAGraphEntry(batch_descriptor=BatchDescriptor(num_tokens=4))
        entry.cudagraph, entry.output = SimpleNamespace(replay=lambda: None), out
        wrapper.concrete_cudagraph_entries[entry.batch_descriptor] = entry
        return out

    x, before = torch.zeros(4), launches()
    hook = graphs.HOOKS[0]
    assert getattr(CUDAGraphWrapper.__call__, "__dsv4_hook__", None) == hook
    with step(CUDAGraphMode.FULL):
        hook.wrap(capture)(made, x)
        assert launches() - before == 3
        with mock.patch("vllm.compilation.cuda_graph.get_offloader"):
            for _ in range(5):
                made(x)
    assert launches() - before == 3 + 5 * 3
    with step(CUDAGraphMode.NONE):
        made(x)
    assert launches() - before == 3 + 5 * 3 + 3
