"""Recording rules: what alerts and people ask for again and again, summed over replicas the right way once."""

from __future__ import annotations

from tools.observability.rules import Recording

PROMPT, CACHED = "dsv4_prompt_tokens_total", "dsv4_cached_tokens_total"
MAIN = '{region="main",tier="gpu"}'


def _hit_rate(window: str) -> str:
    """Token-weighted; absent while no prompt came, rather than 0 or NaN."""
    return f"sum by (job) (rate({CACHED}[{window}])) / (sum by (job) (rate({PROMPT}[{window}])) > 0)"


def _p95(name: str) -> str:
    return f"histogram_quantile(0.95, sum by (job, le) (rate({name}_bucket[5m])))"


_ALL_REQUESTS = "sum by (job) (rate(dsv4_requests_total[5m]))"
_FAILED = 'sum by (job) (rate(dsv4_requests_total{status=~"5.."}[5m]))'

RECORDINGS: tuple[Recording, ...] = (
    Recording("job:dsv4_kv_capacity_tokens:sum", "sum by (job, region, tier) (dsv4_kv_capacity_tokens)"),
    Recording("job:dsv4_kv_used_tokens:sum", "sum by (job, region, tier) (dsv4_kv_used_tokens)"),
    Recording(
        "instance:dsv4_kv_held:ratio",
        f"(dsv4_kv_used_tokens{MAIN} - dsv4_kv_evictable_tokens{MAIN}) / dsv4_kv_capacity_tokens{MAIN}",
    ),
    # A replica that is full is full, however empty the others are.
    Recording("job:dsv4_kv_held:ratio_max", "max by (job) (instance:dsv4_kv_held:ratio)"),
    Recording("job:dsv4_hit:ratio_rate5m", _hit_rate("5m")),
    Recording("job:dsv4_hit:ratio_rate6h", _hit_rate("6h")),
    Recording(
        "job_tier:dsv4_hit:ratio_rate5m",
        f"sum by (job, tier) (rate({CACHED}[5m])) / on (job) group_left () (sum by (job) (rate({PROMPT}[5m])) > 0)",
    ),
    Recording(
        "job_length:dsv4_hit:ratio_rate5m",
        "sum by (job, length) (rate(dsv4_cached_tokens_by_length_total[5m])) / "
        "(sum by (job, length) (rate(dsv4_prompt_tokens_by_length_total[5m])) > 0)",
    ),
    Recording("job:dsv4_prompt_tokens:rate5m", f"sum by (job) (rate({PROMPT}[5m]))"),
    Recording("job:dsv4_generated_tokens:rate5m", "sum by (job) (rate(dsv4_generated_tokens_total[5m]))"),
    Recording("job:dsv4_requests:rate5m", _ALL_REQUESTS),
    # No failure yet means no series of one: that is a ratio of 0, not an unknown one.
    Recording("job:dsv4_errors:ratio_rate5m", f"({_FAILED} or 0 * {_ALL_REQUESTS}) / ({_ALL_REQUESTS} > 0)"),
    Recording("job:dsv4_time_to_first_token_seconds:p95_5m", _p95("dsv4_time_to_first_token_seconds")),
    Recording("job:dsv4_inter_token_latency_seconds:p95_5m", _p95("dsv4_inter_token_latency_seconds")),
)
