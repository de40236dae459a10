"""MPI collectives seen from mpi4py, where there is no PMPI shim (``HINDMOST_MPI=python``) or it is not on this node.

mpi4py's classes are immutable, so ``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` are replaced by instances of a subclass, and
what is derived from them (``Dup``, ``Split``, ``Create`` …) is of that subclass again. Records are those of the shim:
the same names, communicator ids and sequence numbers. What it cannot see: other libraries' MPI calls, waits for
requests, and communicators made from nothing (``MPI.Comm.Join``, ``MPI.Comm.Get_parent``).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost.errors import warn_once
from hindmost.probes import on_import
from hindmost.probes.guard import undo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from hindmost.recorder import Recorder

COLLECTIVE, P2P, SELF = 3, 4, 5  # of ring.h
NONBLOCKING, ERROR, CPU_KNOWN, RUNQUEUE_KNOWN, SENDS = 2, 4, 8, 16, 32
NONE16, ANY16 = 0xFFFF, 0xFFFE
SLOT = 10  # of the open table
NOBODY = -1000
MASK = 0xFFFFFFFFFFFFFFFF

#: Method -> operation, and where its root is among the arguments (-1: it has none). ``I…`` forms are the same.
COLLECTIVES = {
    "Barrier": ("barrier", -1),
    "Bcast": ("broadcast", 1),
    "Reduce": ("reduce", 3),
    "Allreduce": ("all_reduce", -1),
    "Gather": ("gather", 2),
    "Gatherv": ("gather", 2),
    "Scatter": ("scatter", 2),
    "Scatterv": ("scatter", 2),
    "Allgather": ("all_gather", -1),
    "Allgatherv": ("all_gather", -1),
    "Alltoall": ("all_to_all", -1),
    "Alltoallv": ("all_to_all", -1),
    "Alltoallw": ("all_to_all", -1),
    "Reduce_scatter": ("reduce_scatter", -1),
    "Reduce_scatter_block": ("reduce_scatter", -1),
    "Scan": ("scan", -1),
    "Exscan": ("scan", -1),
    "barrier": ("barrier", -1),
    "bcast": ("broadcast", 1),
    "reduce": ("reduce", 2),
    "allreduce": ("all_reduce", -1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 1),
    "allgather": ("all_gather", -1),
    "alltoall": ("all_to_all", -1),
    "scan": ("scan", -1),
    "exscan": ("scan", -1),
}
#: Method -> operation, and where its peer is among the arguments.
POINT_TO_POINT = {
    "Send": ("send", 1),
    "Ssend": ("send", 1),
    "Bsend": ("send", 1),
    "Recv": ("recv", 1),
    "Sendrecv": ("sendrecv", 1),
    "Probe": ("probe", 0),
    "send": ("send", 1),
    "ssend": ("send", 1),
    "bsend": ("send", 1),
    "recv": ("recv", 1),
    "sendrecv": ("sendrecv", 1),
    "probe": ("probe", 0),
}
#: What makes a communicator that plain mpi4py would return as its own class.
DERIVING = ("Split", "Split_type", "Create", "Create_group", "Create_cart", "Create_graph", "Merge")


def mix(x: int) -> int:
    """splitmix64's finaliser, as in ``native/pmpi_comms.c``: a communicator has one id in all reports."""
    x = x + 0x9E3779B97F4A7C15 & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


class RingCommunicator(NamedTuple):
    """A communicator in the ring: its place there, and its id alike on all members."""

    place: int
    id: int


class Calls:
    """Writes the calls of the training thread, with the gap before each collective."""

    def __init__(self, mpi: Any, recorder: Recorder) -> None:
        self._mpi = mpi
        self.any_source: int = mpi.ANY_SOURCE
        self._recorder = recorder
        self._ring = recorder.ring
        self._clock = recorder.clock
        self._last_end = 0
        self._inside = 0
        self._busy = False  # mpi4py's own methods call each other
        self._used = (0, -1)
        self._sequences: dict[int, int] = {}
        self._ordinals: dict[tuple[int, int], int] = {}

    def know(self, comm: Any) -> RingCommunicator:
        """Register a communicator: a hash of its members' world ranks and its ordinal among those of this set."""
        group = comm.Get_group()
        world = self._mpi.COMM_WORLD.Get_group()
        members = sum(map(mix, self._mpi.Group.Translate_ranks(group, list(range(group.size)), world))) & MASK
        ordinal = self._ordinals.get((members, group.size), 0)
        self._ordinals[members, group.size] = ordinal + 1
        found = mix(members ^ mix(group.size << 32 | ordinal)) | 1
        index = self._ring.communicator(found, comm.rank, comm.size, comm.name)
        group.Free()
        world.Free()
        return RingCommunicator(index, found)

    def collective(self, comm: Any, op: str, flags: int, root: int, size: int, call: Callable[[], Any]) -> Any:
        """Make the call and write it, with the gap since the last one before it."""
        if self._busy or not self._recorder.training_thread():
            return call()
        known = comm.in_ring(self)
        sequence = self._sequences.get(known.id, 0)
        self._sequences[known.id] = sequence + 1
        name, before = self._ring.name(op), self._recorder.usage()
        start = self._clock()
        self._ring.enter(SLOT, COLLECTIVE, name, start, sequence, known.place)
        result, failed = self._guard(call)
        end = self._clock()
        self._ring.leave(SLOT)
        self._write_gap(start, before)
        flags |= ERROR if failed else 0
        peer = root if root >= 0 else NONE16
        self._ring.event(COLLECTIVE, name, start, end - start, sequence, known.place, peer, size, flags)
        self._last_end, self._inside, self._used = end, 0, self._recorder.usage()
        if failed is not None:
            raise failed
        return result

    def point_to_point(self, comm: Any, op: str, peer: int, size: int, call: Callable[[], Any]) -> Any:
        """Make the call and write it; its time is not the rank's own."""
        if self._busy or not self._recorder.training_thread():
            return call()
        known, name, start = comm.in_ring(self), self._ring.name(op), self._clock()
        waits_for = ANY16 if peer == self.any_source else peer if peer >= 0 else NONE16
        self._ring.enter(SLOT, P2P, name, start, 0, known.place, waits_for, SENDS if op == "send" else 0)
        result, failed = self._guard(call)
        duration = self._clock() - start
        self._ring.leave(SLOT)
        flags = ERROR if failed else 0
        self._ring.event(P2P, name, start, duration, 0, known.place, peer if peer >= 0 else NONE16, size, flags)
        self._inside += duration
        if failed is not None:
            raise failed
        return result

    def _guard(self, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        self._busy = True
        try:
            return call(), None
        except BaseException as error:
            return None, error
        finally:
            self._busy = False

    def _write_gap(self, start: int, now: tuple[int, int]) -> None:
        """HM_SELF: self time since the last collective, with its CPU time and run-queue delay."""
        gap = start - self._last_end - self._inside
        if not self._last_end or gap < 0:
            return
        flags = CPU_KNOWN
        waited = 0
        if now[1] >= 0 and self._used[1] >= 0:
            flags |= RUNQUEUE_KNOWN
            waited = (now[1] - self._used[1]) // 1000
        cpu = now[0] - self._used[0]
        self._ring.event(SELF, NONE16, self._last_end, gap, waited, NONE16, NONE16, cpu, flags)


def bytes_of(buffers: Sequence[Any]) -> int:
    """Bytes this rank puts in: of the first buffer that has a size; 0 where it is pickled or not to be seen."""
    for buffer in buffers:
        inner = buffer[0] if isinstance(buffer, (list, tuple)) and buffer else buffer
        size = getattr(inner, "nbytes", None)
        if isinstance(size, int):
            return size
        with contextlib.suppress(TypeError):  # no buffer: MPI.IN_PLACE, a count
            return memoryview(inner).nbytes
    return 0


def argument(args: Sequence[Any], kwargs: dict[str, Any], place: int, names: Sequence[str], default: int) -> int:
    """An integer argument, wherever it was given."""
    value = args[place] if 0 <= place < len(args) else next((kwargs[n] for n in names if n in kwargs), default)
    return value if isinstance(value, int) else default


def observed_class(mpi: Any, calls: Calls) -> Any:
    """``MPI.Intracomm`` with its collectives and blocking point-to-point calls written to the ring."""

    class Intracomm(mpi.Intracomm):  # type: ignore[misc]
        def in_ring(self, seen_by: Calls) -> RingCommunicator:
            found: RingCommunicator | None = self.__dict__.get("_hindmost")
            if found is None:
                found = self.__dict__["_hindmost"] = seen_by.know(self)
            return found

    for method, (op, place) in COLLECTIVES.items():
        _add_collective(Intracomm, mpi.Intracomm, calls, method, op, place, 0)
        if hasattr(mpi.Intracomm, f"I{method.lower()}") and method[0].isupper():
            _add_collective(Intracomm, mpi.Intracomm, calls, f"I{method.lower()}", op, place, NONBLOCKING)
    for method, (op, place) in POINT_TO_POINT.items():
        _add_point_to_point(Intracomm, mpi.Intracomm, calls, method, op, place)
    for method in DERIVING:
        if hasattr(mpi.Intracomm, method):
            _add_deriving(Intracomm, mpi.Intracomm, method)
    return Intracomm


def _add_collective(cls: Any, base: Any, calls: Calls, method: str, op: str, place: int, flags: int) -> None:
    original = getattr(base, method)
    buffers = method[0].isupper()  # the others pickle

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        root = argument(args, kwargs, place, ("root",), 0) if place >= 0 else -1
        size = bytes_of((*args, *kwargs.values())) if buffers else 0
        return calls.collective(self, op, flags, root, size, lambda: original(self, *args, **kwargs))

    setattr(cls, method, call)


def _add_point_to_point(cls: Any, base: Any, calls: Calls, method: str, op: str, place: int) -> None:
    original = getattr(base, method)
    buffers = method[0].isupper()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        peer = argument(args, kwargs, place, ("dest", "source"), NOBODY if op == "send" else calls.any_source)
        size = bytes_of(args) if buffers else 0
        return calls.point_to_point(self, op, peer, size, lambda: original(self, *args, **kwargs))

    setattr(cls, method, call)


def _add_deriving(cls: Any, base: Any, method: str) -> None:
    original = getattr(base, method)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        return cls(made) if type(made) is base and made else made

    setattr(cls, method, call)


def absent_shim(environ: Mapping[str, str]) -> str:
    """The shim that this process should have been started with, where it is on the launcher's node only; else empty.

    A clone builds it into the user's home, which nodes need not share.
    """
    preloaded = environ.get("LD_PRELOAD", "").replace(":", " ").split()
    shims = (path for path in preloaded if os.path.basename(path).startswith("pmpi"))
    return next((path for path in shims if not os.path.exists(path)), "")


@on_import("mpi4py.MPI")
def install(mpi: ModuleType, recorder: Recorder) -> None:
    """Name the framework; where the PMPI shim is missing, replace the communicators that a program starts from."""
    recorder.name_framework("mpi4py")
    absent = absent_shim(os.environ)
    if absent:
        warn_once(
            f"{absent} is not on this node: MPI calls are timed from mpi4py, those of other libraries are not seen"
        )
    elif os.environ.get("HINDMOST_MPI") != "python":
        return
    module: Any = mpi
    observed = observed_class(module, Calls(module, recorder))
    own = module.COMM_WORLD, module.COMM_SELF
    module.COMM_WORLD, module.COMM_SELF = map(observed, own)

    def restore() -> None:
        module.COMM_WORLD, module.COMM_SELF = own

    undo.append(restore)
