"""One scenario an alert: series by minute, when it is quiet, when it fires, what it then says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

A = 'job="dsv4",instance="a:8001"'
MAIN = f'region="main",tier="gpu",{A}'
INSTANCE = {"job": "dsv4", "instance": "a:8001"}
JOB = {"job": "dsv4"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`series` in promtool's notation (`0+10x5`: six values from 0 by 10), one value a minute."""

    alert: str
    series: Mapping[str, str]
    quiet_at: int
    fires_at: int
    says: str
    labels: Mapping[str, str] = field(default_factory=lambda: INSTANCE)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "NonFiniteLogits",
        {f"dsv4_nonfinite_logits_total{{{A}}}": "0x9 1x20"},
        9,
        11,
        "a:8001: logits held a NaN or an infinity",
    ),
    Scenario(
        "RequestedNotEffective",
        {f"dsv4_requested_not_effective{{{A}}}": "0x9 2x20"},
        9,
        12,
        "a:8001: 2 settings that were asked for are not in effect",
    ),
    Scenario(
        "IndexerFallbackActive",
        {f'dsv4_indexer_fallbacks_total{{op="topk",reason="known answer differs",{A}}}': "5x9 5+60x20"},
        9,
        14,
        "a:8001: topk runs on another backend: known answer differs",
        INSTANCE | {"op": "topk", "reason": "known answer differs"},
    ),
    Scenario(
        "IndexerRecallDrift",
        {
            f"dsv4_indexer_recall_count{{{A}}}": "0+10x40",
            f"dsv4_indexer_recall_sum{{{A}}}": "0+8.3x9 83+6x30",
        },
        20,
        30,
        "a:8001: the served top-k finds 60% of the exact one",
    ),
    Scenario(
        "CompiledAfterReady",
        {f"dsv4_compile_events_after_ready_total{{{A}}}": "0x9 3x20"},
        9,
        11,
        "a:8001: kernels were compiled on live requests",
    ),
    Scenario(
        "Stalled",
        {
            f"dsv4_running_requests{{{A}}}": "4x40",
            f"dsv4_queued_requests{{{A}}}": "3x40",
            f"dsv4_generated_tokens_total{{{A}}}": "0+100x10 1000x30",
        },
        12,
        22,
        "a:8001: 7 requests are in the engine and none got a token",
    ),
    Scenario("ServerDown", {f"up{{{A}}}": "1x5 0x10"}, 5, 8, "a:8001 cannot be scraped"),
    Scenario(
        "EngineWentDown", {f"dsv4_engine_up{{{A}}}": "0x5 1x5 0x10"}, 5, 14, "a:8001 served before and does not now"
    ),
    Scenario(
        "StartupSlow",
        {f"dsv4_engine_up{{{A}}}": "0x60", f"dsv4_start_time_seconds{{{A}}}": "60x60"},
        30,
        34,
        "a:8001 has not become ready half an hour after its start",
    ),
    Scenario(
        "EngineRestarts",
        {
            f"dsv4_start_time_seconds{{{A}}}": "100x5 400x30",
            f'dsv4_engine_restarts_total{{cause="hang",{A}}}': "0x40",
            f'dsv4_engine_restarts_total{{cause="crash",{A}}}': "0x10 1x20",
        },
        8,
        14,
        "a:8001: the engine or its launcher restarted 2 times within half an hour",
    ),
    Scenario(
        "KvCapacityNearFull",
        {
            f"dsv4_kv_capacity_tokens{{{MAIN}}}": "1000x40",
            # Full at all times: only what running requests hold counts.
            f"dsv4_kv_used_tokens{{{MAIN}}}": "1000x40",
            f"dsv4_kv_evictable_tokens{{{MAIN}}}": "500x10 10x30",
        },
        10,
        18,
        "a:8001: running requests hold 99% of the context",
        INSTANCE | {"region": "main", "tier": "gpu"},
    ),
    Scenario(
        "RequestsRetracted",
        {f"dsv4_retracted_requests_total{{{A}}}": "0x10 0+5x20"},
        10,
        25,
        "a:8001: running requests gave up their pages 70 times in 15 minutes",
    ),
    Scenario(
        "HitRateCollapse",
        {
            f"dsv4_prompt_tokens_total{{{A}}}": "0+1000x400",
            f'dsv4_cached_tokens_total{{tier="gpu",{A}}}': "0+800x340 272000x60",
        },
        340,
        365,
        "The hit rate is at 0% of what it was over six hours",
        JOB,
    ),
    Scenario(
        "CachePagesRefused",
        {f'dsv4_kv_refused_pages_total{{tier="disk",reason="truncated",{A}}}': "0x9 2x20"},
        9,
        11,
        "a:8001: pages of the disk tier were not used: truncated",
        INSTANCE | {"tier": "disk", "reason": "truncated"},
    ),
    Scenario(
        "CachePagesNotKept",
        {f'dsv4_kv_unsaved_pages_total{{tier="disk",reason="full",{A}}}': "0x9 0+5x20"},
        14,
        18,
        "a:8001: the disk tier cannot keep pages: full",
        INSTANCE | {"tier": "disk", "reason": "full"},
    ),
    Scenario(
        "DeviceMemoryLow",
        {
            f'dsv4_device_memory_total_bytes{{device="0000:05:00.0",{A}}}': "1000x30",
            f'dsv4_device_memory_used_bytes{{device="0000:05:00.0",{A}}}': "900x10 990x20",
        },
        10,
        18,
        "a:8001: 0000:05:00.0 has 1% of its memory left",
        INSTANCE | {"device": "0000:05:00.0"},
    ),
    Scenario(
        "ErrorRate",
        {
            f'dsv4_requests_total{{status="200",{A}}}': "0+90x40",
            f'dsv4_requests_total{{status="502",{A}}}': "0x10 0+10x30",
        },
        10,
        25,
        "10% of the requests fail",
        JOB,
    ),
    Scenario(
        "FirstTokenSlow",
        {
            f'dsv4_time_to_first_token_seconds_bucket{{le="10",{A}}}': "0+10x10 100x40",
            f'dsv4_time_to_first_token_seconds_bucket{{le="60",{A}}}': "0+10x50",
            f'dsv4_time_to_first_token_seconds_bucket{{le="+Inf",{A}}}': "0+10x50",
        },
        10,
        30,
        "One request in twenty waits 57.5s or longer for its first token",
        JOB,
    ),
    Scenario(
        "EngineMetricsRefused",
        {f"dsv4_engine_metrics_refused_total{{{A}}}": "0x9 1x20"},
        9,
        11,
        "a:8001: the engine exports what the table of metric names does not allow",
    ),
)
