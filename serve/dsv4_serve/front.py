"""What the routes of one server share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4_serve.engines.base import EngineAdapter
from dsv4_serve.engines.client import EngineClient
from dsv4_serve.exchange import Exchange
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.prompt_limit import PromptLimit
from dsv4_serve.ranks.company import Alone, Company
from dsv4_serve.settings import ServeSettings


@dataclass(slots=True)
class Front:
    """One server: its settings, its engine, where it stands, and the requests that are under way."""

    settings: ServeSettings
    adapter: EngineAdapter
    client: EngineClient
    lifecycle: Lifecycle
    metrics: LauncherMetrics
    warnings: Sequence[str] = ()
    exchanges: set[Exchange] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    company: Company = field(default_factory=Alone)
    prompt_limit: PromptLimit | None = None

    def attach(self, adapter: EngineAdapter, client: EngineClient) -> None:
        """From now on this engine is the one that serves; what still waits for the one before is broken off."""
        self.client.close()
        self.adapter, self.client = adapter, client

    @property
    def inflight(self) -> int:
        return len(self.exchanges)

    @property
    def model(self) -> str:
        return self.settings.profile.model.name
