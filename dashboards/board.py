"""Put sections of panels together into a dashboard with variables, links, annotations and stable panel ids."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model

from dashboards.panels import SOURCE

Panels = Sequence[Builder[model.Panel]]

Variables = Sequence[Builder[model.VariableModel]]

TAG = "hindmost"


class Section(NamedTuple):
    """A row of a board and its panels; one that is ``folded`` asks nothing of Prometheus until it is opened."""

    heading: str
    panels: Panels
    folded: bool = False


class Annotation(NamedTuple):
    """What is drawn across the time series: a region as long as ``expression`` is above 0, or marks.

    ``at_value``: the value is the time of the mark, ms since 1970.
    """

    name: str
    expression: str
    title: str
    colour: str
    at_value: bool = False


#: Fields of an annotation that Prometheus' data source reads and Grafana's schema does not list.
OF_PROMETHEUS = ("step", "titleFormat", "textFormat", "useValueForTime")


def assemble(
    uid: str,
    description: str,
    variables: Variables,
    sections: Sequence[Section],
    annotations: Sequence[Annotation] = (),
) -> model.Dashboard:
    """A dashboard with these rows, read-only in Grafana because this code is where it is changed."""
    title = f"hindmost / {uid.removeprefix('hindmost-')}"
    board = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly()
    board.refresh("10s").time("now-30m", "now").timezone("browser").tooltip(model.DashboardCursorSync.CROSSHAIR)
    board.link(
        dashboard.DashboardLink("hindmost")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    board.with_variable(dashboard.DatasourceVariable("datasource").label("data source").type("prometheus"))
    for variable in variables:
        board.with_variable(variable)
    for annotation in annotations:
        made = (
            dashboard.AnnotationQuery()
            .name(annotation.name)
            .datasource(SOURCE)
            .enable(True)
            .expr(annotation.expression)
        )
        board.annotation(made.icon_color(annotation.colour))
    for section in sections:
        row = dashboard.Row(section.heading)
        for panel in section.panels if section.folded else ():
            row.with_panel(panel)
        board.with_row(row)
        for panel in () if section.folded else section.panels:
            board.with_panel(panel)
    return _numbered(board.build())


def completed(written: dict[str, Any], annotations: Sequence[Annotation]) -> dict[str, Any]:
    """The board's JSON with what Prometheus' data source reads of its annotations."""
    for found, one in zip(written["annotations"]["list"] if annotations else (), annotations, strict=True):
        more = ("10s", one.title, "{{job_id}}", one.at_value)
        found.update(zip(OF_PROMETHEUS, more, strict=True))
    return written


def one(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable of which exactly one value is chosen."""
    return _variable(name, label, query).multi(False).include_all(False)


def several(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable of which any number is chosen, at first all: as one ``.*``, however many there are."""
    everything = model.VariableOption(selected=True, text="All", value="$__all")
    return _variable(name, label, query).multi(True).include_all(True).all_value(".*").current(everything)


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    built = dashboard.QueryVariable(name).label(label).datasource(SOURCE).sort(model.VariableSort.NUMERICAL_ASC)
    return built.query({"query": query, "refId": name}).refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)


def of_a_job() -> Variables:
    """The job, and where its collector's page is."""
    return [
        one("job_id", "job", "label_values(hindmost_job_info, job_id)"),
        one("page", "page at", 'label_values(hindmost_job_info{job_id="$job_id"}, instance)'),
    ]


def of_ranks() -> Variables:
    """The job, and any of its nodes and ranks."""
    return [
        *of_a_job(),
        several("node", "node", 'label_values(hindmost_rank_info{job_id="$job_id"}, node)'),
        several("rank", "rank", 'label_values(hindmost_rank_info{job_id="$job_id",node=~"$node"}, rank)'),
    ]


def _numbered(built: model.Dashboard) -> model.Dashboard:
    """Rows first, then panels, so that folding one changes no panel's number."""
    number = 0
    for panel in built.panels or []:
        for each in (panel, *(getattr(panel, "panels", None) or ())):
            number += 1
            each.id_val = number
    return built
