"""Panel constructors: one house style, so that a dashboard's file holds only what is particular to each panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

#: A query and the legend of its series.
Query = tuple[str, str]


class Column(NamedTuple):
    """One value column of a table; from ``warn`` on it is orange, from ``bad`` on red."""

    title: str
    expression: str
    unit: str
    warn: float | None = None
    bad: float | None = None

    def properties(self) -> list[DynamicConfigValue]:
        """How Grafana shows this column."""
        unit = DynamicConfigValue(id_val="unit", value=self.unit)
        if self.warn is None or self.bad is None:
            return [unit]
        return [
            unit,
            DynamicConfigValue(id_val="thresholds", value=_thresholds(self.warn, self.bad, "text").build()),
            DynamicConfigValue(id_val="color", value={"mode": FieldColorModeId.THRESHOLDS}),
            DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
        ]


#: The legend that names a rank and where it runs.
PER_RANK = "rank {{rank}} · {{node}}"

P = TypeVar("P", timeseries.Panel, stat.Panel, table.Panel, bargauge.Panel)


def lines(
    title: str, description: str, unit: str, *queries: Query, width: int = 12, stacked: bool = False
) -> timeseries.Panel:
    """Time series, the highest last value first in the legend."""
    panel = _framed(timeseries.Panel(), title, description, unit, width=width, height=8)
    for number, (expression, legend) in enumerate(queries):
        panel.with_target(_ranged(number, expression, legend))
    panel.legend(
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.RIGHT)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
        .sort_by("Last *")
        .sort_desc(True)
    )
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    panel.show_points(VisibilityMode.AUTO).line_width(1).fill_opacity(70 if stacked else 5)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return panel.axis_soft_min(0)


def number(
    title: str, description: str, unit: str, query: Query, *, warn: float, bad: float, width: int = 4, height: int = 4
) -> stat.Panel:
    """One number with its recent course behind it: orange from ``warn`` on, red from ``bad`` on.

    Where a low value is the bad one, ``bad`` is the lower bound of the two.
    """
    panel = _framed(stat.Panel(), title, description, unit, width=width, height=height)
    panel.with_target(_ranged(0, *query)).thresholds(_thresholds(warn, bad))
    panel.graph_mode(BigValueGraphMode.AREA).color_mode(BigValueColorMode.VALUE)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(""))


def name(title: str, description: str, query: Query, *, width: int = 4, height: int = 4) -> stat.Panel:
    """The legend of each series now, as text: what an info metric says in its labels."""
    panel = _framed(stat.Panel(), title, description, "none", width=width, height=height)
    panel.with_target(_instant(0, *query)).text_mode(BigValueTextMode.NAME)
    panel.graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.NONE)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(""))


def bars(title: str, description: str, unit: str, query: Query, *, width: int = 12) -> bargauge.Panel:
    """One horizontal bar a series, in the query's order."""
    panel = _framed(bargauge.Panel(), title, description, unit, width=width, height=9)
    panel.with_target(_instant(0, *query)).min(0)
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.FIXED).fixed_color("blue"))
    panel.display_mode(BarGaugeDisplayMode.BASIC).orientation(VizOrientation.HORIZONTAL)
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(""))


def rows(
    title: str,
    description: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    height: int = 9,
    width: int = 24,
) -> table.Panel:
    """A table of several queries joined by their labels, the highest of the first column on top.

    ``labels`` maps the label names that are shown to their column titles, in order; other labels are dropped.
    """
    panel = _framed(table.Panel(), title, description, "short", width=width, height=height)
    for number_, column in enumerate(columns):
        panel.with_target(_instant(number_, column.expression, "").format(PromQueryFormat.TABLE))
        panel.override_by_name(column.title, column.properties())
    titles = {**labels, **{f"Value #{_letter(number_)}": column.title for number_, column in enumerate(columns)}}
    for transformation in _joined(titles):
        panel.with_transformation(transformation)
    return panel.sort_by([common.TableSortByFieldState().display_name(columns[0].title).desc(True)])


def _framed(panel: P, title: str, description: str, unit: str, *, width: int, height: int) -> P:
    framed = panel.title(title).description(description).unit(unit).datasource(SOURCE)
    return framed.span(width).height(height)


def _ranged(number_: int, expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).range().ref_id(_letter(number_))


def _instant(number_: int, expression: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).instant().ref_id(_letter(number_))


def _letter(number_: int) -> str:
    return chr(ord("A") + number_)


def _thresholds(warn: float, bad: float, good: str = "green") -> dashboard.ThresholdsConfig:
    low, middle, high = (good, "orange", "red") if warn <= bad else ("red", "orange", good)
    first, second = sorted((warn, bad))
    steps = [Threshold(color=low), Threshold(value=first, color=middle), Threshold(value=second, color=high)]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _joined(titles: Mapping[str, str]) -> list[DataTransformerConfig]:
    organize = {
        "excludeByName": {},
        "indexByName": {field: index for index, field in enumerate(titles)},
        "renameByName": dict(titles),
    }
    return [
        DataTransformerConfig(id_val="merge", options={}),
        DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(titles)}}),
        DataTransformerConfig(id_val="organize", options=organize),
    ]
