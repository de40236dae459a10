"""Hidden synchronisation: waiting inside forward phases on the GPU, where steps alone must show who is late.

Sharded parameters, tensor-parallel groups, synchronised batch norm and broadcast buffers make ranks meet in forward:
early ranks wait there for late ones. A rank whose GPU idles some ms more before its forward than another's waits for
its host, and for no other rank. If that other rank's forward is longer by just as much in the same step, it waited. A
rank that computes longer is longer by any amount, regardless of others' idle time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Floats

#: A wait must equal the other's idle time before it within this share: GPUs begin a step slightly apart.
_AS_LONG = 0.2
#: Idling for less than this share of the step is launch time, and shows no delay.
_LEAST = 0.02
#: A rank that meets others there waits for at least this share of their delay; less may be chance.
_MOSTLY = 0.5


def waited(forward: Floats, idle: Floats, step: Floats) -> Floats:
    """[R, S] ns of ``forward`` [R, S] in which a rank waited for the rank whose GPU was ``idle`` [R, S] longest before
    it.

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
