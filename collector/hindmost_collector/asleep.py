"""Late ranks that no scheduler made late: their main thread neither ran nor waited for a CPU, and no other thread did.

Where ranks outnumber CPUs whoever is late may have waited for one. The kernel accounts for that: what a thread neither
ran nor queued for, it slept or was blocked by something else. Another thread of its process, for which it waited, would
have been given CPU time in the meantime: at least its fair share, had it asked for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import off_cpu
from hindmost_collector.robust import average, mean, median
from hindmost_collector.wording import ms, names

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.sharing import Sharing
    from hindmost_collector.verdict import Verdict

#: Threads that were given less than this of the rank's fair share of CPUs while it was late did not ask for it.
_GIVEN = 0.5
#: Steps of which this is known, at least.
_ENOUGH = 10


@dataclass(frozen=True)
class Asleep:
    """``slept`` ns a step: a main thread neither ran nor queued for so long; ``others`` ns of CPU of other threads."""

    slept: float
    others: float

    def __str__(self) -> str:
        return (
            f"its main thread neither ran nor waited for a CPU for {ms(self.slept)} a step, and its other threads used "
            f"{ms(self.others)} of CPU: it slept, or waited for something else"
        )


def find(blocks: Blocks, row: int, columns: Array, shared: Sharing) -> Asleep | None:
    """How a rank was asleep in these steps (indices); ``None`` where it may have waited for a CPU, or nobody knows."""
    blocked = off_cpu.of_step(blocks, row, columns)
    known = ~np.isnan(blocked) & ~np.isnan(blocks.excess[row, columns])
    rate = blocks.gauges(columns).get("cpu")
    if np.sum(known) < _ENOUGH or rate is None or np.isnan(rate[row]):
        return None
    slept, late = float(median(blocked[known])), float(median(blocks.excess[row, columns][known]))
    others = _of_other_threads(blocks, row, columns[known], rate)
    if slept < off_cpu.MOST * late or not others < _GIVEN * late * shared.cpus / shared.ranks:
        return None
    return Asleep(slept, others)


def _of_other_threads(blocks: Blocks, row: int, columns: Array, rate: Floats) -> float:
    """Ns of CPU a step that a rank's process used, less what its main thread did: where nobody looked while that was in
    collectives, as large a part of them as the typical peer's process used. ``rate`` [R] are processes' CPU s/s.
    """
    ran = average(off_cpu.busy(blocks)[row, columns])
    left = float(rate[row]) * average(_lasted(blocks, row)[columns]) - ran
    if off_cpu.between_collectives(blocks):
        inside = mean((blocks.wait + blocks.transfer)[:, columns])
        theirs = rate * average(blocks.period[columns]) - mean(off_cpu.busy(blocks)[:, columns])
        part = float(median(np.delete(theirs / np.maximum(inside, 1.0), row)))
        left -= float(np.nan_to_num(np.clip(part, 0.0, 1.0) * inside[row]))
    return max(left, 0.0)


def _lasted(blocks: Blocks, row: int) -> Floats:
    """[S] ns of a rank's steps: of its own, where it marks them, for groups that never meet have each their pace."""
    return blocks.period if blocks.took is None else blocks.took[row]


def not_named(late: list[Verdict]) -> str:
    """Who came late and why nobody is named for it, where ranks share CPUs; goes on a sentence that says they do."""
    waited = [rank for one in late if one.cause == "cpu_contention" for rank in one.ranks]
    unknown = [rank for one in late if one.cause != "cpu_contention" for rank in one.ranks]
    told = [f"{names(waited)} came late for want of a CPU, which is no fault of a rank"] if waited else []
    if unknown:
        told.append(f"{names(unknown)} came late, perhaps for want of a CPU: nothing measured tells another reason")
    return f": {'; '.join(told)}" if told else ""
