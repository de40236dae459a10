"""The sentences of a job in which nobody is named: how even its ranks are, and who is waited for, nobody knows why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.judgement.wording import ALL_CLEAR, ms, shares
from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.explain.causes import Cause
    from hindmost_collector.timeline.blocks import Blocks

#: Share of a step from which on what transfers take is told of a job in which nobody is slow.
_MANY_TRANSFERS = 0.05
#: Lateness by habit of a larger share of a step is something, though not sure enough for a name.
_NOTHING = 0.02
#: … and where it is so large a share that it can hardly be too little to name.
_MUCH = 0.05
#: CPUs that two threads share give one of them up to a third less: who needs more beyond that does not for its CPU.
_FOR_ITS_CPU = 0.33
#: How a line ends that tells of such a rank.
UNSURE = ": too unsure to name it"
#: … and of one that is late by less than was asked for.
ASKED = " that a rank is named for"
#: … of one that is late among uneven work that nobody counted.
SLOW_OR_NOT = "slow, or given longer batches by chance, which cannot be told"
#: Share of all waiting that one rank must have caused for it to be told as the one that was waited for.
_MOSTLY = 0.5
#: In how many steps a rank is waited for is told where so much of the waiting is in so small a share of them.
_MOST_OF_IT, _RARELY = 0.9, 0.1
#: Share of the collectives that such a rank enters last where no scheduler makes it late.
_NEARLY_ALWAYS = 0.75
#: What a line on ranks that are waited for, nobody knows why, has in it.
WAITED_FOR = "made the others wait"
#: What would tell why.
TELLING_ON_SHARED_CPUS = (
    "give every rank a CPU of its own (fewer ranks, more CPUs, one bound to each) and see who still comes last;"
    " `hindmost attach --stacks` says where ranks stand, `with hindmost.phase(NAME):` how long a part of a step takes"
)


def balanced(
    blocks: Blocks, wasted: float, least: float, needs: Blocks | None = None, *, queued: bool = False
) -> list[str]:
    """How even the ranks are; with what they ``needs``, where they share CPUs and lateness is the scheduler's doing.

    Nobody is named for less than ``least`` of a step, however surely. ``queued``: whoever is waited for most was seen
    to wait for a CPU for as long as it was late.
    """
    row, most = _most(blocks)
    latest, share = f"rank {int(blocks.ranks[row])}", most / blocks.step_ns
    found = [f"the latest rank by habit is {latest}, by {share:.1%} of a step{_how_surely(share, least)}"]
    if needs is not None:
        row, most = _most(needs)
        asks, beyond = f"rank {int(needs.ranks[row])}", most / max(float(median(needs.own)), 1.0)
        even = f"no rank needs much more CPU and file time than its peers: {asks} needs most, {beyond:.1%} more"
        found = [even, _last_on_shared_cpus(blocks, latest, share, queued=queued)]
        if beyond >= _FOR_ITS_CPU:
            found = [f"{asks} needs {beyond:.1%} more CPU and file time than its typical peer{UNSURE}"]
    transfers = float(median(blocks.transfer[:1])) / blocks.step_ns
    if transfers >= _MANY_TRANSFERS:
        beside = ", beside computing" if blocks.overlapped else ""
        found.append(f"transfers take {ms(transfers * blocks.step_ns)} a step ({transfers:.0%} of it{beside})")
    if wasted > 0.05 * blocks.step_ns:
        found.append(f"ranks wait {ms(wasted)} a step for whoever is last, {_in_turn(blocks)}")
    return found


def _how_surely(share: float, least: float) -> str:
    """Why nobody is named for so large a share of a step, where ``least`` is asked for."""
    if share < _NOTHING:
        return ALL_CLEAR
    if share < least:
        return f": less than the {least:.1%}{ASKED}"
    return ": too unsure, or too little, to name it" if share < _MUCH else UNSURE


def _last_on_shared_cpus(blocks: Blocks, latest: str, share: float, *, queued: bool) -> str:
    """Who comes last there: a scheduler holds up now one rank and now another, and not one of them nearly always.

    Of one rank that is late by much and was not seen to be ``queued`` nobody knows whether that is its doing.
    """
    row = waited_for_most(blocks)
    often = float(np.nanmean(blocks.last[row])) if row is not None else 0.0
    unsure = row is not None and not queued and float(median(blocks.excess[row])) >= _MUCH * blocks.step_ns
    if row is None or (often < _NEARLY_ALWAYS and not unsure):
        return f"{latest} comes last, by {share:.1%} of a step: where ranks share CPUs that is the scheduler's doing"
    told = f"rank {int(blocks.ranks[row])} comes last in {often:.0%} of the collectives"
    if queued:
        return f"{told}, waiting for a CPU: that seldom comes of sharing alone; look at its binding, quota and priority"
    return f"{told}; why it is late was not measured{UNSURE if unsure else ''}"


def _in_turn(blocks: Blocks) -> str:
    """Whether whoever is last is now one rank and now another."""
    row = waited_for_most(blocks)
    if row is None:
        return "but that is a different one each time"
    caused = np.sort(np.nan_to_num(blocks.caused[row]))[::-1]
    steps = int(np.searchsorted(np.cumsum(caused), _MOST_OF_IT * caused.sum())) + 1
    few = f", in {steps} of {len(caused)} steps" if steps <= max(_RARELY * len(caused), 1) else ""
    return f"mostly rank {int(blocks.ranks[row])}{few}"


def waited_for_most(blocks: Blocks) -> int | None:
    """The row of the rank that caused most of all waiting; ``None``: now one rank is last and now another."""
    caused = np.nan_to_num(blocks.caused).sum(axis=1)
    least = max(_MOSTLY, 1.5 / max(len(caused), 1)) * caused.sum()  # of two, one always has half
    return int(np.argmax(caused)) if least > 0 and caused.max() >= least else None


def _most(blocks: Blocks) -> tuple[int, float]:
    """The row of the largest typical excess, and that excess; 0 where nobody has one."""
    typical = median(blocks.excess, axis=1)
    row = int(np.nanargmax(typical)) if not np.isnan(typical).all() else 0
    return row, max(float(np.nan_to_num(typical[row])), 0.0)


def waited_for(blocks: Blocks, row: int, shared: str, late: float, cause: Cause) -> list[str]:
    """Who is waited for where ranks share CPUs, and that nobody knows why; it is ``late`` by so many ns a step."""
    caused = np.nan_to_num(blocks.caused).mean(axis=1)
    waits = f"{ms(caused[row])} a step ({caused[row] / blocks.step_ns:.0%} of it)"
    share = f"{caused[row] / caused.sum():.0%} of all that ranks wait for each other"
    often = f"came last in {float(np.nanmean(blocks.last[row])):.0%} of the collectives"
    unsure = f"{shared}: whether it was late for want of one cannot be told"
    if cause.cause == "cpu_contention":  # by its process: of its main thread that is known where it is told elsewhere
        rest = [f"{unsure}; threads of its process waited for one, perhaps not while it was late"]
    else:
        rest = [unsure, *shares(late, cause)]
    return [f"rank {int(blocks.ranks[row])} {WAITED_FOR} {waits}: {share}, and {often}", *rest]
