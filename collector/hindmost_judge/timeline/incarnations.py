"""Jobs that are started again under one id with another number of ranks: each start is a job of its own to the judge.

Only new processes make a new start. Where those that were there go on with others, or without, nothing is cut here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_judge import constant
from hindmost_judge.model import Incarnation, rows
from hindmost_judge.verdict.wording import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.model import Run, Table
    from hindmost_judge.types import Array, Ints

#: Tables of what ranks did, by when they began it.
_TIMED = ("steps", "collectives", "intervals", "in_flight")
#: Tables with what was last seen of each rank.
_OF_RANKS = ("rank_states", "stacks")
#: A start of which less than this share of the fullest one's rows was recorded is too short to be what is judged.
_SHORT = 0.05


@dataclass(frozen=True)
class _Start:
    """Statements of the ranks that were started together, and when the first of them was."""

    ranks: Table
    since_ns: int

    @property
    def size(self) -> int:
        """How many ranks they say there are."""
        return int(self.ranks["world_size"].max())


def judged(run: Run, stated: Table) -> Run:
    """The run since the job was last started with another number of ranks, with a note on earlier starts.

    ``stated`` are all statements of ranks on their identity, also those that later ones of the same rank replaced.
    """
    starts = _starts(stated)
    if len(starts) < 2:
        return run
    borders = np.array([one.since_ns for one in starts[1:]], np.int64)
    began = np.concatenate([_of(borders, run.steps), _of(borders, run.collectives)])
    counts = np.bincount(began, minlength=len(starts))
    chosen = int(np.flatnonzero(counts >= max(_SHORT * counts.max(), min(counts.max(), 1)))[-1])
    told = tuple(
        Incarnation(one.size, one.since_ns, tuple(sorted(set(one.ranks["rank"].tolist()))), judged=number == chosen)
        for number, one in enumerate(starts)
    )
    return replace(_cut(run, starts[chosen], borders, chosen), incarnations=told, notes=(*run.notes, _note(told)))


def _starts(stated: Table) -> list[_Start]:
    """Each start of the job with another number of ranks, in order; at most one if starts cannot be separated."""
    known = constant.chosen(stated, np.asarray((stated["world_size"] > 0) & (stated["start_ns"] > 0)))
    if not rows(known) or _resized(known):
        return []
    order = np.lexsort((known["world_size"], known["start_ns"]))
    known = {name: column[order] for name, column in known.items()}
    first = np.flatnonzero(np.diff(known["world_size"], prepend=-1))
    bounds = zip(first.tolist(), [*first[1:].tolist(), rows(known)], strict=True)
    found = [{name: column[begin:end] for name, column in known.items()} for begin, end in bounds]
    pairs = itertools.pairwise([set(one["rank"].tolist()) for one in found])
    again = all(before & now for before, now in pairs)
    return [_Start(one, int(one["start_ns"][0])) for one in found] if again else []


def _resized(known: Table) -> bool:
    """Whether a process went on in a job of another size, so that its start is not the start of that."""
    sizes: dict[tuple[str, int, int], int] = {}
    columns = (known[name].tolist() for name in ("node", "pid", "start_ns", "world_size"))
    for node, pid, start, size in zip(*columns, strict=True):
        if sizes.setdefault((node, pid, start), size) != size:
            return True
    return False


def _of(borders: Ints, table: Table) -> Ints:
    """The start to which each row belongs, by when it began."""
    return np.searchsorted(borders, table["start_ns"], side="right")


def _cut(run: Run, start: _Start, borders: Ints, chosen: int) -> Run:
    """Only what is of this start."""
    ranks = _last_of_each(start.ranks)

    def of_ranks(table: Table) -> Array:
        return np.asarray(np.isin(table["rank"], ranks["rank"]))

    tables = run.tables()
    kept: dict[str, Any] = {
        name: constant.chosen(tables[name], np.asarray(_of(borders, tables[name]) == chosen)) for name in _TIMED
    }
    kept |= {name: constant.chosen(tables[name], of_ranks(tables[name])) for name in _OF_RANKS}
    gone = np.setdiff1d(run.collectives["comm"], kept["collectives"]["comm"])
    kept["communicators"] = constant.chosen(run.communicators, np.asarray(~np.isin(run.communicators["comm"], gone)))
    job = replace(run.job, world_size=start.size, nodes=len(np.unique(ranks["node"])) or None)
    return replace(run, job=job, ranks=ranks, **kept)


def _last_of_each(ranks: Table) -> Table:
    """The last statement of each rank, by number."""
    last = {rank: at for at, rank in enumerate(ranks["rank"].tolist())}
    at = [last[rank] for rank in sorted(last)]
    return {name: column[at] for name, column in ranks.items()}


def _note(told: Sequence[Incarnation]) -> str:
    """``started 2 times: 3 ranks from 12:03:10 UTC, then 2 from 12:04:10; judged: the last; rank 2 left``."""
    clock = [datetime.fromtimestamp(one.since_ns // 10**9, timezone.utc) for one in told]
    dated = len({one.date() for one in clock}) > 1
    at = [f"{one:%Y-%m-%d %H:%M:%S}" if dated else f"{one:%H:%M:%S}" for one in clock]
    each = [f"{one.world_size} from {when}" for one, when in zip(told, at, strict=True)]
    each[0] = f"{told[0].world_size} rank{'s' if told[0].world_size > 1 else ''} from {at[0]} UTC"
    chosen = next(n for n, one in enumerate(told) if one.judged)
    which = "the last" if chosen == len(told) - 1 else f"the one from {at[chosen]} (little was recorded later)"
    gone = sorted(set(told[0].ranks).union(*(one.ranks for one in told[:-1])) - set(told[-1].ranks))
    left = f"; {names(gone)} left" if gone and chosen == len(told) - 1 else ""
    return f"the job was started {len(told)} times: {', then '.join(each)}; judged: {which}{left}"
