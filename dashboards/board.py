"""Put sections of panels together into a dashboard with variables, links and stable panel ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models import dashboard as model

    Panels = Sequence[Builder[model.Panel]]
    Variables = Sequence[Builder[model.VariableModel]]

TAG = "hindmost"


def assemble(
    uid: str, title: str, description: str, variables: Variables, sections: Mapping[str, Panels]
) -> model.Dashboard:
    """A dashboard whose rows are ``sections``, read-only in Grafana because this code is where it is changed."""
    board = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly()
    board.refresh("10s").time("now-30m", "now").timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR)
    board.link(
        dashboard.DashboardLink("hindmost")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )
    board.with_variable(dashboard.DatasourceVariable("datasource").label("data source").type("prometheus"))
    for variable in variables:
        board.with_variable(variable)
    for heading, panels in sections.items():
        board.with_row(dashboard.Row(heading))
        for panel in panels:
            board.with_panel(panel)
    return _numbered(board.build())


def one(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable of which exactly one value is chosen."""
    return _variable(name, label, query).multi(False).include_all(False)


def several(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable of which any number is chosen, at first all: as one ``.*``, however many there are."""
    everything = VariableOption(selected=True, text="All", value="$__all")
    return _variable(name, label, query).multi(True).include_all(True).all_value(".*").current(everything)


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    built = dashboard.QueryVariable(name).label(label).datasource(SOURCE).sort(VariableSort.NUMERICAL_ASC)
    return built.query({"query": query, "refId": name}).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def _numbered(built: model.Dashboard) -> model.Dashboard:
    for number, panel in enumerate(built.panels or [], start=1):
        panel.id_val = number
    return built
