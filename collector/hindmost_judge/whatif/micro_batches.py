"""How long each micro-batch of a pipeline takes against the others, by what all stages take longer for it alike.

Sequences of uneven length make a micro-batch longer in every stage and in both directions. A slow worker makes all
its micro-batches longer in its own stage only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, median_error

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Floats, Ints
    from hindmost_judge.whatif.operation_graph import Graph

#: A replica's micro-batches are persistently longer if they are longer by this many standard errors: then its host may
#: be slow.
_HABIT = 5.0
#: Least replicas and stages together: with two replicas of two stages, a long micro-batch in one looks like a fast
#: worker in the other.
_TELL = 5
#: Least micro-batches of a replica before their lengths are judged.
_ENOUGH = 8
#: Rounds in which the usual time of a stage and the micro-batch lengths refine each other; later rounds change little.
_TIMES = 3


def lengths(built: Graph, work: Array) -> Floats:
    """[N] by what factor each operation of ``work`` [N] is longer than usual for its micro-batch; 1 for the others."""
    found = np.ones(len(built.cost))
    held = np.flatnonzero(work & (built.cost > 0))
    stages, replicas = len(np.unique(built.stage[held])), len(np.unique(built.replica[held]))
    if stages < 2 or stages + replicas < _TELL:
        return found
    kind = built.op[held] * (int(built.stage.max()) + 1) + built.stage[held]
    batch = np.stack([built.step[held], built.replica[held], built.batch[held]])
    _, first, which = np.unique(batch, axis=1, return_index=True, return_inverse=True)
    which = which.ravel()
    replica, length = built.replica[held][first], np.ones(len(first))
    if np.bincount(replica).max() < _ENOUGH:
        return found
    for _ in range(_TIMES):
        usual = _of_each(kind, built.cost[held] / length[which])
        length = _of_each(which, built.cost[held] / usual[kind])
    found[held] = (length / _habit(length, replica))[which]
    return found


def _of_each(which: Ints, values: Floats) -> Floats:
    """Lower median of the values of each number; of two stages, one of them slow, it is the other's."""
    order = np.lexsort((values, which))
    first = np.searchsorted(which[order], np.arange(int(which.max()) + 2))
    middle = np.minimum((first[:-1] + np.maximum(first[1:] - 1, first[:-1])) // 2, len(values) - 1)
    return np.asarray(values[order][middle])


def _habit(length: Floats, replica: Ints) -> Floats:
    """[M] by what factor all micro-batches of a replica are longer, where that is no chance; 1 where it may be."""
    found, usual = np.ones(len(length)), float(median(length))
    for one in np.unique(replica):
        of_one = length[replica == one] / usual
        level = float(median(of_one))
        if abs(level - 1) > _HABIT * median_error(of_one):
            found[replica == one] = level
    return found
