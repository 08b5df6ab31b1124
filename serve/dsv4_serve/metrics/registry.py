"""The launcher's own metrics, built from the table of names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from dsv4_serve.failure import CAUSES
from dsv4_serve.metrics.device_memory import DeviceMemoryCollector
from dsv4_serve.metrics.names import BY_NAME
from dsv4_serve.planner.expected import Expected

# From one proxied loopback round trip to a long prompt on a CPU.
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class LauncherMetrics:
    """Families with the launcher as provider; each appears once something is known about it."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests: Counter = self._make(Counter, "dsv4_requests_total")
        self.startup_phase: Gauge = self._make(Gauge, "dsv4_startup_phase_seconds")
        self.start_time: Gauge = self._make(Gauge, "dsv4_start_time_seconds")
        # Wall time: two starts of one server must differ, whatever the monotonic clock of each says.
        self.start_time.set(time.time())
        self._not_effective: Gauge | None = None
        self.expected: tuple[Expected, ...] = ()
        self.registry.register(DeviceMemoryCollector())
        self.inflight: Gauge = self._make(Gauge, "dsv4_front_inflight_requests")
        self.tasks: Gauge = self._make(Gauge, "dsv4_front_tasks")
        self.first_byte: Histogram = self._make(Histogram, "dsv4_front_first_byte_seconds", buckets=SECONDS_BUCKETS)
        self.refused: Counter = self._make(Counter, "dsv4_engine_metrics_refused_total")
        self.restarts: Counter = self._make(Counter, "dsv4_engine_restarts_total")
        # A series that begins with its first increment hides it from every rate.
        for cause in CAUSES:
            self.restarts.labels(cause=cause)
        self.rank_up: Gauge = self._make(Gauge, "dsv4_rank_up")
        self.engine_up: Gauge = self._make(Gauge, "dsv4_engine_up")

    def expect(self, expected: Sequence[Expected]) -> None:
        """Show what the planner expects of the engine's pools; `expected` stays to be read."""
        self.expected = tuple(expected)
        tokens: Gauge = self._make(Gauge, "dsv4_kv_expected_tokens")
        size: Gauge = self._make(Gauge, "dsv4_kv_expected_bytes")
        for each in self.expected:
            tokens.labels("main", each.tier).set(each.tokens)
            for region, number in each.regions.items():
                size.labels(region, each.tier).set(number)

    def not_effective(self, settings: int) -> None:
        """The engine was asked what it runs: this many requested settings are not in effect."""
        if self._not_effective is None:
            # Made on first use: a gauge without labels would show a 0 that nobody has checked.
            self._not_effective = self._make(Gauge, "dsv4_requested_not_effective")
        self._not_effective.set(settings)

    def _make(self, kind: type[Any], name: str, **options: Any) -> Any:
        entry = BY_NAME[name]
        return kind(name, entry.help, entry.labels, registry=self.registry, **options)
