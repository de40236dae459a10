"""Ranks of one job that never meet: groups without a common communicator are judged as separate jobs.

An actor and a reward model, or two trainings that one command started, have steps of different length. Neither waits
for the other, so times of one say nothing about the other. If a rank is in no recorded communicator, its partners are
unknown, and all ranks are judged together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_judge import constant
from hindmost_judge.model import Run, rows
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline.whole_numbers import found_in
from hindmost_judge.verdict.wording import names

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Ints

#: Tables whose rows are a rank's own, and so go with its group.
_OF_RANKS = ("ranks", "steps", "collectives", "communicators", "intervals", "in_flight", "stacks", "rank_states")


def find(run: Run) -> list[Run]:
    """The run of each group, the first ranks' first; empty where all meet, or that is unknown."""
    ranks = found_in(run.ranks["rank"])
    label = _labels(run, ranks) if len(ranks) > 3 else None
    if label is None:
        return []
    groups = [ranks[label == one] for one in found_in(label)]
    return [of_ranks(run, group) for group in groups] if len(groups) > 1 else []


#: Typical ranks of groups with the same work take the same time for it, within this share.
_SAME_PACE = 0.03


def alike(groups: list[Run], blocks: Blocks) -> bool:
    """Whether all groups seem to do the same work in parallel, so that the times of their collectives compare."""
    own = [blocks.own[np.isin(blocks.ranks, group.ranks["rank"])] for group in groups]
    pace = [float(median(one)) for one in own]
    return bool(max(pace) <= (1 + _SAME_PACE) * min(pace))  # not where one is unknown


def note(groups: list[Run]) -> str:
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
    if len(found_in(row[met])) < len(ranks):
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
    pairs = found_in(comm.astype(np.int64) * len(ranks) + np.searchsorted(ranks, table["rank"][known]))
    return pairs // len(ranks), pairs % len(ranks)


def of_ranks(run: Run, group: Ints) -> Run:
    """What was recorded of these ranks, and of the job."""
    whole = run.tables()
    parts: dict[str, Any] = {
        name: constant.chosen(whole[name], np.isin(whole[name]["rank"], group)) for name in _OF_RANKS
    }
    return Run(job=run.job, metrics=run.metrics, notes=run.notes, **parts)
