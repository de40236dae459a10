"""Horovod: how long each rank waits for the others' gradients, and for collectives called by hand.

With PyTorch, Horovod's own thread reduces gradients while backward runs; the training thread meets the others in
``DistributedOptimizer.synchronize``, after all its own gradients have been handed over. Steps and the other phases are
``torch.py``'s business. Horovod's coordination over MPI happens every few ms, with or without training, and says
nothing about ranks: a PMPI shim in this process is switched off. In an elastic job a rank whose number has changed
goes on in a new ring.

With TensorFlow and Keras 2, gradients are reduced inside TensorFlow's compiled step, where Python does not come by.
The PMPI shim sees when TensorFlow hands a tensor over and gets it back (``native/tensorflow_calls.c``): as a step
ends, which Keras's callbacks or the loop's own marks tell, the last of these say what the rank waited. Without the
shim only calls by hand are seen.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hindmost.probes import horovod_cycles, on_import
from hindmost.probes.guard import around
from hindmost.probes.torch_ddp import COLLECTIVE, NONE16, communicator_id
from hindmost.recorder import MARK

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.probes.horovod_cycles import Cycles
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


def size_of(value: Any) -> int:
    """Bytes of a tensor, a sequence of tensors, or named ones; 0 where that is not known."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(size_of(one[1] if isinstance(one, tuple) and len(one) == 2 else one) for one in value)
    if hasattr(value, "element_size"):
        return int(value.numel() * value.element_size())
    shape: Any = getattr(value, "shape", None)  # of TensorFlow
    return int((shape.num_elements() or 0) * value.dtype.size) if hasattr(shape, "num_elements") else 0


def _passed(args: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Bytes of what a call was given first."""
    return size_of(args[0] if args else named.get("tensor", named.get("tensors")))


class Calls:
    """Writes what the training thread waits for, as collectives of the global communicator or of a process set."""

    def __init__(self, horovod: Any, recorder: Recorder) -> None:
        self._horovod = horovod
        self._recorder = recorder
        self._ring: Any = None  # in which these are known:
        self._communicators: dict[tuple[int, ...], int] = {}
        self._sequences: Counter[int] = Counter()
        self._handles: dict[Any, tuple[str, Any, int]] = {}
        #: Optimizer to how many parameters it has, and their bytes.
        self._gradients: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        self._depth = 0  # a blocking call may be made of others
        self.cycles = horovod_cycles.watch(horovod)

    def communicator(self, process_set: Any = None) -> int:
        """The index in the ring of a process set's communicator, or of all ranks', which changes in an elastic job."""
        if self._ring is not self._recorder.ring:
            self._forget()
        members = tuple(process_set.ranks or ()) if getattr(process_set, "process_set_id", 0) else ()
        found = self._communicators.get(members)
        if found is None:
            ranks, rank = members or range(self._horovod.size()), self._horovod.rank()
            place = ranks.index(rank) if rank in ranks else -1
            found = self._ring.communicator(communicator_id(ranks), place, len(ranks), "horovod")
            self._communicators[members] = found
        return found

    def _forget(self) -> None:
        """Another ring, or other ranks: all is counted anew."""
        self._ring = self._recorder.ring
        self._communicators.clear()
        self._sequences.clear()
        self._handles.clear()

    def begins(self, op: str, process_set: Any = None, size: int = 0) -> tuple[int, int, int] | None:
        """Start, communicator and bytes of an outermost call in the training thread."""
        if not self._recorder.training_thread() or not self._horovod.is_initialized():
            return None
        self._depth += 1
        now, comm = self._recorder.clock(), self.communicator(process_set)
        if self._depth == 1:
            ring = self._recorder.ring
            ring.enter(SLOT, COLLECTIVE, ring.name(op), now, self._sequences[comm], comm)
        return now, comm, size

    def ends(self, op: str, token: tuple[int, int, int], phase: bool) -> None:
        """Write it; as the step's ``sync`` phase, too, where gradients were waited for."""
        self._depth -= 1
        if self._depth:
            return
        self._recorder.ring.leave(SLOT)
        start, comm, size = token
        self.write(op, start, comm, self._recorder.clock(), phase, size)

    def write(self, op: str, start: int, comm: int, now: int, phase: bool, size: int = 0) -> None:
        """Write a wait."""
        ring = self._recorder.ring
        ring.event(COLLECTIVE, ring.name(op), start, now - start, self._sequences[comm], comm, NONE16, size)
        self._sequences[comm] += 1
        if self.cycles is not None:
            self._cycle(self.cycles, start)
        if phase:
            self._recorder.phase("sync", start, now)

    def negotiation(self, cycles: Cycles, start: int) -> int:
        """Of a wait that began then and has just ended."""
        return cycles.waited(start)

    def _cycle(self, cycles: Cycles, start: int) -> None:
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

    def moved(self, start: int, *_: Any) -> None:
        """Horovod has been initialised, again perhaps: this process may have another rank now."""
        hvd = self._horovod
        self._recorder.set_up("init", start, self._recorder.clock())
        for begins in self._recorder.on_epoch:  # the step that was interrupted is none
            self._recorder.defer(begins)
        self._recorder.change_rank(hvd.rank(), hvd.size(), hvd.local_rank())
        self._forget()
        if self.cycles is not None:
            self.cycles.forget()

    def watch(self, name: str, op: str) -> None:
        """Hook one function of the module, which may get a process set."""
        around(
            self._horovod,
            name,
            lambda *args, process_set=None, **named: self.begins(op, process_set, _passed(args, named)),
            lambda token, *_: self.ends(op, token, phase=False),
            lambda *_: self.fails(),
            named=True,
        )

    def watch_optimizer(self, optimizer: Any) -> None:
        """Hook where gradients are waited for."""
        around(
            optimizer,
            "synchronize",
            lambda self_, *_: self.begins("all_reduce", getattr(self_, "process_set", None), self._size_of(self_)),
            lambda token, *_: self.ends("all_reduce", token, phase=True),
            lambda *_: self.fails(),
        )

    def _size_of(self, optimizer: Any) -> int:
        """Bytes of all gradients that it reduces, as they are sent; 0 for an optimizer that does not name them."""
        parameters = getattr(optimizer, "_requires_update", ())
        try:
            known = self._gradients.get(optimizer)
        except TypeError:  # it has no hash, or nothing may refer to it weakly: added up each time
            known = None
        if known is None or known[0] != len(parameters):
            halved = getattr(getattr(optimizer, "_compression", None), "__name__", "") == "FP16Compressor"
            sizes = (
                one.numel() * (2 if halved and one.is_floating_point() else one.element_size()) for one in parameters
            )
            known = len(parameters), sum(sizes)
            with contextlib.suppress(TypeError):
                self._gradients[optimizer] = known
        return known[1]

    def watch_handles(self) -> None:
        """Hook what begins an operation and what waits for it. The wait is the operation's, whenever it began."""
        for name, op in HANDLES.items():
            if hasattr(self._horovod, name):
                around(
                    self._horovod,
                    name,
                    lambda *args, process_set=None, **named: (process_set, _passed(args, named)),
                    lambda token, handle, *_, op=op: self._began(handle, op, *token),
                    named=True,
                )
        if hasattr(self._horovod, "synchronize"):
            around(self._horovod, "synchronize", self._waits, self._waited, lambda *_: self.fails())

    def _began(self, handle: Any, op: str, process_set: Any, size: int) -> None:
        if len(self._handles) >= MOST_HANDLES:
            self._handles.clear()
        self._handles[handle] = op, process_set, size

    def _waits(self, handle: Any = None, *_: Any) -> tuple[str, tuple[int, int, int]] | None:
        known = self._handles.pop(handle, None)
        token = self.begins(*known) if known is not None else None
        return (known[0], token) if known is not None and token is not None else None

    def _waited(self, token: tuple[str, tuple[int, int, int]], *_: Any) -> None:
        self.ends(*token, phase=False)

    def watch_all(self) -> None:
        """Hook the module's functions, and where ranks are given out."""
        module = self._horovod
        self._recorder.name_framework("horovod")
        _quieten_shim()
        for place in (module, getattr(module, "elastic", None)):  # an elastic job begins again by a name of its own
            if hasattr(place, "init"):
                around(place, "init", lambda *_: self._recorder.clock(), self.moved)
        for name, op in CALLS.items():
            if hasattr(module, name):
                self.watch(name, op)


@on_import("horovod.torch")
def install(horovod: ModuleType, recorder: Recorder) -> None:
    """Hook horovod.torch, which has just been imported."""
    module: Any = horovod
    calls = Calls(module, recorder)
    calls.watch_all()
    calls.watch_handles()
    calls.watch_optimizer(module.optimizer._DistributedOptimizer)


class TensorFlowCalls(Calls):
    """Writes what a step waited for as one collective, and what is called eagerly as the others."""

    def __init__(self, horovod: Any, recorder: Recorder) -> None:
        super().__init__(horovod, recorder)
        self._tensorflow = horovod.tf
        self._handed = 0

    def begins(self, op: str, process_set: Any = None, size: int = 0) -> tuple[int, int, int] | None:
        """As for torch; what is called while a function is traced happens later."""
        return super().begins(op, process_set, size) if self._tensorflow.executing_eagerly() else None

    def ends(self, op: str, token: tuple[int, int, int], phase: bool) -> None:
        """As for torch; no step that is under way has anything to do with it."""
        super().ends(op, token, phase)
        if self.cycles is not None:
            self._handed = self.cycles.handed

    def negotiation(self, cycles: Cycles, start: int) -> int:
        """Of a wait that began then, until the last tensor came back."""
        return cycles.negotiation(start, max(start, cycles.reduced_ns))

    def step_ends(self, start: int, end: int) -> None:
        """What the step reduced, if anything: from when the last tensor was handed over until all were back."""
        cycles = self.cycles
        if cycles is None or cycles.handed == self._handed:
            return
        self._handed = cycles.handed
        ready, back = cycles.handed_ns, cycles.reduced_ns
        if start <= ready <= back <= end:
            self.write("all_reduce", ready, self.communicator(), back, phase=True)


@on_import("horovod.tensorflow")
def install_tensorflow(horovod: ModuleType, recorder: Recorder) -> None:
    """Hook horovod.tensorflow, which has just been imported; its Keras front ends come after it."""
    calls = TensorFlowCalls(horovod, recorder)
    calls.watch_all()
    recorder.on_end.append(calls.step_ends)


def _quieten_shim() -> None:
    """Have the PMPI shim, where it is loaded, record no more in this process."""
    pause = getattr(ctypes.CDLL(None), "hindmost_pmpi_pause", None)
    if pause is not None:
        pause()
