"""Why a rank that comes last is not named: its work, its wait for a CPU, or that the others' CPUs are ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import table
from hindmost_judge.stats.robust import mean, median
from hindmost_judge.verdict.wording import ms, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.verdict.schema import Verdict

#: A rank is seen in the table that comes last in this share of the collectives, while all others usually wait for this
#: share of a step or it makes them wait so long. Of the latest so many are explained.
_LAST, _WAITED, _MOST = 0.5, 0.05, 3
#: Work is no longer than that of the peers if it is so by less than this share of a step.
_NOTHING = 0.001
#: A measurement explains a longer time from this share of it on.
_EXPLAINS = 0.5


def notes(blocks: Blocks, found: Sequence[Verdict], told: Sequence[str] = ()) -> list[str]:
    """A sentence on each rank that comes last in most collectives and is in no verdict and not ``told`` of yet."""
    if blocks.joined is None or len(blocks.ranks) < 2:
        return []
    named = [rank for one in found for rank in (*one.ranks, *one.victims)]
    often, caused = mean(blocks.last), np.nan_to_num(mean(blocks.caused))
    rows = np.flatnonzero((often > _LAST) & ~np.isin(blocks.ranks, named))
    lines = [f"{line} " for line in (*told, *(line for one in found for line in one.evidence))]
    rows = rows[[not any(f"rank {int(blocks.ranks[row])} " in line for line in lines) for row in rows]]
    rows = rows[np.argsort(-often[rows], kind="stable")][:_MOST]
    least = _WAITED * blocks.step_ns
    usual, waits = np.nan_to_num(median(blocks.caused, axis=1)), np.nan_to_num(median(blocks.wait, axis=1))
    seen = [row for row in rows.tolist() if usual[row] >= least or np.delete(waits, row).min() >= least]
    ahead = blocks.lanes is not None or any(one.kind == "host_bound" for one in found)
    return [_sentence(blocks, row, float(often[row]), float(caused[row]), ahead=ahead) for row in seen]


def _sentence(blocks: Blocks, row: int, often: float, caused: float, *, ahead: bool) -> str:
    longer = float(np.nan_to_num(median(blocks.excess[row])))
    more = longer > _NOTHING * blocks.step_ns
    last = f"rank {int(blocks.ranks[row])} is last in {percent(often)} of collectives"
    if not more and ahead:
        return f"{last} only because its peers' CPUs launch kernels earlier: its work is no longer than theirs"
    if not more:
        return f"{last}, but its work is no longer than its peers'"
    last = f"{last}, partly because its peers' CPUs launch kernels earlier" if ahead else last
    cost = f", which costs {ms(caused)}" if blocks.lanes is not None else ""
    return f"{last}: {_longer(blocks, row, longer)}{cost}"


def _shown(blocks: Blocks, row: int, longer: float) -> float:
    """``longer`` as the table shows it, where that has self times: the difference of two medians."""
    peers = (blocks.role == blocks.role[row]) & (np.arange(len(blocks.ranks)) != row)
    if blocks.overlapped or not peers.any():
        return longer
    own = median(blocks.own, axis=1)
    found = float(np.nan_to_num(own[row] - median(own[peers])))
    return found if found > 0 else longer


def _longer(blocks: Blocks, row: int, longer: float) -> str:
    """What takes a rank ``longer`` ns than its peers: its work, or time off the CPU if CPU time does not explain it.

    Ranks that share CPUs make each other wait: the last one may have the least work.
    """
    steps, least, longer = np.arange(len(blocks.steps)), _EXPLAINS * longer, _shown(blocks, row, longer)
    cpu, queue = (blocks.parts.get(name) for name in ("self_cpu", "self_runqueue"))
    if cpu is None or np.isnan(cpu[row]).all() or table.excess_of(cpu, row, steps) >= least:
        return f"its work is {ms(longer)} longer"
    if queue is not None and table.excess_of(queue, row, steps) >= least:
        return f"it waits {ms(longer)} longer for a CPU"
    return f"it is off the CPU for {ms(longer)} longer"
