"""How late ranks are whose GPUs wait for their hosts, where no host marked its steps: from its operations.

Enqueue times show how long a host took from one operation to the next, and from a step's last to the next step's
first: its input, its optimizer and all its launches there are one interval. The others' hosts, ahead of it, may wait
for their GPUs in that interval; their fastest steps, without waiting, show how long they need. A host that needs
about as long is not slow. One that needs longer, but within the usual differences of launching, is neither named nor
cleared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Table
    from hindmost_judge.types import Array, Floats

#: Steps with a delay beyond this many times the rank's usual one are judged apart: they are stalls.
_STALL = 2.0
#: A host's fastest intervals: this share of the steps in which its GPU waited for it.
_FASTEST = 0.1
#: A host is slow if these take this share more than the typical peer's fastest, and more by this share of a step.
#: Without a fault, hosts differ by up to two thirds for tens of steps, and by 1.4 % of a step.
_SLOWER, _LEAST = 1.0, 0.02
#: … and by this share from one step to the next, which covers enough of a step to even out differences: up to a fifth
#: in jobs without a fault, two thirds and more with slow input.
_SLOWER_BETWEEN = 0.5
#: … which applies to intervals with this share of a step's launching. Where parameters are gathered throughout, or in
#: steps of several rounds, the time before the first operation is one launch among many.
_MUCH = 0.25
#: Hosts compared with: enough for a typical value, whatever the size of the job.
_SAMPLE = 16


def late_by_hosts(blocks: Blocks, collectives: Table, fed: Array) -> Blocks:
    """The blocks with ranks as late as their hosts are slow in the steps in which their GPUs waited for these, ``fed``
    [R, S]; what else they seemed to be late by there is in ``unsure``."""
    excess = np.nan_to_num(blocks.excess)
    late = fed & (excess > 0)
    share, unsure = np.ones(blocks.excess.shape), np.zeros(len(blocks.ranks))
    hosts = Hosts(collectives, blocks)
    for row in np.flatnonzero(late.any(axis=1)).tolist():
        stalls = late[row] & (excess[row] > _STALL * median(excess[row, late[row]]))
        for steps in (late[row] & ~stalls, stalls):
            if not steps.any():
                continue
            mean = float(excess[row, steps].mean())
            slower = min(hosts.slower(row, steps) or 0.0, mean)
            share[row, steps] = slower / mean
            unsure[row] += (mean - slower) * float(steps.mean())
    return replace(
        blocks,
        excess=blocks.excess * share,
        segments=blocks.segments * share[:, blocks.segment_step],
        caused=blocks.caused * share,
        unsure=unsure,
    )


class Hosts:
    """When hosts enqueued what all of them do in each step."""

    def __init__(self, collectives: Table, blocks: Blocks) -> None:
        assert blocks.joined is not None  # noqa: S101 - known GPU waits imply it
        self._blocks = blocks
        self._ended = np.fmax.reduceat(blocks.joined.enqueue, blocks.starts, axis=1)
        known = np.flatnonzero(collectives["enqueue_ns"] >= 0)
        self._order = known[np.lexsort((collectives["enqueue_ns"][known], collectives["rank"][known]))]
        ranks = collectives["rank"][self._order]
        self._bounds = np.stack([np.searchsorted(ranks, blocks.ranks), np.searchsorted(ranks, blocks.ranks, "right")])
        self._table = collectives
        self._stretches: dict[int, tuple[Floats, tuple[str, ...]]] = {}

    def slower(self, row: int, steps: Array) -> float | None:
        """Ns a step by which a host is slower than its typical peer can be in these steps [S]; ``None``: unknown."""
        took, does = self._of(row)
        known = steps & ~np.isnan(took).any(axis=1)
        others = np.flatnonzero(self._blocks.role == self._blocks.role[row])
        others = others[others != row]
        asked = [self._of(one) for one in others[:: -(-len(others) // _SAMPLE) or 1].tolist()]
        peers = [np.fmin.reduce(stretches, axis=0) for stretches, operations in asked if operations == does and does]
        if not peers or not known.any():
            return None
        own, theirs = np.quantile(took[known], _FASTEST, axis=0), median(np.array(peers), axis=0)
        longer = own - theirs
        most = _SLOWER * theirs
        if theirs[0] >= _MUCH * theirs.sum():
            most[0] = _SLOWER_BETWEEN * theirs[0]
        return float(longer[(longer > most) & (longer > _LEAST * self._blocks.step_ns)].sum())

    def _of(self, row: int) -> tuple[Floats, tuple[str, ...]]:
        """[S, M] ns from each operation of a step to the next, the first since the step before; NaN of unusual steps;
        and which operations these are."""
        if row not in self._stretches:
            self._stretches[row] = self._measured(row)
        return self._stretches[row]

    def _measured(self, row: int) -> tuple[Floats, tuple[str, ...]]:
        table, ended = self._table, self._ended[row]
        mine = self._order[slice(*self._bounds[:, row])]
        times = table["enqueue_ns"][mine].astype(np.float64)
        bounds = np.searchsorted(times, ended, side="right")
        counts = np.diff(bounds)
        if not (counts > 0).any():
            return np.full((len(ended), 1), np.nan), ()
        usual = int(np.bincount(counts[counts > 0]).argmax())
        steps = np.flatnonzero(counts == usual) + 1
        took = np.full((len(ended), usual), np.nan)
        took[steps] = np.diff(times[bounds[steps - 1][:, None] + np.arange(-1, usual)], axis=1)
        first = bounds[steps[0] - 1]
        return took, tuple(table["op"][mine[first : first + usual]].tolist())
