"""Forward phases on the GPU that hold waiting, where steps alone tell who is late.

Sharded parameters, tensor-parallel groups, synchronised batch norm and buffers that are broadcast make ranks meet in
forward: who comes in time waits there for who comes late. A rank whose GPU had nothing to do before its forward, by
some ms more than another's, waits for its host and for nobody else. Where that other's forward is longer by just as
much in the same step, it waited for it: who computes longer is that by as much as it pleases, whatever others idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.align import Floats

#: A wait is as long as the other's GPU idled before, but for this part of it: what GPUs begin a step apart.
_AS_LONG = 0.2
#: Idling for less than this part of the step is what launching takes, and shows nobody late.
_LEAST = 0.02
#: Who meets others there waits for most of what they come late by, and not for some of it by chance.
_MOSTLY = 0.5


def waited(forward: Floats, idle: Floats, step: Floats) -> Floats:
    """[R, S] ns of ``forward`` [R, S] in which a rank waited for whoever's GPU was ``idle`` [R, S] longest before it.

    ``step`` [S] is how long each step is.
    """
    column = np.arange(forward.shape[1])
    last = np.argmax(np.where(np.isnan(forward), -1.0, idle), axis=0)
    longer = forward - forward[last, column]
    waits = idle[last, column] - idle
    waited_for = waits >= _LEAST * step
    alike = waited_for & (np.abs(longer - waits) <= _AS_LONG * waits)
    meets = np.sum(waits, axis=1, where=alike) >= _MOSTLY * np.sum(waits, axis=1, where=waited_for)
    return np.where(alike & meets[:, None], np.minimum(longer, waits), 0.0)
