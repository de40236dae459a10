"""A report as one HTML file: the page with its data inside, fit to mail around."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost_collector.page import data, document
from hindmost_collector.report import columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview


def render(report: Mapping[str, Any], run: Run | None = None, seen: Overview | None = None) -> str:
    """The report (``Report.to_dict()`` or a parsed report.json) as a whole HTML document.

    With its ``run``, and that as it is shown, the page has all of its parts; sections are those that the report has.
    """
    inside = data.of_stored(report) if run is None else data.of_run(run, report, seen)
    return document.render(inside, title=columns.title(report))
