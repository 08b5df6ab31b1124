"""The tiers of the cache: what each holds, how full it is, what it gave back."""

from __future__ import annotations

from tools.observability.board import Board, Panel, Query
from tools.observability.boards.overview import CACHED, PROMPT
from tools.observability.expressions import metric, rate, ratio, total

USED, CAPACITY, MAIN = "dsv4_kv_used_tokens", "dsv4_kv_capacity_tokens", 'region="main"'

_SIZE = (
    Panel(
        "Capacity by tier",
        "Tokens of context, all replicas. A tier that is not shown is not there.",
        "short",
        (Query(total(CAPACITY, ("tier",), MAIN), "{{tier}}"),),
        "bars",
    ),
    Panel(
        "Used by tier",
        "Tokens of context, all replicas, cached ones included.",
        "short",
        (Query(total(USED, ("tier",), MAIN), "{{tier}}"),),
    ),
    Panel(
        "Fullest replica by tier",
        "A lower tier that is full for long evicts what a request may come back for.",
        "percentunit",
        (Query(f"max by (tier) ({metric(USED, MAIN)} / {metric(CAPACITY, MAIN)})", "{{tier}}"),),
    ),
    Panel(
        "Evictable by tier",
        "Tokens that no running request holds, all replicas.",
        "short",
        (Query(total("dsv4_kv_evictable_tokens", ("tier",)), "{{tier}}"),),
    ),
)

_HITS = (
    Panel(
        "Tokens that a tier gave back",
        "A second.",
        "short",
        (Query(rate(CACHED, ("tier",)), "{{tier}}"),),
    ),
    Panel(
        "Hit rate of the whole cache",
        "All tiers over all prompt tokens.",
        "percentunit",
        (Query(ratio(rate(CACHED), rate(PROMPT)), "hit rate"),),
    ),
    Panel(
        "A tier's share of the hits",
        "Since each engine started.",
        "percentunit",
        (Query(ratio(total(CACHED, ("tier",)), f"scalar({total(CACHED)})"), "{{tier}}"),),
        "bars",
    ),
    Panel(
        "Device memory, by the driver",
        "Used share of each device: what no engine's own count knows shows here.",
        "percentunit",
        (
            Query(
                ratio(metric("dsv4_device_memory_used_bytes"), metric("dsv4_device_memory_total_bytes")),
                "{{instance}} {{device}}",
            ),
        ),
    ),
)

STORED, EVICTED, REFUSED, UNSAVED = (
    f"dsv4_kv_{what}_pages_total" for what in ("stored", "evicted", "refused", "unsaved")
)

_PAGES = (
    Panel(
        "Pages that go down",
        "A second. Taken in by a tier below the device.",
        "short",
        (Query(rate(STORED, ("tier",)), "{{tier}}"),),
    ),
    Panel(
        "Pages that a tier gives up",
        "A second. As many as it takes in means that it is full.",
        "short",
        (Query(rate(EVICTED, ("tier",)), "{{tier}}"),),
    ),
    Panel(
        "Pages that were not believed",
        "Since each engine started, by reason. A page that is cut, spoiled or of another format is computed again.",
        "short",
        (Query(total(REFUSED, ("tier", "reason")), "{{tier}}: {{reason}}"),),
        "bars",
    ),
    Panel(
        "Pages that could not be kept",
        "Since each engine started, by reason: a full disk, one that cannot be written, or one that is too slow.",
        "short",
        (Query(total(UNSAVED, ("tier", "reason")), "{{tier}}: {{reason}}"),),
        "bars",
    ),
)

TIERS = Board(
    "dsv4-tiers",
    "DSV4 cache tiers",
    "What each tier of the cache holds, how full it is, and what it gave back.",
    (("Size", _SIZE), ("Hits", _HITS), ("Pages", _PAGES)),
)
