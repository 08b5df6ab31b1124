"""Is it up, is it right, how much fits, what hits: one screen."""

from __future__ import annotations

from tools.observability.board import Board, Panel, Query
from tools.observability.expressions import fullest, metric, quantile, rate, ratio, total

CACHED, PROMPT = "dsv4_cached_tokens_total", "dsv4_prompt_tokens_total"
MAIN = ('region="main"', 'tier="gpu"')
HELD = f"({metric('dsv4_kv_used_tokens', *MAIN)} - {metric('dsv4_kv_evictable_tokens', *MAIN)})"

_STATE = (
    Panel(
        "Replicas that serve",
        "Replicas that have generated once, are alive and do not drain.",
        "none",
        (Query(total("dsv4_engine_up"), "serving"),),
        "figure",
        4,
    ),
    Panel(
        "Asked for and not in effect",
        "Settings that the engine does not run although they were asked for. Anything but 0 needs a look at /manifest.",
        "none",
        (Query(fullest("dsv4_requested_not_effective"), "settings"),),
        "figure",
        4,
    ),
    Panel(
        "Non-finite answers",
        "Requests that ended because of a NaN or an infinity, since each engine started.",
        "none",
        (Query(total("dsv4_nonfinite_logits_total"), "requests"),),
        "figure",
        4,
    ),
    Panel(
        "Context that fits",
        "Tokens of context that all replicas hold together.",
        "short",
        (Query(total("dsv4_kv_capacity_tokens", (), *MAIN), "tokens"),),
        "figure",
        4,
    ),
    Panel(
        "Held by running requests",
        "Share of the fullest replica's context that cannot be evicted. Near 1 new requests wait.",
        "percentunit",
        (Query(f"max ({HELD} / {metric('dsv4_kv_capacity_tokens', *MAIN)})", "held"),),
        "figure",
        4,
    ),
    Panel(
        "Hit rate",
        "Share of prompt tokens that came from a prefix cache, weighted by tokens.",
        "percentunit",
        (Query(ratio(rate(CACHED), rate(PROMPT)), "hit rate"),),
        "figure",
        4,
    ),
)

_LOAD = (
    Panel(
        "Tokens",
        "Tokens a second, all replicas: computed prompt tokens are the difference of the first two.",
        "short",
        (
            Query(rate(PROMPT), "prompt"),
            Query(rate(CACHED), "from a cache"),
            Query(rate("dsv4_generated_tokens_total"), "generated"),
        ),
    ),
    Panel(
        "Requests by status",
        "499 is a client that left, 502 an engine that broke off.",
        "reqps",
        (Query(rate("dsv4_requests_total", ("status",)), "{{status}}"),),
    ),
    Panel(
        "Requests in the engine",
        "A queue that grows while tokens are generated is too much load; one without tokens is a stall.",
        "none",
        (
            Query(total("dsv4_running_requests"), "running"),
            Query(total("dsv4_queued_requests"), "waiting"),
        ),
    ),
    Panel(
        "Latency, 95th percentile",
        "Measured in the engine.",
        "s",
        (
            Query(quantile(0.95, "dsv4_time_to_first_token_seconds"), "first token"),
            Query(quantile(0.95, "dsv4_inter_token_latency_seconds"), "between tokens"),
        ),
    ),
)

OVERVIEW = Board(
    "dsv4-overview",
    "DSV4 overview",
    "Is it up, is it right, how much fits, what hits.",
    (("Now", _STATE), ("Load", _LOAD)),
)
