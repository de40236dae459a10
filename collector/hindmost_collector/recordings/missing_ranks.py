"""Missing ranks: ranks without files, or with cut ones, in a recording, and what can be judged without them.

Waits are known only among ranks whose collectives were all recorded. Where some are missing, a log of the steps of
all ranks is used instead; without one, the time that all others waited together is reported. A rank that was cut off
at the end counts as far as its file goes, and then so do the others: a cut file says nothing about the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from hindmost_judge.encoding import codes
from hindmost_judge.model import Run, Unrecorded, rows, without_waits
from hindmost_judge.timeline import matching
from hindmost_judge.verdict.wording import names

from hindmost_collector.formats import flight_recorder
from hindmost_collector.recordings import rank_mapping
from hindmost_collector.recordings.tables import MOST_RANKS, bounds, select

if TYPE_CHECKING:
    import pandas as pd
    from hindmost_judge.model import Table
    from hindmost_judge.types import Array

#: Transfers of one size take about this quantile of what they took, the waiting of all in the rest left out.
_UNHINDERED = 0.1
#: With fewer operations of a rank, or steps, common waiting cannot be separated from the scatter of transfers.
_OPERATIONS, _STEPS = 100, 10
#: Where a log of the steps has all of a job, it is better than collectives of less than this share of it.
_BETTER_LOGGED = 0.5
#: A rank is in most of a communicator's operations, or it is not one that meets the others there.
_LEAST_SHARE = 0.05


def marked(run: Run, sources: Sequence[Run]) -> Run:
    """The run with notes on its missing ranks, without data that is useless without them, and marked for the judge."""
    world = _world(run)
    if rows(run.ranks) < 2 or rows(run.operations):
        return run  # files of a single rank have their own note; a graph of operations has one worker for several
    run = _noted(run, [note for one in sources for note in _missing(one, world)])
    waits = matching.synchronising(run.collectives, codes(run.collectives["op"])).any()
    judged = _by_collectives if waits else _by_steps
    names_of = {name: next((one.job.source for one in sources if rows(one.tables()[name])), "") for name in _TABLES}
    return judged(run, world, names_of)


#: Tables that tell who is late, each of one kind of file.
_TABLES = ("steps", "collectives")


def _noted(run: Run, notes: Sequence[str]) -> Run:
    return replace(run, notes=(*run.notes, *notes))


def _world(run: Run) -> set[int]:
    """All ranks, as far as anything here tells: by the number of them, or by the highest one."""
    seen = {rank for rank in run.ranks["rank"].tolist() if rank >= 0}
    size = max(run.job.world_size or 0, max(seen, default=-1) + 1)
    return set(range(size)) if size <= MOST_RANKS else seen


def _missing(one: Run, world: set[int]) -> list[str]:
    """A note on the ranks of which a kind of file has nothing, where it is one that has a file a rank."""
    if not any(rows(part) for part in (one.steps, one.collectives, one.in_flight)):
        return []
    lacking = sorted(world - set(one.ranks["rank"].tolist()))
    if not lacking:
        return []
    if rank_mapping.GUESSED in one.notes:
        return [f"{one.job.source}: the files of {len(lacking)} of {len(world)} ranks are missing (ranks unknown)."]
    are = "'s file is missing" if len(lacking) == 1 else ": their files are missing"
    return [f"{one.job.source}: {names(lacking)}{are}."]


def _cut(source: str, extent: Extent, *, aside: bool) -> str:
    return f"{source}: {extent}: {'too little to judge' if aside else 'only the part that all ranks have is judged'}."


def _by_steps(run: Run, world: set[int], source: Mapping[str, str]) -> Run:
    """Where only a log of the steps tells of all ranks: judged as far as all have it, those aside who hardly do."""
    if not rows(run.steps):
        return run
    cut = step_extents(run.steps)
    run = _noted(run, [_cut(source["steps"], one, aside=one.thin) for one in cut])
    thin = {one.rank for one in cut if one.thin}
    mask = _within(run.steps["step"], cut) & ~np.isin(run.steps["rank"], sorted(thin))
    unseen = sorted((world - set(run.steps["rank"].tolist())) | thin)
    steps = run.steps if mask.all() else select(run.steps, mask)
    return replace(run, steps=steps, unrecorded=Unrecorded(tuple(unseen)) if unseen else run.unrecorded)


def _by_collectives(run: Run, world: set[int], source: Mapping[str, str]) -> Run:
    """Where collectives tell who waits for whom: among all, or among those whose files are there, or not at all."""
    of_steps = step_extents(run.steps)
    run = _noted(run, [f"{source['steps']}: {step}." for step in of_steps])
    rings = source["collectives"] == flight_recorder.NAME  # they hold what was last, of each rank another part
    cut = [] if rings else operation_extents(run.collectives)
    logged = (set(run.steps["rank"].tolist()) if rows(run.steps) else set()) - {step.rank for step in of_steps}
    seen = set(run.collectives["rank"].tolist())
    unseen = (world - seen) | {one.rank for one in cut if one.thin}
    most = (world - seen) | {one.rank for one in cut if one.share < _BETTER_LOGGED}
    apart = _meet_separately(run, seen - most)
    by_steps = bool(most) and not apart and world <= logged
    unseen = most if by_steps else unseen
    run = _noted(run, [_cut(source["collectives"], one, aside=one.rank in unseen) for one in cut])
    if not unseen:
        first, last = common(cut)
        return replace(_shortened(run, cut), unrecorded=Unrecorded((), judged=max(last - first, 0.0))) if cut else run
    missing = Unrecorded(tuple(sorted(unseen)), _together(run, unseen), apart, by_steps)
    if by_steps:
        run = _noted(
            run, [f"Who waits for whom is not known of {names(missing.ranks)}: judged by the log of the steps."]
        )
    aside = np.isin(run.collectives["rank"], missing.ranks) | apart  # separate groups may wait for missing ranks
    run = without_waits(_shortened(run, [one for one in cut if one.rank not in unseen]), aside)
    guessed = rank_mapping.GUESSED in run.notes  # nothing tells whose files these are: nor, then, whose are missing
    return replace(run, unrecorded=replace(missing, ranks=()) if guessed and apart else missing)


def _shortened(run: Run, cut: Sequence[Extent]) -> Run:
    """The run as far as all ranks have it."""
    if not cut:
        return run
    table = run.collectives
    if all(extent.what == "step" for extent in cut):
        return without_waits(run, ~_within(table["step"], cut))
    mask = np.ones(rows(table), bool)
    for comm in np.unique(table["comm"]).tolist():
        mine = table["comm"] == comm
        mask[mine] = _within(table["seq"][mine], cut)
    return without_waits(run, ~mask)


def _within(number: Array, cut: Iterable[Extent]) -> Array:
    """Which of these numbers, steps' or operations', are in the part of the whole that all of these files have."""
    first, last = common(extent for extent in cut if not extent.thin)
    known = number[number >= 0]
    low, count = (int(known.min()), int(known.max()) - int(known.min()) + 1) if len(known) else (0, 1)
    return np.asarray((number < 0) | ((number >= low + first * count) & (number < low + last * count)))


def _meet_separately(run: Run, seen: set[int]) -> bool:
    """Whether the ranks that were seen do not all meet in the same collectives."""
    table = run.collectives
    mask = np.isin(table["rank"], sorted(seen)) & (table["peer"] < 0)
    comms, which = np.unique(table["comm"][mask], return_inverse=True)
    ranks, row = np.unique(table["rank"][mask], return_inverse=True)
    counts = np.zeros((len(comms), len(ranks)), np.int64)
    np.add.at(counts, (which, row), 1)
    used = counts.sum(axis=1) > _LEAST_SHARE * counts.sum()
    return bool((counts[used] == 0).any())


def _together(run: Run, unseen: set[int]) -> float | None:
    """Share of the time for which all recorded ranks waited at once in collectives with missing members.

    What the last of them to arrive took is the transfer and their common waiting. Transfers of one kind and size, or
    of a larger one, show the time without waiting.
    """
    table = run.collectives
    code, names_of = codes(table["op"])
    mask = matching.synchronising(table, (code, names_of)) & ~np.isin(table["rank"], sorted(unseen))
    steps = np.unique(table["step"][mask])
    if np.count_nonzero(mask) < _OPERATIONS * len(np.unique(table["rank"][mask])) or 1 < len(steps) < _STEPS:
        return None
    import pandas as pd  # noqa: PLC0415 - where used: a whole recording does without

    columns = ("rank", "comm", "seq", "bytes", "duration_ns", "start_ns")
    frame = pd.DataFrame({name: table[name][mask] for name in columns} | {"op": code[mask]})
    shared = frame.groupby(["comm", "op", "seq"], sort=False).agg({"duration_ns": "min", "bytes": "max"}).reset_index()
    waited = 0.0
    for _, alike in shared.groupby("op"):
        least = alike.groupby("bytes")["duration_ns"].quantile(_UNHINDERED).sort_index(ascending=False).cummin()
        beyond = np.maximum(alike["duration_ns"] - alike["bytes"].map(least), 0.0)
        waited += float(beyond[alike["comm"].isin(_comms(run.communicators, unseen))].sum())
    span = _span(frame, run.job.pace_ns)
    return min(waited / span, 1.0) if span else None


def _comms(communicators: Table, unseen: set[int]) -> list[int]:
    """Communicators that any of these is a member of, as far as is known; all where it is not."""
    comm, rank = communicators["comm"], communicators["rank"]
    found = set(comm[np.isin(rank, sorted(unseen))].tolist())
    for one in np.unique(comm).tolist():
        mine = comm == one
        if mine.sum() < communicators["size"][mine].max():
            found.add(one)
    return sorted(found) or np.unique(comm).tolist()


def _span(frame: pd.DataFrame, pace_ns: float | None) -> float:
    """How long a rank was recorded, ns; 0 where unknown."""
    one = frame[frame["rank"] == frame["rank"].iloc[0]]
    if (one["start_ns"] >= 0).all() and len(one) > 1:
        return float((one["start_ns"] + one["duration_ns"]).max() - one["start_ns"].min())
    return pace_ns * len(one) if pace_ns else 0.0


#: A file that lacks less than this share of what others have, or than so many steps, ended when the job did.
_AT_ONCE, _STEPS_AT_ONCE = 0.03, 2
#: … or than so many operations: of few the share says little.
_OPERATIONS_AT_ONCE = 8
#: A file with less than this share of what others have, or than so many steps, is too little to judge by.
_THIN, _THIN_STEPS = 0.1, 10


@dataclass(frozen=True)
class Extent:
    """What a rank's file has of what is numbered from ``begin`` to ``end`` in any: from ``first`` to ``last``."""

    rank: int
    first: int
    last: int
    begin: int
    end: int
    what: str  # step or operation
    steps: float  # that it covers, as far as known

    @property
    def share(self) -> float:
        """Share of the whole that the file covers."""
        return (self.last - self.first + 1) / (self.end - self.begin + 1)

    @property
    def thin(self) -> bool:
        """Whether it is too little to judge the rank by."""
        return self.share < _THIN or self.steps < _THIN_STEPS

    def __str__(self) -> str:
        if self.last < self.end:
            return f"{names([self.rank])}'s file ends at {self.what} {self.last:,} of {self.end:,}"
        return f"{names([self.rank])}'s file begins at {self.what} {self.first:,} of {self.end:,}"


def step_extents(table: Table) -> list[Extent]:
    """The ranks whose steps end, or begin, well apart from the others'."""
    if not rows(table):
        return []
    ranks, first, last = bounds(table["rank"], table["step"])
    begin, end = int(first.min()), int(last.max())
    found = (
        Extent(rank, one, other, begin, end, "step", other - one + 1)
        for rank, one, other in zip(ranks.tolist(), first.tolist(), last.tolist(), strict=True)
    )
    return [one for one in found if _is_cut(one, _STEPS_AT_ONCE)]


def operation_extents(table: Table) -> list[Extent]:
    """The same for operations, which members of a communicator number alike; in steps where those are known."""
    indices = np.flatnonzero((table["peer"] < 0) & (table["seq"] >= 0)) if rows(table) else np.empty(0, np.int64)
    numbered = len(np.unique(table["step"][indices]))
    found: dict[int, Extent] = {}
    for comm in np.unique(table["comm"][indices]).tolist():
        mine = indices[table["comm"][indices] == comm]
        ranks, first, last = _nearly_all(table["rank"][mine], table["seq"][mine])
        begin, end = int(first.min()), int(last.max())
        least = max(_OPERATIONS_AT_ONCE, _STEPS_AT_ONCE * (end - begin + 1) / numbered if numbered > 1 else 0)
        for rank, one, other in zip(ranks.tolist(), first.tolist(), last.tolist(), strict=True):
            extent = Extent(rank, one, other, begin, end, "operation", float("inf"))
            if _is_cut(extent, least) and (rank not in found or extent.share < found[rank].share):
                found[rank] = extent
    return [_in_steps(one, table, indices) for one in found.values()]


def common(cut: Iterable[Extent]) -> tuple[float, float]:
    """Which part of the whole all of these have: the shares of it at which that begins and ends."""
    first, last = 0.0, 1.0
    for extent in cut:
        count = extent.end - extent.begin + 1
        first = max(first, (extent.first - extent.begin) / count)
        last = min(last, (extent.last - extent.begin + 1) / count)
    return first, last


def _is_cut(one: Extent, least: float) -> bool:
    count = one.end - one.begin + 1
    return max(one.end - one.last, one.first - one.begin) > max(_AT_ONCE * count, least)


def _in_steps(one: Extent, table: Table, indices: Array) -> Extent:
    """The same in steps, where operations have them."""
    step = table["step"][indices]
    mine = step[(table["rank"][indices] == one.rank) & (step >= 0)]
    known = step[step >= 0]
    if not len(mine) or len(np.unique(known)) < _STEPS_AT_ONCE:
        return one
    first, last = int(mine.min()), int(mine.max())
    return Extent(one.rank, first, last, int(known.min()), int(known.max()), "step", last - first + 1)


#: Numbers of this share of a rank's operations at either end may be strays, which no other rank numbers alike.
_STRAY = 0.01


def _nearly_all(rank: Array, number: Array) -> tuple[Array, ...]:
    """Ranks, and between which numbers nearly all operations of each are."""
    ranks = np.unique(rank)
    bounds = []
    for one in ranks.tolist():
        mine = number[rank == one]
        trimmed = int(_STRAY * len(mine))
        ordered = np.partition(mine, (trimmed, len(mine) - 1 - trimmed))
        bounds.append((ordered[trimmed], ordered[len(mine) - 1 - trimmed]))
    first, last = np.array(bounds, np.int64).T
    return ranks, first, last
