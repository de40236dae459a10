"""The shared-memory ring between a probe and the agent of its node: the Python twin of ``native/ring.h``.

``Writer`` lives in a training process, ``Reader`` in the agent. ``native/ring.h`` draws the layout; nothing here may
disagree with it. Times are ns of ``CLOCK_MONOTONIC`` unless ``GPU_TIME`` is flagged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost.ring.layout import (
    ANY,
    ANY16,
    COLLECTIVE,
    COMMS,
    CPU_KNOWN,
    DEFAULT_CAPACITY,
    ERROR,
    GPU_TIME,
    IO,
    LAUNCH,
    MARK,
    MAX_CAPACITY,
    NAMES,
    NONBLOCKING,
    NONE16,
    OPEN_SLOTS,
    P2P,
    PHASE,
    POLLS,
    PRODUCERS,
    RUNQUEUE_KNOWN,
    SELF,
    SENDS,
    STEP,
    Communicator,
    Event,
    Header,
    RingError,
    capacity,
)
from hindmost.ring.native import WriteEvent
from hindmost.ring.writer import IdentityLike, Writer

if TYPE_CHECKING:
    from hindmost.ring.reader import Reader

__all__ = [
    "ANY",
    "ANY16",
    "COLLECTIVE",
    "COMMS",
    "CPU_KNOWN",
    "DEFAULT_CAPACITY",
    "ERROR",
    "GPU_TIME",
    "IO",
    "LAUNCH",
    "MARK",
    "MAX_CAPACITY",
    "NAMES",
    "NONBLOCKING",
    "NONE16",
    "OPEN_SLOTS",
    "P2P",
    "PHASE",
    "POLLS",
    "PRODUCERS",
    "RUNQUEUE_KNOWN",
    "SELF",
    "SENDS",
    "STEP",
    "Communicator",
    "Event",
    "Header",
    "IdentityLike",
    "Reader",
    "RingError",
    "WriteEvent",
    "Writer",
    "capacity",
]


def __getattr__(name: str) -> Any:
    """``Reader``, imported where it is used: a rank reads no ring, and has all others wait while it imports."""
    if name != "Reader":
        raise AttributeError(name)
    from hindmost.ring.reader import Reader  # noqa: PLC0415

    return Reader
