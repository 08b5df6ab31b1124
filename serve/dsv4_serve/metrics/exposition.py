"""Reads an engine's metrics, holds them against the table of names, and writes one exposition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dsv4_serve.metrics.metric_name import MetricName
from dsv4_serve.metrics.names import BY_NAME

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# Client libraries add the time of birth of each counter under this suffix; nothing reads it.
CREATED = "_created"


class MetricsError(ValueError):
    """The engine exported what the table of names does not allow."""


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def parse_engine_metrics(text: str, provider: str) -> list[Metric]:
    """The families of `text`, each with the help of the table; MetricsError names what does not match it."""
    families = []
    for family in text_string_to_metric_families(text):
        if family.name.endswith(CREATED):
            continue
        entry = _entry(family, provider)
        families.append(family)
        family.documentation = entry.help
    return families


def exposition(own: CollectorRegistry, engine: Iterable[Metric]) -> bytes:
    """One text of the launcher's own families and the engine's."""
    merged = CollectorRegistry(auto_describe=False)
    merged.register(_Families(engine))
    return generate_latest(own) + generate_latest(merged)


def _entry(family: Metric, provider: str) -> MetricName:
    # The text format's parser drops the _total of a counter's family name.
    name = f"{family.name}_total" if family.type == "counter" else family.name
    entry = BY_NAME.get(name)
    if entry is None:
        raise MetricsError(f"engine {provider!r} exports {name}, which the table of metric names does not have")
    if provider not in entry.providers:
        raise MetricsError(f"{name}: the table does not list engine {provider!r} as a provider")
    if family.type != entry.type:
        raise MetricsError(f"{name}: engine {provider!r} exports a {family.type}, the table says {entry.type}")
    for sample in family.samples:
        labels = set(sample.labels) - {"le"}
        if labels != set(entry.labels):
            found, wanted = sorted(labels), sorted(entry.labels)
            raise MetricsError(f"{name}: engine {provider!r} exports the labels {found}, the table says {wanted}")
    return entry
