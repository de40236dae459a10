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
#: Blocking functions of ``horovod.torch`` -> operation.
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
}


class Calls:
    """Writes what the training thread waits for, as collectives of Horovod's global communicator."""

    def __init__(self, horovod: Any, recorder: Recorder) -> None:
        self._horovod = horovod
        self._recorder = recorder
        self._sequence = 0
        self._depth = 0  # a blocking call may be made of others
        self._cycles = horovod_cycles.watch(horovod)

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
        (start, comm), ring = token, self._recorder.ring
        now = self._recorder.clock()
        ring.leave(SLOT)
        ring.event(COLLECTIVE, ring.name(op), start, now - start, self._sequence, comm, NONE16, 0)
        self._sequence += 1
        if self._cycles is not None:
            self._cycle(self._cycles, start)
        if phase:
            self._recorder.phase("sync", start, now)

    def _cycle(self, cycles: horovod_cycles.Cycles, start: int) -> None:
        """Write how much of a wait was negotiation, and now and then what cycles take."""
        negotiation = cycles.waited(start)
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

    def watch(self, owner: Any, name: str, op: str, phase: bool = False) -> None:
        """Hook one function."""
        around(
            owner,
            name,
            lambda *_: self.begins(op),
            lambda token, *_: self.ends(op, token, phase),
            lambda *_: self.fails(),
        )


def install(horovod: ModuleType, recorder: Recorder) -> None:
    """Hook horovod.torch, which has just been imported."""
    recorder.name_framework("horovod")
    _quieten_shim()
    calls = Calls(horovod, recorder)
    module: Any = horovod
    for place in (module, getattr(module, "elastic", None)):  # an elastic job begins again by a name of its own
        if hasattr(place, "init"):
            around(place, "init", lambda *_: 0, calls.moved)
    calls.watch(module.optimizer._DistributedOptimizer, "synchronize", "all_reduce", phase=True)
    for name, op in CALLS.items():
        if hasattr(module, name):
            calls.watch(module, name, op)


def _quieten_shim() -> None:
    """Have the PMPI shim, where it is loaded, record no more in this process."""
    pause = getattr(ctypes.CDLL(None), "hindmost_pmpi_pause", None)
    if pause is not None:
        pause()
