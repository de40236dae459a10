"""How long a GPU copied, from two events on its stream and how long the host was in the call between them.

The first event is recorded before the call, the second after it. A GPU that has nothing to do passes the first at
once, and then waits for the host: to allocate the target, to launch the copy and, where the copy blocks, to wake up and
record the second event. What a copy of next to nothing takes is what any call takes: the median of the last ones, for
it changes with what else the host does in such calls (a profiler makes each some 15 us longer).
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import NamedTuple

#: A copy of so many bytes takes a microsecond or two on any bus: its call is all launching.
TINY = 65536
#: So many of their calls are remembered.
REMEMBERED = 15
#: The second event follows the call's end within this, ms.
SETTLED_MS = 0.05


class Call(NamedTuple):
    """A call that copies: ms the host was in it, whether the GPU was idle when it began, bytes."""

    ms: float
    idle: bool
    size: int


class Launch:
    """Learns from tiny copies how long a call takes that copies next to nothing."""

    def __init__(self) -> None:
        self._calls: deque[float] = deque(maxlen=REMEMBERED)

    def copied_ms(self, between_ms: float, call: Call) -> float | None:
        """ms of the GPU's copying; ``None`` where it is less than what a call's launching varies by.

        Where no tiny copy was seen yet, launching stays in a copy that blocked.
        """
        if call.size <= TINY:
            self._calls.append(call.ms)
        if not call.idle:  # the copy was launched before the GPU came to it
            return between_ms
        if call.size <= TINY:
            return None
        inside = min(between_ms, call.ms) - (statistics.median(self._calls) if self._calls else 0.0)
        after = between_ms - call.ms
        if after > SETTLED_MS:  # the call returned and the copy went on, or it blocked and the host was slow to go on
            return max(after, inside)
        return inside if inside > 0 else None
