"""What a reader may expect of any report: its sentences are short, and its words are those of styles/."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hindmost_collector.report import columns
from hindmost_collector.report.verdict_lines import rendered

from style_check import rules

ROOT = Path(__file__).parents[2]


def findings(report: Mapping[str, Any]) -> list[str]:
    """Each sentence of a report that is too long, or has a word that the field does not use, and why."""
    every = _rules()
    return [
        f"{message}: {text}" for text in sentences(report) for _, message in every.findings(text, list(every.finds))
    ]


def sentences(report: Mapping[str, Any]) -> Iterator[str]:
    """All that a report says, in any format."""
    yield columns.title(report)
    yield columns.bound(report)
    yield from columns.waste(report)
    yield from report["notes"]
    yield report["job"].get("ended") or ""
    yield columns.caption(columns.table(report["ranks"], deciding=columns.deciding(report))[0], report)
    for one in rendered(report):
        yield from (f"{one.sentence} {one.sure}", one.cost, *one.why, one.where, *one.do)


@cache
def _rules() -> rules.Rules:
    return rules.load(ROOT)
