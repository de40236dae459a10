"""Horovod with PyTorch: how long each rank waits for the others' gradients, and for collectives called by hand.

Horovod's own thread reduces gradients while backward runs; the training thread meets the others in
``DistributedOptimizer.synchronize``, after all its own gradients have been handed over. Steps and the other phases are
``torch.py``'s business. Horovod's coordination over MPI happens every few ms whether anybody trains or not and says
nothing about ranks: a PMPI shim in this process is told to be quiet. In an elastic job a rank whose number has changed
goes on in a new ring.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from hindmost.probes import horovod_cycles
from hindmost.probes.guard import around
from hindmost.probes.torch_ddp import COLLECTIVE, NONE16, communicator_id
from hindmost.recorder import MARK

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder

SLOT = 11  # of the open table
#: Blocking functions of ``horovod.torch`` and ``horovod.tensorflow`` -> operation.
CALLS = {
    "allreduce": "all_reduce",
    "allreduce_": "all_reduce",
    "grouped_allreduce": "all_reduce",
    "grouped_allreduce_": "all_reduce",
    "allgather": "all_gather",
    "grouped_allgather": "all_gather",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "grouped_reducescatter": "reduce_scatter",
    "barrier": "barrier",
    # What is made of these.
    "broadcast_parameters": "broadcast",
    "broadcast_optimizer_state": "broadcast",
    "broadcast_variables": "broadcast",
    "broadcast_object": "broadcast",
    "allgather_object": "all_gather",
}
#: Functions that return a handle, for which ``synchronize`` waits.
HANDLES = {f"{name.rstrip('_')}_async{'_' * name.endswith('_')}": op for name, op in CALLS.items()}
#: Handles that are remembered; a loop may drop its own.
MOST_HANDLES = 4096


class Calls:
    """Writes what the training thread waits for, as collectives of Horovod's global communicator."""

    def __init__(self, horovod: Any, recorder: Recorder) -> None:
        self._horovod = horovod
        self._recorder = recorder
        self._sequence = 0
        self._handles: dict[Any, str] = {}
        self._depth = 0  # a blocking call may be made of others
        self.cycles = horovod_cycles.watch(horovod)

    def communicator(self) -> int:
        """The index of all ranks' communicator in the ring; an elastic job's changes with its size."""
        size, rank = self._horovod.size(), self._horovod.rank()
        return self._recorder.ring.communicator(communicator_id(range(size)), rank, size, "horovod")

    def begins(self, op: str) -> tuple[int, int] | None:
        """Start and communicator of an outermost call in the training thread."""
        if not self._recorder.training_thread() or not self._horovod.is_initialized():
            return None
        self._depth += 1
        now, comm = self._recorder.clock(), self.communicator()
        if self._depth == 1:
            ring = self._recorder.ring
            ring.enter(SLOT, COLLECTIVE, ring.name(op), now, self._sequence, comm)
        return now, comm

    def ends(self, op: str, token: tuple[int, int], phase: bool) -> None:
        """Write it; as the step's ``sync`` phase, too, where gradients were waited for."""
        self._depth -= 1
        if self._depth:
            return
        self._recorder.ring.leave(SLOT)
        self.write(op, *token, self._recorder.clock(), phase)

    def write(self, op: str, start: int, comm: int, now: int, phase: bool) -> None:
        """Write a wait."""
        ring = self._recorder.ring
        ring.event(COLLECTIVE, ring.name(op), start, now - start, self._sequence, comm, NONE16, 0)
        self._sequence += 1
        if self.cycles is not None:
            self._cycle(self.cycles, start)
        if phase:
            self._recorder.phase("sync", start, now)

    def negotiation(self, cycles: horovod_cycles.Cycles, start: int) -> int:
        """Of a wait that began then and has just ended."""
        return cycles.waited(start)

    def _cycle(self, cycles: horovod_cycles.Cycles, start: int) -> None:
        """Write how much of a wait was negotiation, and now and then what cycles take."""
        negotiation = self.negotiation(cycles, start)
        if negotiation >= 0:
            self._recorder.phase("negotiation", start, start + negotiation)
        counted = cycles.account()
        if counted is not None:
            began, took, number = counted
            self._recorder.ring.event(MARK, self._recorder.ring.name("horovod_cycle"), began, took, value=number)

    def fails(self) -> None:
        """The call raised: an elastic job has lost a rank."""
        self._depth -= 1
        self._recorder.ring.leave(SLOT)

    def moved(self, *_: Any) -> None:
        """Horovod has been initialised, again perhaps: this process may have another rank now."""
        from hindmost import bootstrap

        hvd = self._horovod
        for begins in self._recorder.on_epoch:  # the step that was interrupted is none
            self._recorder.defer(begins)
        bootstrap.move(hvd.rank(), hvd.size(), hvd.local_rank())
        self._sequence = 0
        self._handles.clear()
        if self.cycles is not None:
            self.cycles.forget()

    def watch(self, owner: Any, name: str, op: str, phase: bool = False) -> None:
        """Hook one function."""
        around(
            owner,
            name,
            lambda *_: self.begins(op),
            lambda token, *_: self.ends(op, token, phase),
            lambda *_: self.fails(),
        )

    def watch_handles(self) -> None:
        """Hook what begins an operation and what waits for it. The wait is the operation's, whenever it began."""
        for name, op in HANDLES.items():
            if hasattr(self._horovod, name):
                around(self._horovod, name, lambda *_: 0, lambda _, handle, *__, op=op: self._began(handle, op))
        if hasattr(self._horovod, "synchronize"):
            around(self._horovod, "synchronize", self._waits, self._waited, lambda *_: self.fails())

    def _began(self, handle: Any, op: str) -> None:
        if len(self._handles) >= MOST_HANDLES:
            self._handles.clear()
        self._handles[handle] = op

    def _waits(self, handle: Any = None, *_: Any) -> tuple[str, tuple[int, int]] | None:
        op = self._handles.pop(handle, None)
        token = self.begins(op) if op is not None else None
        return (op, token) if op is not None and token is not None else None

    def _waited(self, token: tuple[str, tuple[int, int]], *_: Any) -> None:
        self.ends(*token, phase=False)

    def watch_all(self) -> None:
        """Hook the module's functions, and where ranks are given out."""
        module = self._horovod
        self._recorder.name_framework("horovod")
        _quieten_shim()
        for place in (module, getattr(module, "elastic", None)):  # an elastic job begins again by a name of its own
            if hasattr(place, "init"):
                around(place, "init", lambda *_: 0, self.moved)
        for name, op in CALLS.items():
            if hasattr(module, name):
                self.watch(module, name, op)


def install(horovod: ModuleType, recorder: Recorder) -> None:
    """Hook horovod.torch, which has just been imported."""
    module: Any = horovod
    calls = Calls(module, recorder)
    calls.watch_all()
    calls.watch_handles()
    calls.watch(module.optimizer._DistributedOptimizer, "synchronize", "all_reduce", phase=True)


def _quieten_shim() -> None:
    """Have the PMPI shim, where it is loaded, record no more in this process."""
    pause = getattr(ctypes.CDLL(None), "hindmost_pmpi_pause", None)
    if pause is not None:
        pause()
