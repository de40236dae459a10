"""The sentences of a job in which no rank is named: how even its ranks are, and who is waited for without a cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median
from hindmost_judge.verdict.wording import ms, percent, shares

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.causes.table import Cause

#: Share of a step from which on transfers are mentioned though no rank is slow.
_MANY_TRANSFERS = 0.05
#: A smaller typical delay, as a share of the step, is negligible.
_NOTHING = 0.02
#: A larger one is too much to call the job balanced.
_MUCH = 0.05
#: CPUs that two threads share give one of them up to a third less: a rank that needs more does not for its CPU.
_FOR_ITS_CPU = 0.33
#: Share of all waiting that one rank must have caused for the report to name it there.
_MOSTLY = 0.5
#: The steps in which others wait are counted where this share of the wait is in this share of the steps.
_MOST_OF_IT, _RARELY = 0.9, 0.1
#: Share of the collectives that such a rank enters last where no scheduler makes it late.
_NEARLY_ALWAYS = 0.75
#: What would say whether a rank is slow, and why.
_STACKS = "while such a job runs, `hindmost attach --stacks --job ID` shows where each rank is"
TELLING = (f"let the job run for more steps; {_STACKS}",)
TELLING_ON_SHARED_CPUS = (
    "run fewer ranks per node, or on nodes with more CPUs: each rank needs its own; then see which rank comes last",
)


def balanced(
    blocks: Blocks, wasted: float, least: float, needs: Blocks | None = None, *, queued: bool = False
) -> tuple[list[str], bool]:
    """How even the ranks are, and whether that is sure; with what they ``needs``, where they share CPUs.

    A rank is named from ``least`` of a step on. ``queued``: the rank that is waited for most was seen to wait for a CPU
    for as long as it was late.
    """
    row, most = _most(blocks)
    share = most / blocks.step_ns
    last = f"rank {int(blocks.ranks[row])} typically comes last, {percent(share)} of a step after its peers"
    judged, sure = _how_surely(share, least)
    found = [f"{last}: {judged}"]
    if needs is not None:
        row, most = _most(needs)
        usual = float(median(needs.own))
        beyond = most / max(usual, 1.0)
        who, work = f"rank {int(needs.ranks[row])}", "CPU and file I/O time"
        needy = f"{who} needs {percent(beyond)} more {work} than its peers"
        on_shared, sure = _last_on_shared_cpus(blocks, last, queued=queued)
        found = [f"{needy}: negligible", on_shared]
        if beyond >= _FOR_ITS_CPU:
            typical = median(needs.own, axis=1)
            took = f"{work} {ms(typical[row])}, others {ms(float(median(np.delete(typical, row))))}"
            found, sure = [f"{who} is suspected ({took}), but ranks share CPUs, which can cause that too"], False
    transfers = float(median(blocks.transfer[:1])) / blocks.step_ns
    if transfers >= _MANY_TRANSFERS:
        beside = ", overlapped with computing" if blocks.overlapped else ""
        found.append(f"transfers: {ms(transfers * blocks.step_ns)} per step ({percent(transfers)}{beside})")
    if wasted > 0.05 * blocks.step_ns:
        found.append(f"ranks wait {ms(wasted)} per step for the last to arrive, {_in_turn(blocks)}")
    return found, sure


def _how_surely(share: float, least: float) -> tuple[str, bool]:
    """Why no rank is named for so large a share of a step, where ``least`` is asked for; whether that clears it."""
    if share < _NOTHING:
        return "negligible", True
    if share < least:
        return f"below the threshold of {percent(least)}", True
    return "suspected, not proven", share < _MUCH


def _last_on_shared_cpus(blocks: Blocks, last: str, *, queued: bool) -> tuple[str, bool]:
    """Who comes last there, and whether the scheduler may be the cause: it delays one rank now and another then.

    Of one rank that is late by much and was not seen to be ``queued`` the cause is not known.
    """
    row = waited_for_most(blocks)
    often = float(np.nanmean(blocks.last[row])) if row is not None else 0.0
    unsure = row is not None and not queued and float(median(blocks.excess[row])) >= _MUCH * blocks.step_ns
    if row is None or (often < _NEARLY_ALWAYS and not unsure):
        return f"{last}: the scheduler's doing, since ranks share CPUs", True
    late = f"rank {int(blocks.ranks[row])} is last to arrive in {percent(often)} of the collectives"
    if queued:
        return f"{late}, waiting for a CPU: check its binding, quota and priority", True
    return f"{late}; the cause was not measured", not unsure


def _in_turn(blocks: Blocks) -> str:
    """Whether ranks take turns in being last."""
    row = waited_for_most(blocks)
    if row is None:
        return "a different rank each time"
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
    """The row of the largest typical delay, and that delay; 0 where no rank has one."""
    typical = median(blocks.excess, axis=1)
    row = int(np.nanargmax(typical)) if not np.isnan(typical).all() else 0
    return row, max(float(np.nan_to_num(typical[row])), 0.0)


def waited_for(blocks: Blocks, row: int, shared: str, late: float, cause: Cause) -> list[str]:
    """Who is waited for where ranks share CPUs, with no known cause; it is ``late`` by so many ns a step."""
    caused = np.nan_to_num(blocks.caused).mean(axis=1)
    last = f"rank {int(blocks.ranks[row])} is last to arrive in {percent(float(np.nanmean(blocks.last[row])))}"
    waits = f"others wait {ms(caused[row])} per step for it ({percent(caused[row] / blocks.step_ns)})"
    share = f"that is {percent(caused[row] / caused.sum())} of all waiting in the job"
    lines = [f"{last} of the collectives: {waits}", share, f"{shared}: it may have waited for one"]
    if cause.cause == "cpu_contention":  # by its process: of its main thread that is known where it is said elsewhere
        return [*lines, "threads of its process waited for a CPU, perhaps not while it was late"]
    return [*lines, *shares(late, cause)]
