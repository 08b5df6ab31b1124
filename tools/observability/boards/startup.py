"""Start-up: how long each phase took, how often it happened, and whether what was asked for runs."""

from __future__ import annotations

from tools.observability.board import Board, Panel, Query
from tools.observability.expressions import fullest, metric, total

_STARTS = (
    Panel(
        "Serving",
        "1 while a replica serves: generated once, alive, not draining.",
        "none",
        (Query(fullest("dsv4_engine_up", ("instance",)), "{{instance}}"),),
        width=8,
    ),
    Panel(
        "Up for",
        "Since the launcher started; a drop is a restart.",
        "s",
        (Query(f"time() - {fullest('dsv4_start_time_seconds', ('instance',))}", "{{instance}}"),),
        width=8,
    ),
    Panel(
        "Restarts in the last hour",
        "Of the launcher by its start time, of its engine by what ended the one before.",
        "none",
        (
            Query(f"changes({metric('dsv4_start_time_seconds')}[1h])", "{{instance}} launcher"),
            Query(f"increase({metric('dsv4_engine_restarts_total')}[1h])", "{{instance}} engine: {{cause}}"),
        ),
        width=8,
    ),
    Panel(
        "Ranks",
        "Of a server over several machines: 1 while the rank says that it is ready. Absent on one machine.",
        "none",
        (Query(metric("dsv4_rank_up"), "{{instance}} rank {{rank}}"),),
        width=8,
    ),
)

_PHASES = (
    Panel(
        "Phases of the slowest replica",
        "The engine's own phases lie within engine_boot.",
        "s",
        (Query(fullest("dsv4_startup_phase_seconds", ("phase",)), "{{phase}}"),),
        "bars",
    ),
    Panel(
        "Phases by replica",
        "A replica that loads much longer than the others has a slow disk or a cold compile cache.",
        "s",
        (Query(metric("dsv4_startup_phase_seconds"), "{{instance}} {{phase}}"),),
    ),
    Panel(
        "Asked for and not in effect",
        "Settings, tolerated ones included; absent until the engine was asked what it runs.",
        "none",
        (Query(fullest("dsv4_requested_not_effective", ("instance",)), "{{instance}}"),),
    ),
    Panel(
        "Scrapes that were refused",
        "The engine exported what the table of names does not allow: its series are missing meanwhile.",
        "none",
        (Query(total("dsv4_engine_metrics_refused_total", ("instance",)), "{{instance}}"),),
    ),
)

STARTUP = Board(
    "dsv4-startup",
    "DSV4 start-up",
    "How long each phase took, how often it happened, and whether what was asked for runs.",
    (("Starts", _STARTS), ("Phases", _PHASES)),
)
