"""How much context fits, what a token costs, what is used, and what hits."""

from __future__ import annotations

from tools.observability.board import Board, Panel, Query
from tools.observability.boards.overview import CACHED, MAIN, PROMPT
from tools.observability.expressions import metric, rate, ratio, total

PLACE = ("region", "tier")
USED, CAPACITY, EXPECTED = "dsv4_kv_used_tokens", "dsv4_kv_capacity_tokens", "dsv4_kv_expected_tokens"
BY_LENGTH = ("dsv4_cached_tokens_by_length_total", "dsv4_prompt_tokens_by_length_total")

_CAPACITY = (
    Panel(
        "Capacity in tokens",
        "All replicas. `main` counts context, other regions entries of their own: one of c4 stands for 4 tokens.",
        "short",
        (Query(total(CAPACITY, PLACE), "{{region}} {{tier}}"),),
        "bars",
    ),
    Panel(
        "Capacity in bytes",
        "All replicas. `main` is c4 and c128 together, or V4.1's c1 and c2, without the index keys.",
        "bytes",
        (Query(total("dsv4_kv_capacity_bytes", PLACE), "{{region}} {{tier}}"),),
        "bars",
    ),
    Panel(
        "Planned against reported",
        "Context that the engines report as a share of what the planner expected of them: 1 where both agree.",
        "percentunit",
        (Query(ratio(total(CAPACITY, ("tier",), MAIN[0]), total(EXPECTED, ("tier",), MAIN[0])), "{{tier}}"),),
        "bars",
    ),
    Panel(
        "Planned bytes",
        "What the planner expects each region to occupy, where it sizes it: beside the capacity in bytes.",
        "bytes",
        (Query(total("dsv4_kv_expected_bytes", PLACE), "{{region}} {{tier}}"),),
        "bars",
    ),
    Panel(
        "Bytes a token",
        "Index keys in FP4 are 64 bytes of payload and 4 of scale; in FP8 they are 132 together.",
        "bytes",
        (Query(f"max by (region) ({metric('dsv4_kv_bytes_per_token')})", "{{region}}"),),
        "bars",
    ),
    Panel(
        "Fullest replica",
        "Used share by region and tier. A warm prefix cache fills the pool: this alone is no shortage.",
        "percentunit",
        (Query(f"max by (region, tier) ({metric(USED)} / {metric(CAPACITY)})", "{{region}} {{tier}}"),),
    ),
    Panel(
        "Context: held, evictable, free",
        "Tokens, all replicas. Held ones belong to running requests; evictable ones make room for new ones.",
        "short",
        (
            Query(f"{total(USED, (), *MAIN)} - {total('dsv4_kv_evictable_tokens', (), *MAIN)}", "held"),
            Query(total("dsv4_kv_evictable_tokens", (), *MAIN), "evictable"),
            Query(f"{total(CAPACITY, (), *MAIN)} - {total(USED, (), *MAIN)}", "free"),
        ),
    ),
    Panel(
        "Requests that gave up their pages",
        "A second. Running requests that had to wait and be computed again: the pool is too small for the load.",
        "reqps",
        (Query(rate("dsv4_retracted_requests_total"), "retracted"),),
    ),
)

_HITS = (
    Panel(
        "Hit rate by tier",
        "Share of prompt tokens, weighted by tokens; the tiers add up to the whole hit rate.",
        "percentunit",
        (Query(ratio(rate(CACHED, ("tier",)), f"scalar({rate(PROMPT)})"), "{{tier}}"),),
    ),
    Panel(
        "Hit rate by prompt length",
        "A prompt counts under the first bound that is not below its tokens.",
        "percentunit",
        (
            Query(
                ratio(rate(BY_LENGTH[0], ("length",)), f"({rate(BY_LENGTH[1], ('length',))} > 0)"), "up to {{length}}"
            ),
        ),
    ),
    Panel(
        "Prompt tokens by prompt length",
        "A second: which lengths the load is made of.",
        "short",
        (Query(rate(BY_LENGTH[1], ("length",)), "up to {{length}}"),),
    ),
    Panel(
        "Cached tokens by prompt length and tier",
        "A second.",
        "short",
        (Query(rate(BY_LENGTH[0], ("length", "tier")), "up to {{length}} {{tier}}"),),
    ),
)

CAPACITY_PURPOSE = "How much context fits by region, what a token costs, what is used, and what hits."
CAPACITY_BOARD = Board(
    "dsv4-capacity", "DSV4 KV capacity and hit rate", CAPACITY_PURPOSE, (("Capacity", _CAPACITY), ("Hits", _HITS))
)
