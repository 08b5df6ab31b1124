"""Alerts: each says what is wrong and what to do. Silent failures first: they cost more than crashes."""

from __future__ import annotations

from tools.observability.rules import Alert, Condition

_ENGINE_RESTARTS = "sum without (cause) (increase(dsv4_engine_restarts_total[30m]))"
_RECALL = "rate(dsv4_indexer_recall_sum[10m]) / rate(dsv4_indexer_recall_count[10m])"
_IN_ENGINE = "(dsv4_running_requests + dsv4_queued_requests)"

ALERTS: tuple[Alert, ...] = (
    Alert(
        "NonFiniteLogits",
        "page",
        (Condition("increase(dsv4_nonfinite_logits_total[15m])", ">", 0),),
        "0m",
        "{{ $labels.instance }}: logits held a NaN or an infinity",
        "Take the replica out of service and compare with another backend: DSV4_BACKEND=reference, then FP8.",
    ),
    Alert(
        "RequestedNotEffective",
        "warning",
        (Condition("dsv4_requested_not_effective", ">", 0),),
        "1m",
        "{{ $labels.instance }}: {{ $value }} settings that were asked for are not in effect",
        "/manifest names them. Start without --allow-fallback to have the start fail with the reason instead.",
    ),
    Alert(
        "IndexerFallbackActive",
        "warning",
        (Condition("sum by (job, instance, op, reason) (rate(dsv4_indexer_fallbacks_total[5m]))", ">", 0),),
        "2m",
        "{{ $labels.instance }}: {{ $labels.op }} runs on another backend: {{ $labels.reason }}",
        "The answer is right but slow. Look for the reason in /manifest; check the image's pins and the device.",
    ),
    Alert(
        "IndexerRecallDrift",
        "page",
        # docs/accuracy.md: sound FP4 finds 81 to 85 % of the exact top 8, scales read one place off 51 to 61 %.
        (Condition(_RECALL, "<", 0.7),),
        "10m",
        "{{ $labels.instance }}: the served top-k finds {{ $value | humanizePercentage }} of the exact one",
        "Answers over long prompts suffer silently. Set DSV4_INDEXER_DTYPE=fp8 and report the layout and backend.",
    ),
    Alert(
        "CompiledAfterReady",
        "warning",
        (Condition("increase(dsv4_compile_events_after_ready_total[10m])", ">", 0),),
        "0m",
        "{{ $labels.instance }}: kernels were compiled on live requests",
        "A shape was not compiled ahead of time. The log names the kernel; add its variant to the image.",
    ),
    Alert(
        "Stalled",
        "page",
        (
            Condition(_IN_ENGINE, ">", 0),
            Condition("rate(dsv4_generated_tokens_total[5m])", "==", 0),
        ),
        "5m",
        "{{ $labels.instance }}: {{ $value }} requests are in the engine and none got a token",
        "The engine hangs although it answers. Look at its last log lines, then restart the replica.",
    ),
    Alert(
        "ServerDown",
        "page",
        (Condition('up{job="dsv4"}', "==", 0),),
        "1m",
        "{{ $labels.instance }} cannot be scraped",
        "The launcher is gone or its admin port is not reachable. Its exit code and last log line say why.",
    ),
    Alert(
        "EngineWentDown",
        "page",
        (Condition("dsv4_engine_up", "==", 0), Condition("max_over_time(dsv4_engine_up[15m])", "==", 1)),
        "1m",
        "{{ $labels.instance }} served before and does not now",
        "/readyz gives the reason: dead, unhealthy, or draining on purpose.",
    ),
    Alert(
        "StartupSlow",
        "warning",
        (Condition("time() - dsv4_start_time_seconds", ">", 1800), Condition("dsv4_engine_up", "==", 0)),
        "1m",
        "{{ $labels.instance }} has not become ready half an hour after its start",
        "/startupz shows the phase it is in: weights on a slow disk, or kernels that are being compiled.",
    ),
    Alert(
        "EngineRestarts",
        "page",
        (Condition(f"round({_ENGINE_RESTARTS} + changes(dsv4_start_time_seconds[30m]))", ">=", 2),),
        "0m",
        "{{ $labels.instance }}: the engine or its launcher restarted {{ $value }} times within half an hour",
        "Restarts by cause say why; the log before each has the last line: memory, a lost device, a bad shard.",
    ),
    Alert(
        "KvCapacityNearFull",
        "warning",
        (Condition("instance:dsv4_kv_held:ratio", ">", 0.95),),
        "5m",
        "{{ $labels.instance }}: running requests hold {{ $value | humanizePercentage }} of the context",
        "New requests wait and running ones may be retracted. Add a replica or lower the number of requests at once.",
    ),
    Alert(
        "RequestsRetracted",
        "warning",
        (Condition("increase(dsv4_retracted_requests_total[15m])", ">", 20),),
        "0m",
        "{{ $labels.instance }}: running requests gave up their pages {{ $value }} times in 15 minutes",
        "They are computed again later: the pool is too small for this load.",
    ),
    Alert(
        "HitRateCollapse",
        "warning",
        (
            Condition("job:dsv4_hit:ratio_rate5m / job:dsv4_hit:ratio_rate6h", "<", 0.5),
            Condition("job:dsv4_hit:ratio_rate6h", ">", 0.1),
        ),
        "15m",
        "The hit rate is at {{ $value | humanizePercentage }} of what it was over six hours",
        "Prompts changed, replicas lost their affinity, or the pool evicts what comes back. See hits by prompt length.",
    ),
    Alert(
        "CachePagesRefused",
        "warning",
        (Condition("sum by (job, instance, tier, reason) (increase(dsv4_kv_refused_pages_total[15m]))", ">", 0),),
        "0m",
        "{{ $labels.instance }}: pages of the {{ $labels.tier }} tier were not used: {{ $labels.reason }}",
        "Answers are right, the pages are computed again. Foreign ones follow an upgrade; others mean a failing disk.",
    ),
    Alert(
        "CachePagesNotKept",
        "warning",
        (Condition("sum by (job, instance, tier, reason) (increase(dsv4_kv_unsaved_pages_total[15m]))", ">", 0),),
        "5m",
        "{{ $labels.instance }}: the {{ $labels.tier }} tier cannot keep pages: {{ $labels.reason }}",
        "Full: give it space or lower DSV4_HICACHE_DISK_BYTES. Busy: the disk is slower than the prompts that come.",
    ),
    Alert(
        "DeviceMemoryLow",
        "warning",
        (Condition("1 - dsv4_device_memory_used_bytes / dsv4_device_memory_total_bytes", "<", 0.02),),
        "5m",
        "{{ $labels.instance }}: {{ $labels.device }} has {{ $value | humanizePercentage }} of its memory left",
        "The driver sees memory that the engine's sizing did not. Lower the memory fraction before it fails.",
    ),
    Alert(
        "ErrorRate",
        "page",
        (Condition("job:dsv4_errors:ratio_rate5m", ">", 0.05),),
        "5m",
        "{{ $value | humanizePercentage }} of the requests fail",
        "502 is an engine that broke off, 503 one that is not ready or a full queue. See requests by status.",
    ),
    Alert(
        "FirstTokenSlow",
        "warning",
        (Condition("job:dsv4_time_to_first_token_seconds:p95_5m", ">", 30),),
        "10m",
        "One request in twenty waits {{ $value | humanizeDuration }} or longer for its first token",
        "Look at the queue, at the prompt tokens that are computed, and at the hit rate, in this order.",
    ),
    Alert(
        "EngineMetricsRefused",
        "warning",
        (Condition("increase(dsv4_engine_metrics_refused_total[15m])", ">", 0),),
        "0m",
        "{{ $labels.instance }}: the engine exports what the table of metric names does not allow",
        "Its series are missing meanwhile. The log names the family; the engine's version is not the pinned one.",
    ),
)
