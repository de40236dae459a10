"""Stalls that ended: a job that stood still for as long as a hang does, was looked at, and went on.

Whether anybody looked, stacks tell: they are taken when a job stands still. A verdict on the whole job says nothing of
such a stall, for no rank is slow by habit; the notes do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hindmost.attach.stacks import UNREAD

from hindmost_collector.detectors import hang
from hindmost_collector.model import NONBLOCKING, Job, rows
from hindmost_collector.robust import median
from hindmost_collector.wording import names
from hindmost_collector.wording_stop import source_line

if TYPE_CHECKING:
    from hindmost_collector.align import Ints
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.model import Run
    from hindmost_collector.settings import Settings

#: Stalls that are told one by one; more of them are counted.
_TOLD = 3


@dataclass(frozen=True)
class _Stall:
    """Nothing began or ended from ``since`` to ``until``; ``looks`` are the rows of the stacks taken meanwhile."""

    since: int
    until: int
    looks: Ints


def notes(run: Run, blocks: Blocks | None, settings: Settings) -> list[str]:
    """A sentence on each stall: from when to when, who was waited for in what, where that rank was."""
    if not rows(run.stacks) or not rows(run.collectives):
        return []
    moments = _moments(run)
    step_ns = float(median(blocks.period)) if blocks is not None else float("nan")
    stalls = _stalls(run, moments, settings.patience_ns(step_ns))
    began = run.job.started_ns or int(moments[0])
    found = [_sentence(run, one, began) for one in stalls[:_TOLD]]
    more = len(stalls) - len(found)
    return [*found, f"the job stood still {more} time{'s' if more > 1 else ''} more"] if more else found


def _moments(run: Run) -> Ints:
    """When anything began or ended, in order."""
    tables = [one for one in (run.collectives, run.steps) if rows(one)]
    ends = [one["start_ns"] + np.maximum(one["duration_ns"], 0) for one in tables]
    return np.asarray(np.unique(np.concatenate([*(one["start_ns"] for one in tables), *ends])))


def _stalls(run: Run, moments: Ints, patience_ns: float) -> list[_Stall]:
    """The gaps of at least so long between two moments in which stacks were taken, first to last."""
    place = np.searchsorted(moments, run.stacks["time_ns"], side="right")
    return [
        _Stall(int(moments[at - 1]), int(moments[at]), np.flatnonzero(place == at))
        for at in np.unique(place).tolist()
        if 0 < at < len(moments) and moments[at] - moments[at - 1] >= patience_ns
    ]


def _sentence(run: Run, stall: _Stall, began: int) -> str:
    since, until = ((when - began) / 1e9 for when in (stall.since, stall.until))
    told = [f"the job stood still from {since:.1f} s to {until:.1f} s and went on"]
    late, waiting, where = _waited_for(run, stall)
    if late:
        who = "1 rank" if waiting == 1 else f"{waiting} ranks"
        told.append(f"{who} waited for {names(late)} in {where}")
    elif waiting:
        told.append(f"every rank was inside {where}")
    return "; ".join([*told, *_stood(run, stall, late)])


def _waited_for(run: Run, stall: _Stall) -> tuple[list[int], int, str]:
    """Ranks that were in no operation while others waited for them, how many did, and in what."""
    table = run.collectives
    begun = (table["start_ns"] <= stall.since) & (table["flags"] & NONBLOCKING == 0)
    inside = np.flatnonzero(begun & (table["start_ns"] + table["duration_ns"] >= stall.until))
    if not len(inside):
        return [], 0, ""
    waiting = set(table["rank"][inside].tolist())
    missing = {at: hang.members(run, table["comm"][at]) - waiting for at in inside.tolist()}
    first = max(missing, key=lambda at: len(missing[at]) > 0)
    late = sorted(set().union(*missing.values()))
    return late, len(waiting), f"{table['op'][first]} number {table['seq'][first]}"


def _stood(run: Run, stall: _Stall, late: list[int]) -> list[str]:
    """Where one of these was, else any, and which file still has it: of each rank the last look is kept."""
    stacks = run.stacks
    read = [at for at in stall.looks.tolist() if not str(stacks["text"][at]).startswith(UNREAD)]
    of_late = [at for at in read if stacks["rank"][at] in late]
    if not read:
        return []
    at = max(of_late or read, key=lambda one: (stacks["time_ns"][one], -stacks["rank"][one]))
    rank = int(stacks["rank"][at])
    found = [f"rank {rank} was at {source_line(str(stacks['text'][at]))}"]
    last = stacks["time_ns"][at] == stacks["time_ns"][stacks["rank"] == rank].max()
    if last and run.job.source == Job.source:
        found.append(f"its threads are in stacks/{rank}.txt of the run directory")
    return found
