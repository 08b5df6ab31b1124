"""Brings what the workers counted to vLLM's /metrics: a file a worker, once a second, which the API server reads.

vLLM 0.33.0 has no way for a worker to export a metric: its own come from the API server, and its plugins of statistics
see the scheduler's numbers alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.inside_families import Families
from dsv4_serve.engines.inside_publisher import IndexPublisher, format_labels, publish_every_second

DIRECTORY = "DSV4_EXPORT_DIR"
"""Set by the first process of the engine that loads the plugin, inherited by those that it starts."""
SUFFIX = ".prom"

log = logging.getLogger(__name__)


def prepare() -> None:
    """Name the directory of this engine, once; it goes with the process that made it."""
    if os.environ.get(DIRECTORY):
        return
    made = tempfile.mkdtemp(prefix="dsv4-export-")
    os.environ[DIRECTORY] = made
    atexit.register(_remove, made, os.getpid())


def _remove(directory: str, owner: int) -> None:
    """A process that was forked has the handler too, and must leave the directory."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
        os.environ.pop(DIRECTORY, None)


class Exporter:
    """What one worker exports, under its ranks."""

    def __init__(self, ranks: dict[str, str], directory: Path, formats: Iterable[dict[str, str]]) -> None:
        from prometheus_client import CollectorRegistry

        self.file = directory / f"{'-'.join(ranks.values())}{SUFFIX}"
        self._registry = CollectorRegistry()
        families = Families(ranks, self._registry)
        self._index = IndexPublisher(families)
        for labels in formats:
            families.gauge("dsv4_index_format", 1, **labels)

    def publish(self) -> None:
        """Bring the file up to date; readers see the old one or the new one, whole."""
        from prometheus_client import generate_latest

        self._index.publish()
        written = self.file.with_suffix(".new")
        written.write_bytes(generate_latest(self._registry))
        written.replace(self.file)


class Collector:
    """The workers' files as families, for the registry of the API server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def describe(self) -> list[Any]:
        """Nothing is known before workers tell; without this a registry would collect to learn names."""
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client import Metric
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, Any] = {}
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            for family in text_string_to_metric_families(path.read_text()):
                merged = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged.samples.extend(family.samples)
        yield from found.values()


def exporter_of(worker: Any) -> Exporter | None:
    """The exporter of a worker whose model is loaded; None for one without an index."""
    from dsv4_serve.engines.vllm import index_format

    described = index_format.describe(worker.vllm_config)
    if not described:
        return None
    formats = format_labels(described)
    return Exporter(ranks(worker.parallel_config, worker.rank), Path(os.environ[DIRECTORY]), formats)


def ranks(parallel: Any, rank: int) -> dict[str, str]:
    """A worker's place: its replica, pipeline stage and tensor rank."""
    return {
        "replica": str(parallel.data_parallel_rank),
        "pp_rank": str(rank // parallel.tensor_parallel_size % parallel.pipeline_parallel_size),
        "tp_rank": str(rank % parallel.tensor_parallel_size),
    }


def _exporting(load_model: Function) -> Function:
    """`Worker.load_model`: what serves the index is decided when it returns."""

    def loaded(worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = load_model(worker, *args, **kwargs)
        exporter = exporter_of(worker)
        if exporter is not None:
            publish_every_second(exporter.publish, log)
        return result

    return loaded


def _collecting(registry_of: Function) -> Function:
    """`get_prometheus_registry()`, from which the API server answers /metrics."""
    known: WeakSet[Any] = WeakSet()

    def with_workers() -> Any:
        registry = registry_of()
        if registry not in known and os.environ.get(DIRECTORY):
            known.add(registry)
            registry.register(Collector(Path(os.environ[DIRECTORY])))
        return registry

    return with_workers


HOOKS: tuple[Hook, ...] = (
    Hook("vllm.v1.worker.gpu_worker", "Worker.load_model", _exporting, "exports the index path"),
    Hook("vllm.v1.metrics.prometheus", "get_prometheus_registry", _collecting, "shows it beside the engine's own"),
)
