"""Why is it slow: time to the first token, between tokens, in front of the engine."""

from __future__ import annotations

from tools.observability.board import Board, Panel, Query
from tools.observability.expressions import fullest, mean, quantile, rate, ratio, total

FIRST, NEXT, FRONT = (
    "dsv4_time_to_first_token_seconds",
    "dsv4_inter_token_latency_seconds",
    "dsv4_front_first_byte_seconds",
)
SHARES = ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))


def _quantiles(name: str) -> tuple[Query, ...]:
    return (*(Query(quantile(share, name), legend) for share, legend in SHARES), Query(mean(name), "mean"))


_ENGINE = (
    Panel(
        "Time to first token",
        "From arrival in the engine: waiting and the prompt's computation.",
        "s",
        _quantiles(FIRST),
    ),
    Panel(
        "Between two tokens",
        "Of one request. Long prompts of others show here when chunks are large.",
        "s",
        _quantiles(NEXT),
    ),
)

_DRAFTS = (
    Panel(
        "Tokens of a verified step",
        "Of one request, its own token included. 1 means that nothing drafted was right. Absent without drafts.",
        "none",
        (Query(mean("dsv4_acceptance_length"), "mean"),),
    ),
    Panel(
        "Drafted tokens that were right",
        "Share of all that were verified.",
        "percentunit",
        (Query(ratio(rate("dsv4_accepted_tokens_total"), f"({rate('dsv4_drafted_tokens_total')} > 0)"), "right"),),
    ),
)

_FRONT = (
    Panel(
        "First byte at the front",
        "From a request's arrival to its answer's first byte. Without streaming that is the whole answer.",
        "s",
        _quantiles(FRONT),
    ),
    Panel(
        "Under way",
        "Requests between the front and the engine, and those that the engine runs or lets wait.",
        "none",
        (
            Query(total("dsv4_front_inflight_requests"), "front"),
            Query(total("dsv4_running_requests"), "running"),
            Query(total("dsv4_queued_requests"), "waiting"),
        ),
    ),
    Panel(
        "Tasks of the launcher",
        "A few, and one or two for each request under way. A line that only climbs is a leak.",
        "none",
        (Query(fullest("dsv4_front_tasks", ("instance",)), "{{instance}}"),),
    ),
)

_CAUSES = (
    Panel(
        "Prompt tokens computed",
        "A second: prompt tokens less those from a cache. Each delays the first token of its request.",
        "short",
        (Query(f"{rate('dsv4_prompt_tokens_total')} - {rate('dsv4_cached_tokens_total')}", "computed"),),
    ),
    Panel(
        "Generated tokens a request",
        "Mean length of an answer: longer answers hold their place in the batch longer.",
        "none",
        (Query(ratio(rate("dsv4_generated_tokens_total"), rate("dsv4_requests_total")), "tokens"),),
    ),
)

LATENCY = Board(
    "dsv4-latency",
    "DSV4 latency",
    "Why is it slow: time to the first token, between tokens, and in front of the engine.",
    (("Engine", _ENGINE), ("Drafts", _DRAFTS), ("Front", _FRONT), ("Causes", _CAUSES)),
)
