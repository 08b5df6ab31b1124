"""A dashboard as data: rows of panels, each with its queries; Grafana's own builders make JSON of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import DashboardLinkType, DataSourceRef, VariableRefresh

Kind = Literal["chart", "figure", "bars"]
SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
COLUMNS = 24
TAG = "dsv4"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and what its series are called; `{{label}}` in `legend` is filled by Grafana."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `unit` is Grafana's name of a unit; `meaning` tells an operator what it says and what to do."""

    title: str
    meaning: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "chart"
    width: int = 12

    def __post_init__(self) -> None:
        if not 1 <= self.width <= COLUMNS:
            raise ValueError(f"panel {self.title!r}: width {self.width}; accepted is 1 to {COLUMNS}")
        if not self.queries or not self.meaning.endswith("."):
            raise ValueError(f"panel {self.title!r}: it needs a query, and a meaning that is a sentence")


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard; `uid` names its file and stays, so that links to it keep working."""

    uid: str
    title: str
    purpose: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def panels(self) -> list[Panel]:
        return [panel for _, panels in self.rows for panel in panels]


def render(board: Board) -> str:
    """The dashboard as Grafana reads it, with sorted keys, so that it only changes when its content does."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.purpose)
        .tags([TAG])
        .readonly()
        .refresh("10s")
        .time("now-1h", "now")
        .with_variable(_instances())
        .link(
            dashboard.DashboardLink("dsv4")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
        )
    )
    number = 0
    for title, panels in board.rows:
        number += 1
        built = built.with_row(Row(title).id(number))
        for panel in panels:
            number += 1
            built = built.with_panel(_panel(panel, number))
    model = built.build()
    for variable in model.templating.list_val or [] if model.templating else []:
        # The builder writes keys of another kind of variable; Grafana's own schema refuses them here.
        variable.auto = variable.auto_count = variable.auto_min = None
    return JSONEncoder(sort_keys=True, indent=2).encode(model) + "\n"


def _instances() -> QueryVariable:
    return (
        QueryVariable("instance")
        .label("replica")
        .datasource(SOURCE)
        .query("label_values(dsv4_engine_up, instance)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _panel(panel: Panel, number: int) -> timeseries.Panel | stat.Panel | bargauge.Panel:
    built: timeseries.Panel | stat.Panel | bargauge.Panel
    if panel.kind == "chart":
        legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        legend = legend.show_legend(True)
        built = timeseries.Panel().min(0).fill_opacity(10).legend(legend).height(8)
    elif panel.kind == "figure":
        built = stat.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).height(4)
    else:
        built = bargauge.Panel().min(0).reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).height(8)
    built = built.id(number).title(panel.title).description(panel.meaning).unit(panel.unit).datasource(SOURCE)
    # What nobody knows is absent, never zero: Grafana's default words for it look like a broken panel.
    built = built.span(panel.width).no_value("not exported")
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = Dataquery().expr(query.expression).legend_format(query.legend).ref_id(letter)
        built = built.with_target(target if panel.kind == "chart" else target.instant())
    return built
