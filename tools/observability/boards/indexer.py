"""The FP4 indexer: which path serves, what fell back, how right and how large it is."""

from __future__ import annotations

from tools.observability.board import Board, Panel, Query
from tools.observability.expressions import fullest, mean, rate, ratio, total

LAUNCHES, FALLBACKS = "dsv4_indexer_launches_total", "dsv4_indexer_fallbacks_total"
ROWS, SECONDS, TIMED = (f"dsv4_indexer_{name}_total" for name in ("rows", "seconds", "timed_launches"))
SCORING = 'op=~"paged_logits|rowgroup_logits"'
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
    Panel(
        "Rows a scoring launch",
        "What a launch is given to share keys among; low where verify rows run one by one.",
        "none",
        (Query(ratio(rate(ROWS, ("phase",)), rate(LAUNCHES, ("phase",), SCORING)), "{{phase}}"),),
    ),
    Panel(
        "Path of each phase",
        "1 for the operation and backend that scored keys last, by the engine's own account.",
        "none",
        (Query(fullest("dsv4_indexer_path", ("phase", "op", "backend")), "{{phase}}: {{op}} {{backend}}"),),
    ),
    Panel(
        "Share of rows on candidate blocks",
        "V4.1: rows whose layer scored the published blocks only, of all rows.",
        "percentunit",
        (Query(ratio(rate(ROWS, (), 'scope="candidates"'), rate(ROWS)), "candidates"),),
    ),
    Panel(
        "Scoring time a launch",
        "Device time of the launches that DSV4_INDEXER_TIMING samples; those inside graphs cannot be timed.",
        "s",
        (Query(ratio(rate(SECONDS, ("phase",)), rate(TIMED, ("phase",))), "{{phase}}"),),
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
        "Recall",
        "Share of the exact top-k that the served top-k found, on sampled prompts (DSV4_SHADOW_RECALL).",
        "percentunit",
        (Query(mean("dsv4_indexer_recall"), "recall"),),
    ),
    Panel(
        "Prompts of shadow recall",
        "A second, by what became of them; a prompt that begins with a prefix hit cannot be sampled.",
        "ops",
        (Query(rate("dsv4_indexer_recall_requests_total", ("outcome",)), "{{outcome}}"),),
    ),
    Panel(
        "Index format",
        "Replicas by how they store index keys: more than one line means that they cannot exchange pages.",
        "none",
        (
            Query(
                total("dsv4_index_format", ("layout", "format", "convention")), "{{layout}} {{format}} {{convention}}"
            ),
        ),
    ),
    Panel(
        "Workspace",
        "Blocks for the logits of prefill, kept once they were needed, and the side buffer of shadow recall.",
        "bytes",
        (
            Query(fullest("dsv4_indexer_workspace_bytes", ("instance",)), "logits {{instance}}"),
            Query(fullest("dsv4_indexer_recall_buffer_bytes", ("instance",)), "recall {{instance}}"),
        ),
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
