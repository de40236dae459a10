"""How a job stops: the operations that ranks are inside when one does not come, or comes with another operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.simulate.layout import Collective, Compute, groups, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_collector.simulate.engine import Timing
    from hindmost_collector.simulate.layout import Array, Item
    from hindmost_collector.simulate.scenario import Scenario

#: How long all ranks were seen to wait at the last observation of a stopped job.
SEEN_SECONDS = 60
#: What a rank enters instead of each operation where its code takes another branch.
INSTEAD = {"all_reduce": "all_gather", "all_gather": "all_reduce", "reduce_scatter": "all_reduce"}


@dataclass(frozen=True)
class Standing:
    """``ranks`` are inside ``op`` where the program has its collective number ``index`` (of ``Timing.collectives``)."""

    index: int
    op: str
    ranks: Array


def stopped_ns(scenario: Scenario, timing: Timing) -> int:
    """When all ranks are inside an operation that does not end, ns since the run's begin: the planned end of the
    step."""
    return int(timing.finish[scenario.whole_steps].max())


def standing(scenario: Scenario, timing: Timing) -> list[Standing]:
    """The operations that each rank is inside forever, in the order of the program; empty where the job does not stop.

    A rank goes on until it must wait: for a group with a missing member, or at the end of computing for overlapped
    operations. A pipeline stops behind its last backward, where gradients are exchanged.
    """
    if scenario.halts_at is None:
        return []
    stuck, parted = _ranks(scenario, "hang"), _ranks(scenario, "desync")
    known, found = groups(scenario), list[Standing]()
    pending = {name: np.zeros(scenario.ranks, bool) for name in known}
    first = next(i for i, (step, _) in enumerate(timing.collectives) if step == scenario.halts_at)
    for place, item in _numbered(program(scenario)):
        if isinstance(item, Collective):
            wrong = parted & ~stuck if place == _parting(scenario) else np.zeros_like(stuck)
            kept_up = known[item.groups].latest((stuck | wrong | pending[item.groups]).astype(float)) > 0
            held = kept_up & ~stuck
            entered = ((item.op, held & ~wrong), (INSTEAD[item.op], wrong))
            found += [Standing(first + place, op, np.flatnonzero(who)) for op, who in entered if who.any()]
            pending[item.groups] |= held
            stuck = stuck | wrong | (held if item.blocking else False)
        elif not isinstance(item, Compute):
            stuck = np.logical_or.reduce([stuck, *pending.values()])
    return found


def _numbered(items: list[Item]) -> Iterator[tuple[int, Item]]:
    """Each item of a step with how many collectives come before it."""
    count = 0
    for item in items:
        yield count, item
        count += isinstance(item, Collective)


def _parting(scenario: Scenario) -> int:
    """The step's first collective among the most ranks: there the most can tell who is wrong."""
    known = groups(scenario)
    sizes = [known[item.groups].size for item in program(scenario) if isinstance(item, Collective)]
    return sizes.index(max(sizes))


def _ranks(scenario: Scenario, cause: str) -> Array:
    """[R] which ranks faults of a cause stop in the step that no rank ends."""
    out = np.zeros(scenario.ranks, bool)
    for fault in scenario.faults:
        if fault.cause == cause and fault.onset == scenario.halts_at:
            out[list(fault.ranks)] = True
    return out
