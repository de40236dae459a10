"""Most ranks slow at once: then the typical rank is slow, and only the few others stand out, ahead.

Delays alone cannot separate slow ranks from others that are ahead. Where they begin in the middle of a run, the
steps can: they become longer if most ranks become slow, and no shorter if a few become fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.detect import straggler
from hindmost_judge.stats.robust import average, median
from hindmost_judge.verdict.schema import UNSURE, Verdict
from hindmost_judge.verdict.whole_job import since, until
from hindmost_judge.verdict.wording import ms, names, percent
from hindmost_judge.whatif import savings

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.findings import Habit
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Ints

#: Ranks ahead by less of a step are what healthy ranks differ by, with a batch or an optimizer's part a little smaller.
_AHEAD = 0.05
#: Ranks that are ahead since the same few steps are so for one reason.
_TOGETHER = 8
#: Steps must surely have become longer by this share of what the few are ahead: the rest may be hidden by transfers.
_LONGER = 0.5


@dataclass(frozen=True)
class Majority:
    """``habits`` of the few ``ahead`` of ``ranks``, and by how much steps grew then (``None``: from the start)."""

    habits: list[Habit]
    ranks: tuple[int, ...]
    ahead: tuple[int, ...]
    by_ns: float
    step_ns: float
    change: savings.Change | None

    def __str__(self) -> str:
        """What is known of ranks that are ahead from the start."""
        are, has = ("is", "it has") if len(self.ahead) == 1 else ("are", "they have")
        by = f"{ms(self.by_ns)} per step ({percent(self.by_ns / self.step_ns)})"
        who = f"{names(self.ahead)} {are} {by} faster than the other {len(self.ranks)}"
        return f"{who}: {has} less work, or these are slow"


def find(blocks: Blocks, settings: Settings) -> Majority | None:
    """The few ranks that are ahead of most others, persistently and for the same steps; ``None`` where none are."""
    if blocks.pipeline is not None or len(blocks.ranks) < 3:
        return None
    strict = replace(settings, min_effect=_AHEAD, min_effect_of_few=_AHEAD)
    habits = straggler.find(replace(blocks, excess=-blocks.excess), strict)
    rows = sorted(set(range(len(blocks.ranks))) - {habit.row for habit in habits})
    if not habits or 2 * len(habits) >= len(blocks.ranks) or not _of_one_time(habits):
        return None
    if _wait_for_mates(blocks.group, [habit.row for habit in habits]):
        return None
    first, stop = (int(np.median([getattr(habit, name) for habit in habits])) for name in ("first", "stop"))
    change = None
    by_ns = float(np.median([habit.excess for habit in habits]))
    if (first, stop) != (0, len(blocks.steps)):
        change = savings.observed_change(blocks, slice(first, stop))
        if change is None or change.longer - 2 * change.noise < _LONGER * by_ns:
            return None  # steps as long as before: the few became faster
    ranks, ahead = (tuple(sorted(int(blocks.ranks[row]) for row in some)) for some in (rows, [h.row for h in habits]))
    return Majority(habits, ranks, ahead, by_ns, float(median(blocks.period)), change)


def _wait_for_mates(group: Ints, ahead: list[int]) -> bool:
    """Whether those ahead are some of one group's members [R, C]: they may be held up by the rest of it elsewhere."""
    for mine in group.T:
        mates = np.flatnonzero(mine == mine[ahead[0]])
        if len(mates) < len(mine) and np.isin(ahead, mates).all() and len(mates) > len(ahead):
            return True
    return False


def verdict(most: Majority, change: savings.Change, alone: Verdict | None, blocks: Blocks) -> Verdict:
    """The verdict on most ranks, which became slow; ``alone`` is that on one of them against the few ahead, if any."""
    first, stop = (int(np.median([getattr(habit, name) for habit in most.habits])) for name in ("first", "stop"))
    waits = "waits" if len(most.ahead) == 1 else "wait"
    steps = f"steps became {ms(change.longer)} longer, and {names(most.ahead)} {waits} {ms(most.by_ns)} more in each"
    cause = alone.cause if alone is not None and alone.cause else "unknown"
    of_one = [f"rank {alone.ranks[0]} against these: {line}" for line in alone.evidence] if alone is not None else []
    return Verdict(
        kind="straggler",
        ranks=most.ranks,
        cause=cause,
        since_step=since(blocks, first),
        until_step=until(blocks, stop),
        cost_ms_per_step=change.longer / 1e6,
        cost_ratio=change.longer / average(blocks.period[first:stop]),
        confidence=0.9,
        explained=alone.explained if alone is not None else None,
        partial=alone.partial if alone is not None else None,
        evidence=(f"{len(most.ranks)} of {len(blocks.ranks)} ranks became slow together: {steps}", *of_one),
        shown_ms=0.0,
    )


def beside(balanced: Verdict, most: Majority) -> Verdict:
    """The verdict that names no rank, with what is known of the few ahead; it clears none."""
    advice = f"compare batches and clocks of {names(most.ahead)} with those of the others"
    return replace(balanced, confidence=UNSURE, evidence=(str(most), *balanced.evidence), advice=(advice,))


def _of_one_time(habits: list[Habit]) -> bool:
    begun, ended = [habit.first for habit in habits], [habit.stop for habit in habits]
    return max(begun) - min(begun) <= _TOGETHER and max(ended) - min(ended) <= _TOGETHER
