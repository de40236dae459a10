"""The page as one document: style, scripts and, of a report, its data inside; nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hindmost_collector.page.data import of_run, of_stored
from hindmost_collector.report import columns
from hindmost_collector.report.verdict_lines import in_short

if TYPE_CHECKING:
    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview
    from jinja2 import Template

_SCRIPTS = ("uplot.js", "data.js", "charts.js", "page.js")
_STYLES = ("uplot.css", "page.css")


def of_report(report: Mapping[str, Any], run: Run | None = None, seen: Overview | None = None, path: str = "") -> str:
    """The report (``Report.to_dict()`` or a parsed report.json) as one HTML file, fit to mail around.

    With its ``run``, and that as it is shown, the page has all of its parts; sections are those that the report has.
    ``path`` is the recording's in commands.
    """
    inside = of_stored(report, path) if run is None else of_run(run, report, seen, path)
    return render(inside, title=columns.title(report), verdicts=[one.sentence for one in in_short(report)])


def render(
    data: Mapping[str, Any] | None = None, title: str = "hindmost", nonce: str = "", verdicts: Sequence[str] = ()
) -> str:
    """The document; without ``data`` it asks the collector that serves it. Scripts have the ``nonce`` of its policy.

    ``verdicts`` are for who reads it without scripts.
    """
    text = None if data is None else json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _template().render(
        title=title, data=text, nonce=nonce, verdicts=verdicts, styles=_assets(_STYLES), scripts=_assets(_SCRIPTS)
    )


def _assets(names: tuple[str, ...]) -> list[str]:
    return [asset(name) for name in names]


@cache
def asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - a collector starts without it

    return Environment(autoescape=True, undefined=StrictUndefined).from_string(asset("page.html"))
