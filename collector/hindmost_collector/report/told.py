"""What is said of each verdict, worded once for text, HTML and the live page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hindmost_collector.report import columns, headline

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADVICE = 3


@dataclass(frozen=True)
class Told:
    """A verdict in words: the sentence, its evidence, what a repair saves, where to look, and what to do next.

    ``cost`` and ``where`` are empty where there is nothing to say. The kind of a balanced job that stood still is
    ``stalled``.
    """

    kind: str
    verdict: str
    why: tuple[str, ...]
    cost: str
    where: str
    next: tuple[str, ...]


def told(report: Mapping[str, Any]) -> list[Told]:
    """Each verdict of a report (``Report.to_dict()`` or a parsed report.json) in words, in its order."""
    notes, stalls = report.get("notes") or (), report["job"].get("stalls") or ()
    named = any(one.get("ranks") for one in report["verdicts"])
    return [
        Told(
            kind=one["kind"] if not _stalled(report, one) else "stalled",
            verdict=headline.verdict(one, notes, stalls, others_named=named),
            why=tuple(one.get("evidence") or ()),
            cost=_cost(one),
            where=columns.place(report, one),
            next=tuple(one.get("advice") or ())[:_ADVICE],
        )
        for one in report["verdicts"]
    ]


def _stalled(report: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    """Whether the job is balanced but for a time in which it stood still, which is not fine."""
    return one["kind"] == "balanced" and bool(report["job"].get("stalls"))


def with_words(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report as a page shows it: with its title, and its verdicts in words."""
    words = {"title": headline.title(report), "bound": headline.bound(report)}
    return {**report, **words, "told": [asdict(one) for one in (*_over(report), *told(report))]}


def _over(report: Mapping[str, Any]) -> list[Told]:
    """What a running job's page begins with where each verdict was closed: none is so now, as long as it is shown."""
    ends = [one.get("until_step") for one in report["verdicts"]]
    if not ends or None in ends:
        return []
    over = f"no verdict holds any more since step {max(ends)}: what follows is over"
    return [Told(kind="balanced", verdict=over, why=(), cost="", where="", next=())]


def _cost(one: Mapping[str, Any]) -> str:
    if one.get("cost_ms_per_step") is None or one.get("confidence") is None:
        return ""
    return f"{headline.saving(one)}; confidence {min(one['confidence'], 0.99):.0%}"
