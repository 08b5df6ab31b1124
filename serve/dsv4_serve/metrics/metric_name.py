"""One family of metrics: what it is, and who exports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Type = Literal["counter", "gauge", "histogram"]
Provider = Literal["launcher", "embedded", "sglang", "vllm"]


@dataclass(frozen=True, slots=True)
class MetricName:
    """One family. `providers` export it; from every other engine it is absent, never zero."""

    name: str
    type: Type
    labels: tuple[str, ...]
    unit: str
    help: str
    providers: tuple[Provider, ...]


def of_launcher(name: str, type_: Type, labels: tuple[str, ...], unit: str, text: str) -> MetricName:
    return MetricName(name, type_, labels, unit, text, ("launcher",))


def of_engine(name: str, type_: Type, labels: tuple[str, ...], unit: str, text: str, *others: Provider) -> MetricName:
    return MetricName(name, type_, labels, unit, text, ("embedded", *others))


def of_sglang(name: str, type_: Type, labels: tuple[str, ...], unit: str, text: str) -> MetricName:
    return MetricName(name, type_, labels, unit, text, ("sglang",))
