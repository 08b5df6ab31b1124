"""The FP4 indexer: which path serves, what fell back, how right and how large it is."""

from __future__ import annotations

from tools.observability.board import Board, Panel, Query
from tools.observability.expressions import fullest, rate, ratio, total

LAUNCHES, FALLBACKS = "dsv4_indexer_launches_total", "dsv4_indexer_fallbacks_total"
INDEX = 'region=~"index_.*"'

_PATH = (
    Panel(
        "Launches by backend",
        "A second, and by phase. A backend that nobody expects here is the first sign of a fallback.",
        "ops",
        (Query(rate(LAUNCHES, ("backend", "phase")), "{{backend}} {{phase}}"),),
    ),
    Panel(
        "Launches by operation",
        "A second.",
        "ops",
        (Query(rate(LAUNCHES, ("op",)), "{{op}}"),),
    ),
    Panel(
        "Share of the backends",
        "Of all launches since each engine started.",
        "percentunit",
        (Query(ratio(total(LAUNCHES, ("backend",)), f"scalar({total(LAUNCHES)})"), "{{backend}}"),),
        "bars",
    ),
    Panel(
        "Launches a generated token",
        "Rises with depth and speculation, and when prompts are cut into smaller chunks.",
        "none",
        (Query(ratio(rate(LAUNCHES), rate("dsv4_generated_tokens_total")), "launches"),),
    ),
)

_RIGHT = (
    Panel(
        "Fallbacks",
        "A second: launches that a backend other than the requested one served, by reason.",
        "ops",
        (Query(rate(FALLBACKS, ("op", "reason")), "{{op}}: {{reason}}"),),
    ),
    Panel(
        "Recall of the worst replica",
        "Share of the exact top-k that the served top-k found, from shadow runs.",
        "percentunit",
        (Query(f"min ({fullest('dsv4_indexer_recall', ('instance',))})", "recall"),),
    ),
    Panel(
        "Workspace",
        "Scratch memory of the indexer's kernels; the planner knows the same number.",
        "bytes",
        (Query(fullest("dsv4_indexer_workspace_bytes", ("instance",)), "{{instance}}"),),
    ),
    Panel(
        "Kernels compiled on live requests",
        "Anything but 0 is a stall that some request paid for.",
        "none",
        (Query(total("dsv4_compile_events_after_ready_total", ("instance",)), "{{instance}}"),),
    ),
    Panel(
        "Index keys: used entries",
        "Compressed entries of the index, all replicas.",
        "short",
        (
            Query(total("dsv4_kv_used_tokens", ("region",), INDEX), "used {{region}}"),
            Query(total("dsv4_kv_capacity_tokens", ("region",), INDEX), "capacity {{region}}"),
        ),
    ),
    Panel(
        "Index keys: bytes an entry",
        "68 in FP4, 132 in FP8.",
        "bytes",
        (Query(f"sum ({fullest('dsv4_kv_bytes_per_token', ('region',), INDEX)})", "bytes"),),
        "figure",
    ),
)

INDEXER = Board(
    "dsv4-indexer",
    "DSV4 indexer",
    "Which path serves the indexer, what fell back, how right and how large it is.",
    (("Path", _PATH), ("Right and large", _RIGHT)),
)
