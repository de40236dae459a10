"""The verdict on ranks bound to fewer CPUs than they are, though their node has more; and their work without that.

Such ranks wait for each other in the run queue. None of them is slow for that: what they queue is taken from their
delay before ranks are compared. It costs what a replay without that wait saves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import cpu_sharing, queueing
from hindmost_judge.stats.robust import average
from hindmost_judge.verdict import advice
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.whole_job import since
from hindmost_judge.verdict.wording import ms, names
from hindmost_judge.whatif.savings import stretched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.findings import Bound
    from hindmost_judge.model import Run
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats, Ints

#: Bindings that the evidence lists.
_LISTED = 3
#: Affinity and queues are facts; that nothing else made the ranks queue is not.
_SURE = 0.95


def judged(run: Run, blocks: Blocks, settings: Settings) -> tuple[list[Verdict], Blocks]:
    """The verdict, if any, and the blocks in which some ranks' delay no longer holds what they queued.

    Where all ranks are bound so, their blocks stay: they are judged by what each of them needs.
    """
    bound = cpu_sharing.bound(run)
    rows = np.flatnonzero(np.isin(blocks.ranks, [rank for one in bound for rank in one.members]))
    queued = queueing.of_main(blocks) if len(rows) else None
    if queued is None:
        return [], blocks
    shares = queueing.behind_each_other(bound, blocks)
    queued = queued * shares[:, None]
    fixed: Floats = blocks.segments.copy()
    fixed[rows] -= queueing.in_segments(queued[rows], rows, blocks)
    shown = float((stretched(blocks, blocks.segments) - stretched(blocks, fixed)).mean())
    cost = shown + queueing.of_collectives(blocks, rows, shares)
    some = len(rows) < len(blocks.ranks)
    waited = float(np.mean(queueing.in_all(blocks, shares)[rows]))
    found = _verdict(run, blocks, bound, rows, waited, cost, settings)
    found = [replace(one, shown_ms=shown / 1e6 if some else 0.0) for one in found]
    if not some or not found:
        return found, blocks
    excess: Floats = blocks.excess.copy()
    excess[rows] -= np.clip(queued[rows], 0.0, np.maximum(np.nan_to_num(excess[rows]), 0.0))
    late = np.maximum(blocks.segments[rows], 0.0)
    fixed[rows] = blocks.segments[rows] - np.minimum(queueing.in_segments(queued[rows], rows, blocks), late)
    return found, replace(blocks, excess=excess, segments=fixed)


def _verdict(
    run: Run, blocks: Blocks, bound: Sequence[Bound], rows: Ints, waited: float, cost: float, settings: Settings
) -> list[Verdict]:
    period = average(blocks.period)
    if not cost >= settings.min_effect * period:
        return []
    ranks = tuple(sorted(blocks.ranks[rows].tolist()))
    listed = [str(one) for one in bound[:_LISTED]]
    more = [f"{len(bound) - _LISTED} more such bindings"] if len(bound) > _LISTED else []
    whom = "the other" if len(bound) == 1 and bound[0].ranks == 2 else "the others"
    return [
        Verdict(
            kind="oversubscribed",
            ranks=ranks,
            cause="cpu_contention",
            since_step=since(blocks, 0),
            cost_ms_per_step=min(cost, period) / 1e6,
            cost_ratio=min(cost / period, 1.0),
            confidence=_SURE,
            explained=1.0,
            evidence=(
                f"{listed[0]}: each waits {ms(waited)} per step for {whom}",
                *listed[1:],
                *more,
                f"none of {names(ranks)} has more work than the others",
            ),
            advice=advice.of_binding(run, bound),
        )
    ]
