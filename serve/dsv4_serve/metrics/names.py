"""The one table of metric names: what each means, its labels, its unit, and who provides it."""

from __future__ import annotations

from dsv4_serve.metrics.launcher_names import LAUNCHER_NAMES
from dsv4_serve.metrics.metric_name import MetricName
from dsv4_serve.metrics.metric_name import of_engine as _engine
from dsv4_serve.metrics.metric_name import of_sglang as _sglang

REGIONS = ("main", "c1", "c2", "c4", "c128", "index_payload", "index_scale", "state", "window")
TIERS = ("gpu", "host", "disk")

PROMPT_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Prompts are told apart by the first of these bounds that is not below their length in tokens."""
BEYOND = "more"


def length_label(prompt_tokens: int) -> str:
    """The value of `length` for a prompt: its bound of PROMPT_LENGTHS, or BEYOND. Buckets do not overlap."""
    return next((str(bound) for bound in PROMPT_LENGTHS if prompt_tokens <= bound), BEYOND)


NAMES: tuple[MetricName, ...] = (
    _engine(
        "dsv4_kv_capacity_tokens",
        "gauge",
        ("region", "tier"),
        "tokens",
        "main: tokens of context that fit; other regions: entries of their own",
        "sglang",
        "vllm",
    ),
    _engine("dsv4_kv_capacity_bytes", "gauge", ("region", "tier"), "bytes", "bytes that the pool occupies", "sglang"),
    _engine(
        "dsv4_kv_used_tokens",
        "gauge",
        ("region", "tier"),
        "tokens",
        "main: tokens of context in the pool, cached ones included; other regions: entries of their own",
        "sglang",
        "vllm",
    ),
    _engine(
        "dsv4_kv_evictable_tokens",
        "gauge",
        ("region", "tier"),
        "tokens",
        "cached tokens in the pool that no running request holds",
        "sglang",
        "vllm",
    ),
    _engine(
        "dsv4_kv_bytes_per_token",
        "gauge",
        ("region",),
        "bytes",
        "bytes of one entry of the region in one layer; of main: of one token of context in all layers",
        "sglang",
    ),
    _sglang(
        "dsv4_index_format",
        "gauge",
        ("layout", "format", "convention"),
        "1",
        "how index keys are stored: layout of pages, number format, quantisation convention",
    ),
    _engine(
        "dsv4_prompt_tokens_total", "counter", (), "tokens", "prompt tokens of admitted requests", "sglang", "vllm"
    ),
    _engine(
        "dsv4_cached_tokens_total",
        "counter",
        ("tier",),
        "tokens",
        "prompt tokens that came from a prefix cache",
        "sglang",
        "vllm",
    ),
    _engine(
        "dsv4_prompt_tokens_by_length_total",
        "counter",
        ("length",),
        "tokens",
        "prompt tokens of admitted requests by the length of their prompt",
    ),
    _engine(
        "dsv4_cached_tokens_by_length_total",
        "counter",
        ("length", "tier"),
        "tokens",
        "prompt tokens that came from a prefix cache by the length of their prompt",
    ),
    _engine("dsv4_kv_stored_pages_total", "counter", ("tier",), "pages", "pages that a tier below the device took in"),
    _engine("dsv4_kv_evicted_pages_total", "counter", ("tier",), "pages", "pages that such a tier gave up for others"),
    _engine(
        "dsv4_kv_refused_pages_total",
        "counter",
        ("tier", "reason"),
        "pages",
        "pages not used: missing, unreadable, truncated, corrupt, foreign, or named by a damaged line of the index",
    ),
    _engine(
        "dsv4_kv_unsaved_pages_total",
        "counter",
        ("tier", "reason"),
        "pages",
        "pages that a tier could not take in: disk full, unwritable, or busy with others",
    ),
    _engine("dsv4_generated_tokens_total", "counter", (), "tokens", "generated tokens", "sglang", "vllm"),
    _engine("dsv4_drafted_tokens_total", "counter", ("source",), "tokens", "tokens that were drafted and verified"),
    _engine("dsv4_accepted_tokens_total", "counter", ("source",), "tokens", "drafted tokens that were right"),
    _engine(
        "dsv4_acceptance_length",
        "histogram",
        ("source",),
        "tokens a step",
        "tokens of a step that verified a draft, its own included",
    ),
    _engine("dsv4_running_requests", "gauge", (), "requests", "requests in the engine's batch", "sglang", "vllm"),
    _engine("dsv4_queued_requests", "gauge", (), "requests", "requests that wait in the engine", "sglang", "vllm"),
    _engine(
        "dsv4_retracted_requests_total",
        "counter",
        (),
        "requests",
        "running requests that gave up their pages and waited",
        "sglang",
        "vllm",
    ),
    _engine(
        "dsv4_nonfinite_logits_total",
        "counter",
        (),
        "rows",
        "rows of logits that held a NaN or an infinity; the embedded engine ends their request",
        "sglang",
    ),
    _engine(
        "dsv4_time_to_first_token_seconds",
        "histogram",
        (),
        "seconds",
        "from arrival in the engine to first token",
        "sglang",
        "vllm",
    ),
    _engine(
        "dsv4_inter_token_latency_seconds",
        "histogram",
        (),
        "seconds",
        "between two tokens of one request",
        "sglang",
        "vllm",
    ),
    _engine(
        "dsv4_indexer_launches_total",
        "counter",
        ("op", "phase", "backend"),
        "launches",
        "launches of an indexer operation by the backend that ran it",
        "sglang",
    ),
    _engine(
        "dsv4_indexer_fallbacks_total",
        "counter",
        ("op", "reason"),
        "launches",
        "launches that a backend other than the requested one served",
        "sglang",
    ),
    _sglang(
        "dsv4_indexer_rows_total",
        "counter",
        ("op", "phase", "scope"),
        "rows",
        "rows that were scored, over whole contexts or over V4.1's candidate blocks only",
    ),
    _sglang(
        "dsv4_indexer_path",
        "gauge",
        ("phase", "op", "backend"),
        "0 or 1",
        "1 for the operation and backend that scored keys last in a phase, 0 for those before it",
    ),
    _sglang(
        "dsv4_indexer_seconds_total",
        "counter",
        ("phase",),
        "seconds",
        "device time of the scoring launches that were timed",
    ),
    _sglang("dsv4_indexer_timed_launches_total", "counter", ("phase",), "launches", "scoring launches that were timed"),
    _sglang(
        "dsv4_indexer_recall",
        "histogram",
        (),
        "ratio",
        "share of the keys of an exact top-k that the FP4 top-k found, at the ends of sampled prompts' chunks",
    ),
    _sglang(
        "dsv4_indexer_recall_requests_total",
        "counter",
        ("outcome",),
        "requests",
        "prompts by what became of their shadow recall: sampled, prefix_hit, no_room, left, unseen, failed",
    ),
    _sglang("dsv4_indexer_recall_buffer_bytes", "gauge", (), "bytes", "side buffer of exact keys for shadow recall"),
    _sglang("dsv4_indexer_workspace_bytes", "gauge", (), "bytes", "pooled blocks for the logits of prefill"),
    _sglang("dsv4_compile_events_after_ready_total", "counter", (), "events", "kernels compiled on live requests"),
    *LAUNCHER_NAMES,
)

BY_NAME: dict[str, MetricName] = {entry.name: entry for entry in NAMES}

# Requests end with the HTTP status they were given, or with one of these when the stream broke off later.
CLIENT_LEFT = 499
ENGINE_BROKE_OFF = 502
