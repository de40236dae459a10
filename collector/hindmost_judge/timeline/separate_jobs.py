"""Runs that are several jobs to the judge: groups that never meet, ranks that leave, starts under one id.

Ranks of one job may never meet: an actor and a reward model, or two trainings that one command started, have steps of
different length. Neither waits for the other, so times of one say nothing about the other. If a rank is in no recorded
communicator, its partners are unknown, and all ranks are judged together.

Some jobs go on with fewer ranks: each period with the same members is judged as a separate job.

Jobs that are started again under one id with another number of ranks are a job of their own each time. Only new
processes make a new start. Where those that were there go on with others, or without, nothing is cut here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np

from hindmost_judge import encoding
from hindmost_judge.blocks import Blocks
from hindmost_judge.encoding import distinct_integers
from hindmost_judge.model import RUNNING, Incarnation, Run, Table, rows
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import median
from hindmost_judge.types import Array, Ints
from hindmost_judge.verdict.wording import names

#: Tables whose rows are a rank's own, and so go with its group.
_OF_RANKS = ("ranks", "steps", "collectives", "communicators", "intervals", "in_flight", "stacks", "rank_states")


def groups_that_never_meet(run: Run) -> list[Run]:
    """The run of each group, the first ranks' first; empty where all meet, or that is unknown."""
    ranks = distinct_integers(run.ranks["rank"])
    label = _labels(run, ranks) if len(ranks) > 3 else None
    if label is None:
        return []
    groups = [ranks[label == integer] for integer in distinct_integers(label)]
    return [run_of_ranks(run, group) for group in groups] if len(groups) > 1 else []


#: Typical ranks of groups with the same work take the same time for it, within this share.
_SAME_PACE = 0.03


def groups_do_the_same(groups: list[Run], blocks: Blocks) -> bool:
    """Whether all groups seem to do the same work in parallel, so that the times of their collectives compare."""
    self_time = [blocks.self_time[np.isin(blocks.ranks, group.ranks["rank"])] for group in groups]
    pace = [float(median(one)) for one in self_time]
    return bool(max(pace) <= (1 + _SAME_PACE) * min(pace))  # not where one is unknown


def groups_note(groups: list[Run]) -> str:
    """Which groups never meet, for the reader of the report."""
    each = "; ".join(names(group.ranks["rank"].tolist()) for group in groups[:4])
    more = f"; and {len(groups) - 4} more" if len(groups) > 4 else ""
    return f"{len(groups)} groups share no collective and are judged separately: {each}{more}"


def _labels(run: Run, ranks: Ints) -> Ints | None:
    """[R] the lowest place of any rank that each rank meets, directly or through others.

    ``None`` if some rank is not known to meet any other.
    """
    comm, row = _members(run, ranks)
    label = np.arange(len(ranks))
    if len(comm) == 0:
        return None
    met = np.bincount(comm)[comm] > 1  # with one recorded member, the other members of a communicator are unknown
    if len(distinct_integers(row[met])) < len(ranks):
        return None
    while True:
        lowest = np.full(int(comm.max()) + 1, len(ranks))
        np.minimum.at(lowest, comm, label[row])
        lower = label.copy()
        np.minimum.at(lower, row, lowest[comm])
        if (lower == label).all():
            return label
        label = lower


def _members(run: Run, ranks: Ints) -> tuple[Ints, Ints]:
    """Number of the communicator and place of the rank, of each membership that was defined, or else was seen."""
    table = run.communicators if rows(run.communicators) else run.collectives
    if rows(table) == 0 or (table is run.collectives and (table["comm"] == table["comm"][0]).all()):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    known = np.isin(table["rank"], ranks)
    _, comm = np.unique(table["comm"][known], return_inverse=True)
    pairs = distinct_integers(comm.astype(np.int64) * len(ranks) + np.searchsorted(ranks, table["rank"][known]))
    return pairs // len(ranks), pairs % len(ranks)


def run_of_ranks(run: Run, group: Ints) -> Run:
    """What was recorded of these ranks, and of the job."""
    parts = _chosen(run, _OF_RANKS, lambda table: np.isin(table["rank"], group))
    return Run(job=run.job, metrics=run.metrics, notes=run.notes, **parts)


def _chosen(run: Run, names: Sequence[str], which: Callable[[Table], Array]) -> dict[str, Any]:
    tables = run.tables()
    return {name: encoding.chosen(tables[name], which(tables[name])) for name in names}


@dataclass(frozen=True)
class MembershipChange:
    """Some ranks left after ``last_step`` and the others went on: the run before that and after it."""

    last_step: int
    before: Run
    after: Run

    def __str__(self) -> str:
        counts = rows(self.before.ranks), rows(self.after.ranks)
        return f"{counts[0]} ranks until step {self.last_step}, {counts[1]} since then: each part is judged separately"


#: Tables of what all ranks take part in.
_ENTERED = ("steps", "collectives")


def membership_change(run: Run, settings: Settings) -> MembershipChange | None:
    """The last departure after which enough steps followed; ``None`` where all left together, or still run."""
    states, steps = run.rank_states, run.steps
    gone = states["rank"][states["life"] != RUNNING]
    if rows(steps) == 0 or len(gone) == 0:
        return None
    ends = steps["start_ns"] + steps["duration_ns"]
    of_rank = {int(steps["rank"][mine[0]]): mine for mine in encoding.grouped(steps["rank"])}
    last = {rank: int(ends[mine].max()) for rank, mine in of_rank.items()}
    number = {rank: int(steps["step"][mine].max()) for rank, mine in of_rank.items()}
    newest, furthest = max(last.values()), max(number.values())
    needed = 2 * settings.min_steps * float(np.median(steps["duration_ns"]))
    early = [rank for rank, end in last.items() if rank in gone and newest - end > needed]
    left = [rank for rank in early if number[rank] < furthest]  # a rank with all steps made is at the end
    if not left or len(last) - len(left) < 2:
        return None
    moment, last_step = max(last[rank] for rank in left), max(number[rank] for rank in left)
    before = replace(run, **_chosen(run, _ENTERED, lambda table: table["start_ns"] < moment))
    stayed = _chosen(run, ("ranks", *_ENTERED, "in_flight"), lambda table: ~np.isin(table["rank"], left))
    after = replace(run, job=replace(run.job, world_size=rows(stayed["ranks"])), **stayed)
    after = replace(after, **_chosen(after, _ENTERED, lambda table: table["start_ns"] >= moment))
    return MembershipChange(last_step, before, after)


#: Tables of what ranks did, by when they began it.
_TIMED = ("steps", "collectives", "intervals", "in_flight")
#: Tables with what was last seen of each rank.
_SEEN_LAST = ("rank_states", "stacks")
#: A start of which less than this share of the fullest one's rows was recorded is too short to be what is judged.
_SHORT = 0.05


def judged_incarnation(run: Run, stated: Table) -> Run:
    """The run since the job was last started with another number of ranks, with a note on earlier starts.

    ``stated`` are all statements of ranks on their identity, also those that later ones of the same rank replaced.
    """
    starts = _starts(stated)
    if len(starts) < 2:
        return run
    since = np.array([int(start["start_ns"][0]) for start in starts])

    def start_of(table: Table) -> Ints:
        return np.searchsorted(since[1:], table["start_ns"], side="right")

    began = np.concatenate([start_of(run.steps), start_of(run.collectives)])
    counts = np.bincount(began, minlength=len(starts))
    chosen = int(np.flatnonzero(counts >= max(_SHORT * counts.max(), min(counts.max(), 1)))[-1])
    incarnations = tuple(
        Incarnation(int(one["world_size"][0]), at, tuple(sorted(set(one["rank"].tolist()))), judged=number == chosen)
        for number, (one, at) in enumerate(zip(starts, since.tolist(), strict=True))
    )
    last = {rank: at for at, rank in enumerate(starts[chosen]["rank"].tolist())}  # each one's last statement
    ranks = {name: column[[last[rank] for rank in sorted(last)]] for name, column in starts[chosen].items()}
    own = _chosen(run, _TIMED, lambda table: np.asarray(start_of(table) == chosen))
    own |= _chosen(run, _SEEN_LAST, lambda table: np.isin(table["rank"], ranks["rank"]))
    gone = np.setdiff1d(run.collectives["comm"], own["collectives"]["comm"])
    own["communicators"] = encoding.chosen(run.communicators, np.asarray(~np.isin(run.communicators["comm"], gone)))
    nodes = len(np.unique(ranks["node"])) or None
    job = replace(run.job, world_size=incarnations[chosen].world_size, nodes=nodes)
    notes = (*run.notes, _note(incarnations))
    return replace(run, job=job, ranks=ranks, incarnations=incarnations, notes=notes, **own)


def _starts(stated: Table) -> list[Table]:
    """The statements of the ranks that were started together, for each start of the job with another number of ranks,
    in order; none where there is one size, or starts cannot be separated."""
    known = encoding.chosen(stated, np.asarray((stated["world_size"] > 0) & (stated["start_ns"] > 0)))
    processes = list(zip(*(known[name].tolist() for name in ("node", "pid", "start_ns")), strict=True))
    if len(set(processes)) < len(set(zip(processes, known["world_size"].tolist(), strict=True))):
        return []  # a process went on in a job of another size, so that its start is not the start of that
    order = np.lexsort((known["world_size"], known["start_ns"]))
    known = {name: column[order] for name, column in known.items()}
    first = np.flatnonzero(np.diff(known["world_size"], prepend=-1))
    bounds = itertools.pairwise([*first.tolist(), rows(known)])
    found = [{name: column[begin:end] for name, column in known.items()} for begin, end in bounds]
    pairs = itertools.pairwise([set(one["rank"].tolist()) for one in found])
    return found if all(before & now for before, now in pairs) else []


def _note(incarnations: Sequence[Incarnation]) -> str:
    """``started 2 times: 3 ranks from 12:03:10 UTC, then 2 from 12:04:10; judged: the last; rank 2 left``."""
    first, last = incarnations[0], incarnations[-1]
    chosen = next(n for n, one in enumerate(incarnations) if one.judged)
    clock = [datetime.fromtimestamp(incarnation.since_ns // 10**9, timezone.utc) for incarnation in incarnations]
    dated = len({one.date() for one in clock}) > 1
    at = [f"{one:%Y-%m-%d %H:%M:%S}" if dated else f"{one:%H:%M:%S}" for one in clock]
    each = [f"{one.world_size} from {when}" for one, when in zip(incarnations, at, strict=True)]
    each[0] = f"{first.world_size} rank{'s' if first.world_size > 1 else ''} from {at[0]} UTC"
    which = "the last" if last.judged else f"the one from {at[chosen]} (little was recorded later)"
    gone = sorted({rank for incarnation in incarnations[:-1] for rank in incarnation.ranks}.difference(last.ranks))
    left = f"; {names(gone)} left" if gone and last.judged else ""
    return f"the job was started {len(incarnations)} times: {', then '.join(each)}; judged: {which}{left}"
