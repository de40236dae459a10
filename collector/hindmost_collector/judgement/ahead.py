"""Why a rank that comes last is not named: where CPUs set the pace, the others' are ahead, and wait for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.judgement.wording import ms, percent
from hindmost_collector.robust import mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.judgement.verdict import Verdict
    from hindmost_collector.timeline.blocks import Blocks

#: A rank that comes last in this share of the collectives is seen in the table, where the others' GPUs wait so long.
_LAST, _WAITED = 0.5, 0.05


def notes(blocks: Blocks, found: Sequence[Verdict]) -> list[str]:
    """A sentence on each rank that comes last in most collectives and is in no verdict, of jobs that hosts pace."""
    if blocks.lanes is None:
        return []
    named = [rank for one in found for rank in (*one.ranks, *one.victims)]
    told = []
    for row in np.flatnonzero((mean(blocks.last) > _LAST) & ~np.isin(blocks.ranks, named)).tolist():
        waited = float(np.nanmean(np.delete(blocks.wait, row, axis=0)))
        if waited < _WAITED * blocks.step_ns:
            continue
        longer, cost = (float(np.nanmean(block[row])) for block in (blocks.excess, blocks.caused))
        how = f"is {ms(longer)} longer per step, which costs {ms(cost)}" if longer > 0 else "is no longer than theirs"
        last = percent(float(mean(blocks.last)[row]))
        told.append(
            f"rank {int(blocks.ranks[row])} comes last in {last} of the collectives because the CPUs of the others are"
            f" ahead: the work of its own CPU {how}"
        )
    return told
