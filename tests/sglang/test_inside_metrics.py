"""What the plugin exports from inside the engine: two processes, one multiprocess directory, one translation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sglang.srt.utils import async_probe

from dsv4_serve.engines import inside_metrics, sglang_metrics
from dsv4_serve.engines.hooks import Hooks
from dsv4_serve.engines.inside_families import Families
from dsv4_serve.engines.metric_rules import parse
from dsv4_serve.engines.sglang.inside import captures, health
from dsv4_serve.engines.sglang.inside.publisher import Publisher
from dsv4_serve.engines.sglang.inside.regions import Region
from dsv4_serve.metrics.exposition import exposition, parse_engine_metrics
from dsv4_serve.metrics.names import BY_NAME, NAMES

HERE = Path(__file__).parent
SOURCES = [HERE, HERE.parent, HERE.parents[1] / "serve", HERE.parents[1] / "kernels"]
STEPS = {"0": 3, "1": 5}
"""Decode steps of each replica."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What SGLang's /metrics shows of two schedulers' processes, one of each replica."""
    directory = tmp_path_factory.mktemp("multiprocess")
    environment = os.environ | {
        "PROMETHEUS_MULTIPROC_DIR": str(directory),
        "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
        "OMP_NUM_THREADS": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(HERE / "inside_rank.py"), f"0.{replica}", "0", str(steps)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for replica, steps in STEPS.items()
    ]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    registry = CollectorRegistry()
    # prometheus_client reads the directory that it is given; the class needs no environment of its own.
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    return generate_latest(registry).decode()


def values(text: str, compiled_before: float | None = None) -> dict[str, float]:
    return {
        sample.name + "".join(f" {k}={v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in sglang_metrics.translate(text, compiled_before)
        for sample in family.samples
    }


def test_replicas_add_up(exported: str) -> None:
    found = values(exported)
    launches = "dsv4_indexer_launches_total backend=reference op=paged_logits phase=decode"
    assert found[launches] == 3 + 5
    assert found["dsv4_indexer_rows_total op=paged_logits phase=decode scope=whole"] == 2 * (3 + 5)
    assert found["dsv4_kv_capacity_tokens region=index_payload tier=gpu"] == 2 * 4096
    assert found["dsv4_kv_capacity_bytes region=index_scale tier=gpu"] == 2 * 68 * 64 * 4
    assert found["dsv4_indexer_workspace_bytes"] == 0
    assert found["dsv4_nonfinite_logits_total"] == 0


def test_what_describes_does_not_add_up(exported: str) -> None:
    found = values(exported)
    assert found["dsv4_kv_bytes_per_token region=index_payload"] == 68
    assert found["dsv4_index_format convention=aiter format=fp4 layout=split64"] == 1
    assert found["dsv4_indexer_path backend=reference op=paged_logits phase=decode"] == 1


def test_compilations_are_told_from_those_before_the_engine_was_ready(exported: str) -> None:
    name = "dsv4_compile_events_after_ready_total"
    assert name not in values(exported)
    compiled = inside_metrics.compile_events(parse(exported))
    assert compiled is not None
    # The interpreter compiles nothing; the rank's own eight are all there is.
    assert compiled == 8
    assert values(exported, compiled)[name] == 0
    assert values(exported, compiled - 2)[name] == 2


def test_the_launcher_accepts_the_translation_and_shows_it(exported: str) -> None:
    text = exposition(CollectorRegistry(), sglang_metrics.translate(exported, 0.0)).decode()
    names = {family.name for family in parse_engine_metrics(text, "sglang")}
    assert {"dsv4_indexer_rows", "dsv4_index_format", "dsv4_compile_events_after_ready"} <= names


def ranks(steps: dict[tuple[str, str, str], int]) -> str:
    """The exposition of schedulers (replica, stage, tensor rank) that made so many launches."""
    registry = CollectorRegistry()
    made = None
    for (replica, stage, tensor), count in steps.items():
        labels = {"replica": replica, "pp_rank": stage, "tp_rank": tensor}
        families = Families(labels, registry)
        if made is not None:
            families._made = made._made
        families.counter("dsv4_indexer_launches_total", count, op="paged_logits", phase="decode", backend="aiter")
        families.gauge("dsv4_kv_bytes_per_token", count, region="c4")
        families.observe("dsv4_indexer_recall", count / 10)
        made = families
    return generate_latest(registry).decode()


def test_tensor_ranks_are_one_and_stages_and_replicas_add_up() -> None:
    found = values(ranks({("0.0", "0", "0"): 7, ("0.0", "0", "1"): 6, ("0.0", "1", "0"): 2, ("1.0", "0", "0"): 4}))
    assert found["dsv4_indexer_launches_total backend=aiter op=paged_logits phase=decode"] == 7 + 2 + 4
    assert found["dsv4_kv_bytes_per_token region=c4"] == 7
    assert found["dsv4_indexer_recall_count"] == 3
    assert found["dsv4_indexer_recall_bucket le=0.4"] == 2


def test_every_family_from_inside_is_listed_for_sglang_and_no_other() -> None:
    listed = {entry.name for entry in NAMES if "sglang" in entry.providers}
    rules = {rule.target for rule in sglang_metrics.RULES}
    assert listed == rules | set(inside_metrics.PROVIDED)
    assert set(inside_metrics.PROVIDED) <= set(BY_NAME)


def test_a_path_that_took_over_leaves_the_other_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv4_kernels import counters

    registry = CollectorRegistry()
    labels = {"replica": "0.0", "pp_rank": "0", "tp_rank": "0"}
    made = Publisher(Families(labels, registry), [Region("c4", 64, 640, 1)], [])
    for op in ("paged_logits", "rowgroup_logits"):
        counters.count_launch(op, "verify", "portable")
        made.publish()
    found = values(generate_latest(registry).decode())
    assert found["dsv4_indexer_path backend=portable op=paged_logits phase=verify"] == 0
    assert found["dsv4_indexer_path backend=portable op=rowgroup_logits phase=verify"] == 1


def test_nothing_is_read_from_the_device_while_a_graph_is_captured() -> None:
    """By the hooks on torch's graph: a read that waits for the device would end another thread's capture."""
    begin, end = (hook.wrap(lambda graph, *rest: None) for hook in captures.HOOKS)
    families = Families({"replica": "0.0", "pp_rank": "0", "tp_rank": "0"}, CollectorRegistry())
    publishing = threading.Thread(target=Publisher(families, [], []).publish)
    begin(None)
    publishing.start()
    publishing.join(0.3)
    assert publishing.is_alive()
    end(None)
    publishing.join(60)
    assert not publishing.is_alive()

    def broken(graph: object) -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        captures.HOOKS[0].wrap(broken)(None)
    free: list[bool] = []
    asking = threading.Thread(target=lambda: free.append(captures.no_capture.acquire(blocking=False)))
    asking.start()
    asking.join()
    assert free == [True]


def test_a_total_that_falls_is_an_error() -> None:
    families = Families({"replica": "0.0", "pp_rank": "0", "tp_rank": "0"}, CollectorRegistry())
    families.counter("dsv4_nonfinite_logits_total", 3)
    with pytest.raises(ValueError, match=r"dsv4_nonfinite_logits_total.*: a total of 2 after one of 3"):
        families.counter("dsv4_nonfinite_logits_total", 2)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[health.NonFinite]:
    counted = health.NonFinite()
    monkeypatch.setattr(health, "non_finite", counted)
    hooks = Hooks(health.HOOKS)
    hooks.attach()
    yield counted
    hooks.detach()


def test_rows_with_a_nan_or_an_infinity_are_counted_before_they_are_replaced(watched: health.NonFinite) -> None:
    logits = torch.randn(6, 100)
    logits[1, 7] = float("nan")
    logits[2, 0] = float("inf")
    logits[3] = -float("inf")
    # What a grammar forbids.
    logits[4, 10:] = -float("inf")
    async_probe.sanitize_nan_logits(logits, "sampler: next_token_logits")
    assert watched.total() == 3
    async_probe.sanitize_nan_logits(torch.empty(0, 100), "sampler: next_token_logits")
    assert watched.total() == 3


def test_triton_tells_of_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    told: list[str] = []
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **event: told.append("before"))
    compiles = health.Compiles()
    compiles.watch_triton()
    knobs.runtime.jit_post_compile_hook(key="kernel")
    assert (compiles.total(), told) == (1, ["before"])
