"""Ranks that stall now and then: most steps like their peers', some far later, and always the same rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_collector.align import Array, Floats, Ints
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.detectors.straggler import Habit
    from hindmost_collector.settings import Settings


@dataclass(frozen=True)
class Stalls:
    """The stalls of one rank, or of a node's ranks: indices of the stalled steps, and the share of all in the job."""

    rows: tuple[int, ...]
    stalled: Ints
    excess: float
    share: float


def find(blocks: Blocks, settings: Settings) -> list[Stalls]:
    """Ranks that own most of the job's stalls, by far more than chance would give one of them; else such a node."""
    if len(blocks.ranks) < 2 or len(blocks.steps) < 2 * settings.min_steps:
        return []
    excess = np.nan_to_num(blocks.excess - _usual(blocks, settings)[:, None])
    for size in _SIZES:
        stalled = excess >= size * settings.stall_effect * blocks.step_ns
        found = [
            _with_its_like(excess, row, steps, share, settings) for row, steps, share in _owners(stalled, settings)
        ]
        found = sorted(found, key=lambda one: -len(one.stalled)) or _of_nodes(blocks, excess, stalled, settings)
        if found:
            return found
    return []


#: A rank that stalls in most steps has its usual ones among the least late, this share of all in per cent.
_LEAST = 25


def _usual(blocks: Blocks, settings: Settings) -> Floats:
    """[R] how late a rank is where it does not stall."""
    usual = median(blocks.excess, axis=1)
    most = np.flatnonzero(usual >= settings.stall_effect * blocks.step_ns)
    if len(most):
        usual[most] = np.nanpercentile(blocks.excess[most], _LEAST, axis=1)
    return usual


#: A rank's steps that are late by this share of its typical stall are stalls, too, where it has most of such steps.
_ALIKE = 0.5


def _with_its_like(excess: Floats, row: int, steps: Ints, share: float, settings: Settings) -> Stalls:
    """The stalls of a row, those among them that fall a little short of what makes a stall of anybody's."""
    late = excess >= _ALIKE * float(np.median(excess[row, steps]))
    if np.sum(late[row]) >= settings.min_stall_share * np.sum(late):
        steps = np.flatnonzero(late[row])
    return Stalls((row,), steps, float(np.median(excess[row, steps])), share)


#: On a noisy host all ranks have small stalls, some more than others; one may have all that are longer than a step or
#: several.
_SIZES = (1.0, 15.0, 60.0)


def _owners(stalled: Array, settings: Settings) -> Iterator[tuple[int, Ints, float]]:
    """Row, stalled steps and share of all stalls, of each row of [R, S] that owns most of them."""
    episodes = _episodes(stalled)
    total = max(int(episodes.sum()), 1)
    for row in np.flatnonzero(episodes >= settings.min_stalls).tolist():
        share = episodes[row] / total
        others = np.delete(episodes, row).max()
        # Twice the stalls of the next rank and three sigma of a Poisson count more: no accident of a noisy host.
        if share >= settings.min_stall_share and episodes[row] > 2 * others + 3 * np.sqrt(others + 1):
            yield row, np.flatnonzero(stalled[row]), float(share)


#: A rank that stalled once may have been anybody.
_AGAIN = 2


def _of_nodes(blocks: Blocks, excess: Floats, stalled: Array, settings: Settings) -> list[Stalls]:
    """A node on which now one rank stalls and now another: what disturbs them is the node's."""
    nodes = np.unique(blocks.node)
    if len(blocks.node) != len(stalled) or len(nodes) < 2 or nodes[0] < 0:
        return []
    order = np.argsort(blocks.node, kind="stable")
    together = np.logical_or.reduceat(stalled[order], np.searchsorted(blocks.node[order], nodes), axis=0)
    found = []
    for place, steps, share in _owners(together, settings):
        rows = np.flatnonzero(blocks.node == nodes[place])
        often = _episodes(stalled[rows])
        rows = rows[often >= _AGAIN]
        if (
            len(rows) < 2
            or often.sum() < 2 * settings.min_stalls
            or often.max() > settings.min_stall_share * often.sum()
        ):
            continue  # mostly one rank's, and too few to name it
        typical = float(np.median(excess[rows][:, steps].max(axis=0)))
        found.append(Stalls(tuple(rows[np.argsort(-stalled[rows].sum(axis=1))].tolist()), steps, typical, share))
    return found


def without_stalls(habits: list[Habit], stalls: list[Stalls], settings: Settings) -> list[Habit]:
    """Those that are more than the thick of a rank's stalls, of which it has enough outside of all its habits."""
    thick: set[int] = set()
    for one in stalls:
        steps = one.stalled
        for habit in habits:
            if habit.row in one.rows:
                steps = steps[(steps < habit.first) | (steps >= habit.stop)]
        if len(one.rows) == 1 and np.sum(np.diff(steps, prepend=-2) > 1) >= settings.min_stalls:
            thick.add(one.rows[0])
    return [habit for habit in habits if habit.row not in thick]


def _episodes(stalled: Array) -> Ints:
    """Stalls apart in time in each row of [R, S]: steps in a row are one."""
    return np.asarray(np.sum(stalled[:, 1:] & ~stalled[:, :-1], axis=1) + stalled[:, 0])
