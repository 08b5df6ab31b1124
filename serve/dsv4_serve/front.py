"""What the routes of one server share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4_serve.engines.base import EngineAdapter
from dsv4_serve.engines.client import EngineClient
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.settings import ServeSettings


@dataclass(slots=True)
class Front:
    """One server: its settings, its engine, where it stands, and how many requests are under way."""

    settings: ServeSettings
    adapter: EngineAdapter
    client: EngineClient
    lifecycle: Lifecycle
    metrics: LauncherMetrics
    warnings: Sequence[str] = ()
    inflight: int = 0
    told: set[str] = field(default_factory=set)

    @property
    def model(self) -> str:
        return self.settings.profile.model.name
