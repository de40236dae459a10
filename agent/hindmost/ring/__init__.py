"""The shared-memory ring between a probe and the agent of its node: the Python twin of ``native/ring.h``.

``Writer`` lives in a training process, ``Reader`` in the agent. ``native/ring.h`` draws the layout; nothing here may
disagree with it. Times are ns of ``CLOCK_MONOTONIC`` unless ``GPU_TIME`` is flagged.
"""

from __future__ import annotations

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
from hindmost.ring.reader import Reader
from hindmost.ring.writer import IdentityLike, Writer

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
