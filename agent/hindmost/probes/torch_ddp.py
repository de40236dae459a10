"""DDP over a backend that blocks (gloo, MPI): when a rank's own gradients were ready, and how long it then waited.

DDP's reducer is C++ and overlaps its all-reduces with backward, so no Python function brackets the waiting. But a rank
waits from when its last own gradient is ready until backward returns. One hook on the parameter whose gradient comes
last tells the former; which one that is, is learned from one backward with a hook on each, and learned again when it
did not fire for a while, or after ``RELEARN`` backwards. With NCCL backward returns before the GPUs have met: there the
NCCL plugin tells.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import around, guarded, undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost.probes.self_time import SelfTime
    from hindmost.recorder import Recorder

COLLECTIVE = 3  # of ring.h
SYNC_SLOT = 9
RELEARN = 1000
MISSES = 3
BLOCKING = frozenset({"gloo", "mpi"})
NONE16 = 0xFFFF


def communicator_id(ranks: Sequence[int]) -> int:
    """A process group's id: 64 bits that all its members derive alike from its ranks, and never 0."""
    digest = hashlib.blake2b(",".join(map(str, ranks)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


class Gradients:
    """Of one DDP model: when the last of this rank's own gradients of a backward became ready."""

    def __init__(self, model: Any, recorder: Recorder, self_time: SelfTime, communicator: int) -> None:
        self._model = weakref.ref(model)
        self._recorder = recorder
        self._self_time = self_time
        self.communicator = communicator
        self._name = recorder.ring.name("ddp_sync")
        self._number = 0
        self.bytes = 0
        self._ready = -1
        self._expecting = False
        self._handles: list[Any] = []
        self._last: Any = None  # a weak reference: the model's gradients go with the model
        self._backwards = 0
        self._missed = 0

    def alive(self) -> bool:
        """Whether the model still exists."""
        return self._model() is not None

    def due(self) -> bool:
        """Whether the backward that begins now would synchronise this model: its last forward prepared for it."""
        model = self._model()
        return model is not None and bool(model.require_backward_grad_sync and model.require_forward_param_sync)

    def expect(self, number: int) -> None:
        """The backward that begins now is this communicator's ``number``-th."""
        model = self._model()
        if model is not None and not self._handles:
            self._learn(model)
        self._number = number
        self._ready = -1
        self._expecting = True

    def synchronised(self) -> int:
        """Backward has returned: when the last gradient was ready; -1 where it was another model's, or was not seen."""
        ready = self._ready
        self._expecting = False
        if ready < 0:
            self._miss()
            return ready
        self._recorder.ring.leave(SYNC_SLOT)
        self._backwards += 1
        self._missed = 0
        if len(self._handles) > 1:
            self._keep_only(self._last())
        elif self._backwards >= RELEARN:
            self.forget()
        return ready

    def failed(self) -> None:
        """Backward raised: no wait is pending."""
        self._expecting = False
        self._recorder.ring.leave(SYNC_SLOT)

    def forget(self) -> None:
        """Hook no parameter: the next backward teaches anew which one is the last."""
        self._keep_only(None)

    def _miss(self) -> None:
        """Two models may take turns; several backwards on end mean that this parameter gets no gradient now."""
        self._missed += 1
        if self._missed >= MISSES:
            self.forget()

    def _learn(self, model: Any) -> None:
        """Hook every parameter for one backward; the last to fire is kept."""
        self._backwards = self._missed = self.bytes = 0
        for parameter in model.parameters():
            if parameter.requires_grad:
                self.bytes += parameter.numel() * parameter.element_size()
                self._handles.append(parameter.register_post_accumulate_grad_hook(guarded(self._fired)))

    def _fired(self, parameter: Any) -> None:
        if not self._expecting:  # a backward whose gradients are only accumulated
            return
        self._last = weakref.ref(parameter)
        if len(self._handles) == 1:
            self._self_time.ends()
        self._ready = now = self._recorder.clock()
        if len(self._handles) == 1:
            self._recorder.ring.enter(SYNC_SLOT, COLLECTIVE, self._name, now, self._number, self.communicator)

    def _keep_only(self, parameter: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if parameter is not None:
            self._handles.append(parameter.register_post_accumulate_grad_hook(guarded(self._fired)))


class Synchronisation:
    """Gets every DDP model and every backward; writes ``ddp_sync`` collectives and ``sync`` phases.

    A backward waits once, whichever models it goes through: from when the last of them had all its gradients. Of each
    communicator it is one operation, numbered by the backwards that were to synchronise: those are alike on all ranks,
    where what a rank saw of them need not be.
    """

    def __init__(self, torch: Any, recorder: Recorder, self_time: SelfTime, backward: Any) -> None:
        self._torch = torch
        self._backward = backward
        self._recorder = recorder
        self._self_time = self_time
        self._models: list[Gradients] = []
        self._numbers: dict[int, int] = {}  # by communicator, of its next backward
        self._hooked = False
        undo.append(self._forget)

    def meet(self, _token: int, _result: None, model: Any, *_: Any) -> None:
        """A DDP model was made. It is watched where its process group blocks and its parameters are on the CPU."""
        distributed, group = self._torch.distributed, model.process_group
        if distributed.get_backend(group) not in BLOCKING or next(model.parameters()).device.type != "cpu":
            return
        ranks = distributed.get_process_group_ranks(group)
        index = self._recorder.ring.communicator(
            communicator_id(ranks), distributed.get_rank(group), len(ranks), getattr(group, "group_name", "")
        )
        self._models = [known for known in self._models if known.alive()]
        self._models.append(Gradients(model, self._recorder, self._self_time, index))
        if not self._hooked:  # only now: a job without such a model pays nothing
            self._hooked = True
            # Inside backward's own hook, which writes that phase when this one has been written: the inner first.
            around(self._backward, "original", self.backward_begins, self.backward_ends, self.backward_fails)

    def backward_begins(self, *_: Any) -> list[Gradients] | None:
        """The models that this backward may synchronise."""
        if not self._models or not self._recorder.trains_here():
            return None
        models = [model for model in self._models if model.due()]
        for model in models:
            model.expect(self._numbers.get(model.communicator, 0))
        for communicator in {model.communicator for model in models}:
            self._numbers[communicator] = self._numbers.get(communicator, 0) + 1
        return models or None

    def backward_ends(self, models: list[Gradients], *_: Any) -> None:
        """Write for each communicator what this rank waited for, and the phase of them all."""
        recorder, now = self._recorder, self._recorder.clock()
        waits: dict[int, tuple[int, int]] = {}
        for model in models:
            ready, (last, size) = model.synchronised(), waits.get(model.communicator, (-1, 0))
            if ready >= 0:
                waits[model.communicator] = (max(ready, last), size + model.bytes)
        if len(waits) == 1:  # of several waits at once none is preceded by what came before
            self._self_time.write(min(ready for ready, _ in waits.values()))
        for communicator, (ready, size) in waits.items():
            number, name = self._numbers[communicator] - 1, recorder.ring.name("ddp_sync")
            recorder.ring.event(COLLECTIVE, name, ready, now - ready, number, communicator, NONE16, size)
        if waits:
            recorder.phase("sync", max(ready for ready, _ in waits.values()), now)
            self._self_time.begins(now)

    def backward_fails(self, models: list[Gradients], *_: Any) -> None:
        self._self_time.broken()
        for model in models:
            model.failed()

    def _forget(self) -> None:
        for model in self._models:
            model.forget()


def install(torch: Any, recorder: Recorder, self_time: SelfTime, backward: Any) -> None:
    """Hook DDP, where this build of torch has it. ``backward``: what the hook of backward calls as its ``original``.

    ``forward`` stays as it is: ``torch.compile`` goes through it.
    """
    parallel = getattr(torch.nn.parallel, "DistributedDataParallel", None)
    if parallel is None or not torch.distributed.is_available():
        return
    models = Synchronisation(torch, recorder, self_time, backward)
    around(parallel, "__init__", lambda *_: 0, models.meet)
