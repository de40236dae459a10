"""Incremental evaluation: which ranks the newest steps name, against those named at the last full evaluation.

It reports nothing: it decides whether a full evaluation runs now, and only that names ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hindmost_judge.verdict.schema import Report

#: Possible claims: the kind and the ranks of a verdict, a changed cost, or the length of steps.
Key: TypeAlias = "tuple[Any, ...]"
_COST, _LENGTH = "cost", ("length",)
#: Kinds that are an answer but no trouble: they are on the page, not in the log of verdicts.
QUIET = frozenset({"balanced", "insufficient_data"})
#: A cost is new if it moved by more than this share of the larger: few steps measure it less well than a full
#: evaluation.
_MOVED = 0.4
#: A step's time, or its transfers' time, is new if it moved by more than this share. A slowdown of all ranks shows only
#: against earlier steps, which a short evaluation and, in the end, the window no longer have.
_SLOWED = 0.1
#: Transfers that take less than this share of a step, before and after, are ignored.
_SMALL = 0.02
#: So many ranks, from all over the job, show how long transfers take.
_SOME = 256


@dataclass(frozen=True)
class Seen:
    """The result of an evaluation: the cost of each verdict that holds, ms a step, by its kind and ranks.

    And the length of the typical step, and of the transfers in it, ms; ``None`` is unknown."""

    costs: Mapping[Key, float | None] = field(default_factory=dict)
    step_ms: float | None = None
    transfer_ms: float | None = None


def seen(report: Report) -> Seen:
    """Those verdicts of a report that still hold, and how long steps and transfers were."""
    costs = {
        (one.kind, tuple(one.ranks)): one.cost_ms_per_step
        for one in report.verdicts
        if one.kind not in QUIET and one.until_step is None
    }
    some = report.ranks[:: len(report.ranks) // _SOME + 1]  # rows of ranks are made when looked at
    transfers = [one.transfer_ms for one in some if one.transfer_ms is not None]
    return Seen(costs, report.job.step_ms.get("p50"), median(transfers) if transfers else None)


def news(held: Seen, before: Seen, now: Seen) -> set[Key]:
    """What the newest steps say that is new, against what they said ``before``, and against what ``held`` then.

    Both are of the last full evaluation. A rank that holds the job up now and then does not count as new each time.
    """
    new = now.costs.keys() - before.costs.keys() - held.costs.keys()
    gone = _lasting((before.costs.keys() - now.costs.keys()) & held.costs.keys())
    both = now.costs.keys() & before.costs.keys()
    dearer = {(_COST, *key) for key in both if _moved(before.costs[key], now.costs[key], _MOVED)}
    return new | gone | dearer | ({_LENGTH} if _slowed(before, now) else set())


def borne_out(said: set[Key], before: Seen, held: Seen) -> set[Key]:
    """Which claims of incremental evaluations show as changes between full evaluations."""
    changed = {key for key in before.costs.keys() | held.costs.keys() if _other(before, held, key)}
    changed |= {(_COST, *key) for key in changed}
    return said & (changed | {_LENGTH}) if changed else set()


def apart(held: Seen, now: Seen) -> set[Key]:
    """Which ranks only one of the full and the incremental evaluation names, without those slow now and then."""
    return _lasting(held.costs.keys()) ^ _lasting(now.costs.keys())


def _other(before: Seen, held: Seen, key: Key) -> bool:
    both = key in before.costs and key in held.costs
    return not both or _moved(before.costs[key], held.costs[key], _MOVED)


def _lasting(names: Iterable[Key]) -> set[Key]:
    return {one for one in names if one[0] != "intermittent"}


def _slowed(before: Seen, now: Seen) -> bool:
    small = _SMALL * (now.step_ms or 0.0)
    slight = max(before.transfer_ms or 0.0, now.transfer_ms or 0.0) < small
    known = before.transfer_ms is not None and now.transfer_ms is not None  # few steps may not tell
    longer = known and not slight and _moved(before.transfer_ms, now.transfer_ms, _SLOWED)
    return longer or _moved(before.step_ms, now.step_ms, _SLOWED)


def _moved(before: float | None, now: float | None, share: float) -> bool:
    if before is None or now is None:
        return (before is None) != (now is None)
    return abs(now - before) > share * max(abs(now), abs(before))
