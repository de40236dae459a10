"""Stalls that ended: a job that stopped for as long as a hang does, was observed, and went on.

Stacks show whether it was observed: they are taken when a job stops. A verdict on the whole job does not mention
such a stall, since no rank is persistently slow; the headline and the notes do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import stopped
from hindmost_judge.detect import hang
from hindmost_judge.model import NONBLOCKING, Job, rows
from hindmost_judge.stats.robust import median
from hindmost_judge.types import UNREAD
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.advice import of_stopped, place
from hindmost_judge.verdict.schema import Stall, Verdict
from hindmost_judge.verdict.wording import names, nodes_of, whole_nodes
from hindmost_judge.verdict.wording_stop import source_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Ints

#: Most stalls that are reported one by one; more of them are counted.
_TOLD = 3


@dataclass(frozen=True)
class _Gap:
    """Nothing began or ended from ``since`` to ``until``; ``looks`` are the rows of the stacks taken meanwhile."""

    since: int
    until: int
    looks: Ints


def find(run: Run, blocks: Blocks | None, settings: Settings) -> tuple[tuple[Stall, ...], list[str]]:
    """The stalls, and a sentence on each: from when to when, who was waited for in what, where that rank was."""
    if not rows(run.stacks) or not rows(run.collectives):
        return (), []
    moments = _moments(run)
    step_ns = float(median(blocks.period)) if blocks is not None else float("nan")
    began = run.job.started_ns or int(moments[0])
    gaps = _gaps(run, moments, settings.patience_ns(step_ns))
    stalls = tuple(_stall(run, one, began) for one in gaps)
    told = [_sentence(run, stall, gap) for stall, gap in zip(stalls[:_TOLD], gaps, strict=False)]
    more = len(stalls) - len(told)
    return stalls, [*told, f"{more} more stall{'s' if more > 1 else ''}"] if more else told


def beside(found: list[Verdict], stalls: Sequence[Stall], run: Run) -> list[Verdict]:
    """A job with a stall is no job without anything to act on, however even its other steps are."""
    if not stalls:
        return found
    advice = tuple(_advice(stalls[-1], run))
    why = _why(stalls)
    return [
        one
        if one.ranks or one.kind not in ("balanced", "insufficient_data")
        else replace(one, evidence=(why, *one.evidence), advice=advice)
        for one in found
    ]


def _advice(stall: Stall, run: Run) -> list[str]:
    """What to look at: what stopped the ranks, what they share, and where one of them was."""
    if stall.stopped_s:
        return [of_stopped(place(run, [int(rank) for rank in stall.stopped_s]))]
    if stall.node is not None:
        return [f"check {stall.node}: network, disks, kernel log (`dmesg -T`)"]
    if stall.line is not None:
        return [f"find out what {stall.line.replace(': ', ' waited for at ', 1)}"]
    return [
        f"find out what {names(stall.ranks)} did then" if stall.ranks else "check what all ranks share: the network"
    ]


def _why(stalls: Sequence[Stall]) -> str:
    """The longest stall in one line."""
    longest = max(stalls, key=lambda one: one.until_s - one.since_s)
    return "; ".join(_in_words(longest))


def _moments(run: Run) -> Ints:
    """When anything began or ended, in order."""
    tables = [one for one in (run.collectives, run.steps) if rows(one)]
    ends = [one["start_ns"] + np.maximum(one["duration_ns"], 0) for one in tables]
    return np.asarray(np.unique(np.concatenate([*(one["start_ns"] for one in tables), *ends])))


def _gaps(run: Run, moments: Ints, patience_ns: float) -> list[_Gap]:
    """The gaps of at least so long between two moments in which stacks were taken, first to last."""
    place = np.searchsorted(moments, run.stacks["time_ns"], side="right")
    return [
        _Gap(int(moments[at - 1]), int(moments[at]), np.flatnonzero(place == at))
        for at in np.unique(place).tolist()
        if 0 < at < len(moments) and moments[at] - moments[at - 1] >= patience_ns
    ]


def _stall(run: Run, gap: _Gap, began: int) -> Stall:
    late, waiting, where = _waited_for(run, gap)
    halted = stopped.during(run, gap.since, gap.until)
    if halted and not late:  # it was stopped inside the operation
        late, waiting = sorted(halted), max(waiting - len(halted), 0)
    at = _seen(run, gap, late)
    rank, text = (int(run.stacks["rank"][at]), str(run.stacks["text"][at])) if at is not None else (-1, "")
    return Stall(
        since_s=(gap.since - began) / 1e9,
        until_s=(gap.until - began) / 1e9,
        ranks=tuple(late),
        waiting=waiting,
        operation=where or None,
        line=f"rank {rank}: {source_line(text)}" if at is not None else None,
        node=" and ".join(nodes_of(run, late)) or None,
        stopped_s={str(rank): seconds for rank, seconds in halted.items()},
    )


def _sentence(run: Run, stall: Stall, gap: _Gap) -> str:
    nodes = whole_nodes(run, stall.ranks) if stall.ranks else []
    return "; ".join([wording.STALL + "; ".join(_in_words(stall)), *nodes, *_stood(run, gap, list(stall.ranks))])


def _in_words(stall: Stall) -> list[str]:
    """When nothing moved, and who waited for whom."""
    lasted = stall.until_s - stall.since_s
    when = f"{lasted:.1f} s without progress, from {stall.since_s:.1f} s after the job's start"
    seconds = {int(rank): halted for rank, halted in stall.stopped_s.items()}
    found = [wording.stopped(seconds)] if seconds else []
    if not stall.waiting:
        return [when, *found]
    if stall.ranks:
        who = "1 rank" if stall.waiting == 1 else f"{stall.waiting} ranks"
        return [when, *found, f"{who} waited for {names(stall.ranks)} in {stall.operation}"]
    return [when, *found, f"every rank was in {stall.operation}"]


def _waited_for(run: Run, stall: _Gap) -> tuple[list[int], int, str]:
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


def _seen(run: Run, gap: _Gap, late: list[int]) -> int | None:
    """The row of the last readable observation of one of these, else of any; each rank's last one is kept."""
    stacks = run.stacks
    read = [at for at in gap.looks.tolist() if not str(stacks["text"][at]).startswith(UNREAD)]
    of_late = [at for at in read if stacks["rank"][at] in late]
    return max(of_late or read, key=lambda one: (stacks["time_ns"][one], -stacks["rank"][one]), default=None)


def _stood(run: Run, gap: _Gap, late: list[int]) -> list[str]:
    """Where one of these was, else any, and which file still has it."""
    stacks, at = run.stacks, _seen(run, gap, late)
    if at is None:
        return []
    rank = int(stacks["rank"][at])
    found = [f"rank {rank} was at {source_line(str(stacks['text'][at]))}"]
    last = stacks["time_ns"][at] == stacks["time_ns"][stacks["rank"] == rank].max()
    if last and run.job.source == Job.source:
        found.append(f"its threads are in stacks/{rank}.txt of the run directory")
    return found
