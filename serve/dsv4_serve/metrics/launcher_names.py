"""The families that the launcher itself exports."""

from __future__ import annotations

from dsv4_serve.metrics.metric_name import MetricName
from dsv4_serve.metrics.metric_name import of_launcher as _launcher

LAUNCHER_NAMES: tuple[MetricName, ...] = (
    _launcher(
        "dsv4_requests_total",
        "counter",
        ("status",),
        "requests",
        "requests to /v1/* by the status they ended with",
    ),
    _launcher(
        "dsv4_kv_expected_tokens",
        "gauge",
        ("region", "tier"),
        "tokens",
        "tokens of context that the planner expects a tier to hold",
    ),
    _launcher(
        "dsv4_kv_expected_bytes",
        "gauge",
        ("region", "tier"),
        "bytes",
        "bytes that the planner expects a region to occupy, where it sizes it",
    ),
    _launcher("dsv4_startup_phase_seconds", "gauge", ("phase",), "seconds", "duration of a phase of start-up"),
    _launcher("dsv4_start_time_seconds", "gauge", (), "seconds", "when the launcher started, in seconds since 1970"),
    _launcher(
        "dsv4_requested_not_effective",
        "gauge",
        (),
        "settings",
        "settings that were asked for and are not in effect, tolerated ones included",
    ),
    _launcher("dsv4_device_memory_total_bytes", "gauge", ("device",), "bytes", "device memory that the driver manages"),
    _launcher(
        "dsv4_device_memory_used_bytes", "gauge", ("device",), "bytes", "device memory in use, as the driver sees it"
    ),
    _launcher("dsv4_front_inflight_requests", "gauge", (), "requests", "requests between the front and the engine"),
    _launcher("dsv4_front_tasks", "gauge", (), "tasks", "asyncio tasks of the launcher; grows only if some are leaked"),
    _launcher(
        "dsv4_front_first_byte_seconds",
        "histogram",
        (),
        "seconds",
        "from a request's arrival to its answer's first byte",
    ),
    _launcher(
        "dsv4_engine_metrics_refused_total",
        "counter",
        (),
        "scrapes",
        "scrapes of the engine that this table did not allow",
    ),
    _launcher(
        "dsv4_engine_restarts_total",
        "counter",
        ("cause",),
        "restarts",
        "starts of another engine, by what ended the one before",
    ),
    _launcher(
        "dsv4_rank_up", "gauge", ("rank",), "0 or 1", "1 while that rank of several machines says that it is ready"
    ),
    _launcher(
        "dsv4_engine_up",
        "gauge",
        (),
        "0 or 1",
        "1 while the engine serves: generated once, alive, not draining",
    ),
)
