"""Whom the newest steps of a window name, to be compared with whom they named when all of it was judged last.

A look says nothing to anybody: it tells whether the whole window is to be judged now, which names, or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hindmost_collector.judgement.verdict import Report

#: Kinds that are an answer but no trouble: they are on the page, not in the log of verdicts.
QUIET = frozenset({"balanced", "insufficient_data"})
#: A cost that moved by more than this share of the larger is another: few steps tell it less well than a whole window.
_MOVED = 0.4
#: So is a step's time, or what transfers take, that moved by more than this share. What slows all ranks alike shows
#: beside the steps before it only, which short looks and, at last, the window have lost.
_SLOWED = 0.1
#: Transfers that took less than this share of a step, and still do, may take what they want.
_SMALL = 0.02


@dataclass(frozen=True)
class Seen:
    """What some steps say: the cost of each verdict that holds, ms a step, by its kind and ranks, and how long the
    typical step was, and the transfers in it, ms; ``None`` is unknown."""

    costs: Mapping[tuple[Any, ...], float | None] = field(default_factory=dict)
    step_ms: float | None = None
    transfer_ms: float | None = None


def seen(report: Report) -> Seen:
    """Those verdicts of a report that still hold, and how long steps and transfers were."""
    costs = {
        (one.kind, tuple(one.ranks)): one.cost_ms_per_step
        for one in report.verdicts
        if one.kind not in QUIET and one.until_step is None
    }
    transfers = [one.transfer_ms for one in report.ranks if one.transfer_ms is not None]
    return Seen(costs, report.job.step_ms.get("p50"), median(transfers) if transfers else None)


def differ(held: Seen, before: Seen, now: Seen) -> bool:
    """Whether the newest steps say something new: beside what they said ``before``, when the whole window was judged,
    and beside what ``held`` then by all of it.

    Who holds the job up now and then does not do so in all that is new.
    """
    new = now.costs.keys() - before.costs.keys() - held.costs.keys()
    gone = _lasting((before.costs.keys() - now.costs.keys()) & held.costs.keys())
    both = now.costs.keys() & before.costs.keys()
    dearer = any(_moved(before.costs[key], now.costs[key], _MOVED) for key in both)
    return bool(new or gone) or dearer or _slowed(before, now)


def settled(held: Seen, now: Seen) -> bool:
    """Whether the whole window names whom its newest steps name, but for who is slow now and then."""
    return _lasting(held.costs.keys()) == _lasting(now.costs.keys())


def _lasting(names: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    return {one for one in names if one[0] != "intermittent"}


def _slowed(before: Seen, now: Seen) -> bool:
    small = _SMALL * (now.step_ms or 0.0)
    slight = max(before.transfer_ms or 0.0, now.transfer_ms or 0.0) < small
    longer = not slight and _moved(before.transfer_ms, now.transfer_ms, _SLOWED)
    return longer or _moved(before.step_ms, now.step_ms, _SLOWED)


def _moved(before: float | None, now: float | None, share: float) -> bool:
    if before is None or now is None:
        return (before is None) != (now is None)
    return abs(now - before) > share * max(abs(now), abs(before))
