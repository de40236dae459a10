"""The ring's layout and records: the Python twin of ``native/ring.h``, which says what every field means."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from hindmost.errors import HindmostError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = 0x31474E49524D48
LAYOUT = 1
RECORD_BYTES = 40
HEAD_OFFSET = 512
NAMES_COUNT_OFFSET = 640
COMMS_COUNT_OFFSET = 704
OPEN_OFFSET = 1024
OPEN_SLOTS = 32
PARTNERS_OFFSET = 2304
NAMES_OFFSET = 4096
NAMES = 448
NAME_BYTES = 64
COMMS_OFFSET = 32768
COMMS = 512
COMM_BYTES = 64
RECORDS_OFFSET = 65536
DEFAULT_CAPACITY = 16384
MAX_CAPACITY = 1 << 22
NONE16 = 0xFFFF
ANY16 = 0xFFFE
#: A peer that stands for whichever rank sends.
ANY = -2

#: Begins the names that no event has: pieces of a text, in order. Two digits tell equal pieces apart.
TEXT_PIECE = "\2"

PRODUCERS = {"py": 1, "mpi": 2, "nccl": 3}

STEP, PHASE, COLLECTIVE, P2P, SELF, MARK, IO, LAUNCH = range(1, 9)
GPU_TIME, NONBLOCKING, ERROR, CPU_KNOWN, RUNQUEUE_KNOWN, SENDS, SEVERAL, POLLS = 1, 2, 4, 8, 16, 32, 64, 128
LIVE, CLOSED = 0, 1

HEADER = struct.Struct("<QIIIIIiiiQQQQII64s64s32s240s")
RECORD = struct.Struct("<IBBHQQIHHQ")
WORDS = struct.Struct("<4xIQQQQ")  # the same: kind, flags, name; start; duration; seq, peer, comm; value
WITH = struct.Struct("<HHII22H")  # how many, whether there are more, who is sent to and received from, and who
UNSTAMPED = struct.Struct("<4xBBHQQIHHQ")  # a record whose stamp is 0 yet: it is written last
COMM = struct.Struct("<Qii48s")
REFUSED_OFFSET, LIFE_OFFSET, GPU_OFFSET, FRAMEWORK_OFFSET = 64, 72, 144, 208
VOID = 0  # the kind of a slot that was claimed for an event that could not be written


class RingError(HindmostError):
    """A file that is no readable ring: one line that names it and says what is wrong."""


class Event(NamedTuple):
    """One record, decoded. ``peer`` -1 and ``comm_id`` 0 mean none, ``ANY`` any; ``name`` is empty if unknown."""

    kind: int
    flags: int
    name: str
    start_ns: int
    duration_ns: int
    seq: int
    peer: int
    comm_id: int
    value: int


class Communicator(NamedTuple):
    """A communicator as one of its members registered it: ``rank`` is the member's own rank in it."""

    id: int
    rank: int
    size: int
    name: str


class Header(NamedTuple):
    """Who writes a ring, and both clocks read together at its creation (ns)."""

    capacity: int
    producer: str
    pid: int
    rank: int
    world_size: int
    local_rank: int
    monotonic_ns: int
    realtime_ns: int
    start_ticks: int
    job_id: str
    gpu_uuid: str
    framework: str
    command: str


def capacity(environ: Mapping[str, str]) -> int:
    """Records a ring as ``HINDMOST_RING_CAPACITY`` asks; the default where it is not set or not usable."""
    try:
        wanted = int(environ.get("HINDMOST_RING_CAPACITY", ""))
    except ValueError:
        return DEFAULT_CAPACITY
    return wanted if is_capacity(wanted) else DEFAULT_CAPACITY


def is_capacity(number: int) -> bool:
    return 2 <= number <= MAX_CAPACITY and number & (number - 1) == 0
