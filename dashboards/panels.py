"""Panel constructors: one house style, so that a dashboard's file holds only what is particular to each panel."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as style
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.thresholds import Limits, limits

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")

#: A query and the legend of its series.
Query = tuple[str, str]


#: Where a click leads: a board, or the page of the job's collector.
_HERE = "var-datasource=${datasource}&${__url_time_range}"
_PAGE = "http://${page:raw}/?job=${job_id}"


class Link(NamedTuple):
    """What a click on a series, or on a row of a table, opens."""

    title: str
    url: str

    def of_rows(self) -> str:
        """The same for a table, where labels are columns."""
        return self.url.replace("${__field.labels.", "${__data.fields.")


TO_JOB = Link("job", f"/d/hindmost-job?var-job_id=${{__field.labels.job_id}}&{_HERE}")
TO_RANK = Link("rank", f"/d/hindmost-rank?var-job_id=${{job_id}}&var-rank=${{__field.labels.rank}}&{_HERE}")
TO_NODE = Link("node", f"/d/hindmost-nodes?var-node=${{__field.labels.node}}&{_HERE}")
TO_GPUS = Link("GPUs of the node", f"/d/hindmost-gpus?var-node=${{__field.labels.node}}&{_HERE}")
TO_PAGE = Link("page of the job", _PAGE)
TO_PAGE_OF_RANK = Link("page of the rank", f"{_PAGE}&rank=${{__field.labels.rank}}")
OF_RANK, OF_NODE = (TO_RANK, TO_NODE, TO_PAGE_OF_RANK), (TO_NODE, TO_GPUS)


class Column(NamedTuple):
    """One value column of a table, coloured by its limits."""

    title: str
    expression: str
    unit: str
    limits: Limits | None = None

    def properties(self) -> list[model.DynamicConfigValue]:
        """How Grafana shows this column."""
        unit = model.DynamicConfigValue(id_val="unit", value=self.unit)
        if self.limits is None:
            return [unit]
        return [
            unit,
            model.DynamicConfigValue(id_val="thresholds", value=_thresholds(self.limits, "text").build()),
            model.DynamicConfigValue(id_val="color", value={"mode": model.FieldColorModeId.THRESHOLDS}),
            model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
        ]


#: The legend that names a rank and where it runs.
PER_RANK = "rank {{rank}} · {{node}}"

P = TypeVar("P", timeseries.Panel, stat.Panel, table.Panel, bargauge.Panel, statetimeline.Panel, heatmap.Panel)


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = 12,
    stacked: bool = False,
    links: Sequence[Link] = (),
) -> timeseries.Panel:
    """Time series, the highest last value first in the legend."""
    panel = _framed(timeseries.Panel(), title, description, unit, width=width, height=8, links=links)
    for number, (expression, legend) in enumerate(queries):
        panel.with_target(_ranged(number, expression, legend))
    panel.legend(
        common.VizLegendOptions()
        .display_mode(style.LegendDisplayMode.TABLE)
        .placement(style.LegendPlacement.RIGHT)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
        .sort_by("Last *")
        .sort_desc(True)
    )
    panel.tooltip(common.VizTooltipOptions().mode(style.TooltipDisplayMode.MULTI).sort(style.SortOrder.DESCENDING))
    panel.show_points(style.VisibilityMode.AUTO).line_width(1).fill_opacity(70 if stacked else 5)
    if stacked:
        panel.stacking(common.StackingConfig().mode(style.StackingMode.NORMAL).group("A"))
    return panel.axis_soft_min(0)


def number(
    title: str, description: str, unit: str, query: Query, bounds: Limits, *, width: int = 4, height: int = 4
) -> stat.Panel:
    """One number with its recent course behind it: orange from ``bounds.warn`` on, red from ``bounds.bad`` on.

    Where a low value is the bad one, ``bad`` is the lower of the two.
    """
    panel = _framed(stat.Panel(), title, description, unit, width=width, height=height)
    panel.with_target(_ranged(0, *query)).thresholds(_thresholds(bounds))
    panel.graph_mode(style.BigValueGraphMode.AREA).color_mode(style.BigValueColorMode.VALUE)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(""))


def name(title: str, description: str, query: Query, *, width: int = 4, height: int = 4) -> stat.Panel:
    """The legend of each series now, as text: what an info metric says in its labels."""
    panel = _framed(stat.Panel(), title, description, "none", width=width, height=height)
    panel.with_target(_instant(0, *query)).text_mode(style.BigValueTextMode.NAME)
    panel.graph_mode(style.BigValueGraphMode.NONE).color_mode(style.BigValueColorMode.NONE)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(""))


def verdict(title: str, description: str, query: Query, *, width: int = 4, height: int = 4) -> stat.Panel:
    """The verdict in words, in the colour of its urgency."""
    panel = name(title, description, query, width=width, height=height)
    return panel.color_mode(style.BigValueColorMode.BACKGROUND).thresholds(urgency())


def timeline(
    title: str, description: str, query: Query, *, height: int = 7, links: Sequence[Link] = ()
) -> statetimeline.Panel:
    """A row a series, in the colour of its urgency, empty while it has no value."""
    panel = _framed(statetimeline.Panel(), title, description, "none", width=24, height=height, links=links)
    panel.with_target(_ranged(0, *query)).thresholds(urgency()).merge_values(True)
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    return panel.show_value(style.VisibilityMode.NEVER).row_height(0.85)


def heat(title: str, description: str, unit: str, query: Query, *, links: Sequence[Link] = ()) -> heatmap.Panel:
    """A row a series and a column a moment, darker where the value is higher."""
    panel = _framed(heatmap.Panel(), title, description, unit, width=24, height=12, links=links)
    panel.with_target(_ranged(0, *query)).calculate(False).cell_gap(0)
    panel.color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
    panel.cell_values(heatmap.CellValues().unit(unit)).y_axis(heatmap.YAxisConfig().unit("none"))
    return panel.rows_frame(heatmap.RowsHeatmapOptions().layout(style.HeatmapCellLayout.AUTO))


def bars(
    title: str, description: str, unit: str, query: Query, *, width: int = 12, links: Sequence[Link] = ()
) -> bargauge.Panel:
    """One horizontal bar a series, in the query's order."""
    panel = _framed(bargauge.Panel(), title, description, unit, width=width, height=9, links=links)
    panel.with_target(_instant(0, *query)).min(0)
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color("blue"))
    panel.display_mode(style.BarGaugeDisplayMode.BASIC).orientation(style.VizOrientation.HORIZONTAL)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(""))


def rows(
    title: str,
    description: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    height: int = 9,
    width: int = 24,
    links: Mapping[str, Sequence[Link]] | None = None,
) -> table.Panel:
    """A table of several queries joined by their labels, the highest of the first column on top.

    ``labels`` maps the label names that are shown to their column titles, in order; other labels are dropped.
    ``links`` are those of a label's column.
    """
    panel = _framed(table.Panel(), title, description, "short", width=width, height=height)
    for number_, column in enumerate(columns):
        panel.with_target(_instant(number_, column.expression, "").format(PromQueryFormat.TABLE))
        panel.override_by_name(column.title, column.properties())
    for label, leads_to in (links or {}).items():
        references = [{"title": link.title, "url": link.of_rows()} for link in leads_to]
        panel.override_by_name(labels[label], [model.DynamicConfigValue(id_val="links", value=references)])
    titles = {**labels, **{f"Value #{_letter(number_)}": column.title for number_, column in enumerate(columns)}}
    for transformation in _joined(titles):
        panel.with_transformation(transformation)
    return panel.sort_by([common.TableSortByFieldState().display_name(columns[0].title).desc(True)])


def urgency() -> dashboard.ThresholdsConfig:
    """Grey: not known. Green: balanced. Then by cost, and purple where the job stands still."""
    cost = limits("cost")
    return _steps(("#808080", None), ("green", 0.0), ("orange", cost.warn), ("red", cost.bad), ("purple", 2.0))


def _framed(
    panel: P, title: str, description: str, unit: str, *, width: int, height: int, links: Sequence[Link] = ()
) -> P:
    framed = panel.title(title).description(description).unit(unit).datasource(SOURCE)
    if links:
        made = [dashboard.DashboardLink(link.title).type(model.DashboardLinkType.LINK).url(link.url) for link in links]
        framed.data_links(list(made))
    return framed.span(width).height(height)


def _ranged(number_: int, expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).range().ref_id(_letter(number_))


def _instant(number_: int, expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).instant().ref_id(_letter(number_))


def _letter(number_: int) -> str:
    return chr(ord("A") + number_)


def _thresholds(bounds: Limits, good: str = "green") -> dashboard.ThresholdsConfig:
    warn, bad = bounds
    low, middle, high = (good, "orange", "red") if warn <= bad else ("red", "orange", good)
    first, second = sorted((warn, bad))
    return _steps((low, None), (middle, first), (high, second))


def _steps(*steps: tuple[str, float | None]) -> dashboard.ThresholdsConfig:
    made = [model.Threshold(color=colour, value=value) for colour, value in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _joined(titles: Mapping[str, str]) -> list[model.DataTransformerConfig]:
    organize = {
        "excludeByName": {},
        "indexByName": {field: index for index, field in enumerate(titles)},
        "renameByName": dict(titles),
    }
    return [
        model.DataTransformerConfig(id_val="merge", options={}),
        model.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(titles)}}),
        model.DataTransformerConfig(id_val="organize", options=organize),
    ]
