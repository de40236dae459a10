"""How long copying a batch to the GPU kept a rank, from what its host and its GPU each show of one call.

A copy that is over when its call returns held the host up: every blocking one, and one too short to tell from them. It
took the host's time in the call, from launching it to waking up, and from when the GPU was through with earlier work,
which such a call waits for, too: that is no copying. A copy that goes on when its call has returned holds up the GPU,
from when that came to it.
"""

from __future__ import annotations

from typing import NamedTuple


class Call(NamedTuple):
    """A call that copies: ms the host was in it, whether the GPU was idle at its begin, and again at its end."""

    ms: float
    idle: bool
    over: bool


def copied_ms(between_ms: float, call: Call) -> float:
    """ms of a copy. ``between_ms`` are on the GPU, between an event recorded before the call and one after it.

    An idle GPU passes the first event at once, a busy one when it is through with what it has; it passes the second
    when the copy has ended and the host, which may be slow to, has recorded it.
    """
    if call.over:
        return min(between_ms, call.ms)
    if call.idle:  # it waited for the host to launch; of pageable memory much is copied inside the call
        return max(between_ms - call.ms, call.ms)
    return between_ms
