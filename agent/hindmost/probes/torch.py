"""PyTorch: input, forward, backward, optimizer and checkpoint of each step, by hooks around few functions.

Nothing is hooked per module or per tensor: a step costs some microseconds whatever the model's size. Where steps begin
and end is ``recognise.py``'s business. Works with several optimizers, gradient accumulation, AMP and ``torch.compile``;
optimizers that call a closure (LBFGS, Lightning) count without the forward and backward inside them.
"""

from __future__ import annotations

import importlib
import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hindmost.bootstrap import complain
from hindmost.probes import torch_collectives, torch_copies, torch_ddp, torch_place
from hindmost.probes.batches import Batches
from hindmost.probes.guard import around, undo
from hindmost.probes.recognise import REPEATS, Recogniser
from hindmost.probes.torch_cuda import GpuPhases
from hindmost.recorder import FLUSH_NS, PHASE

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder

SLOT = 8  # of the open table: the innermost phases of loops that mark so many are not shown


class Hooks:
    """What is called before and after torch's functions, in the training thread only.

    Each takes the time, leaves a call to the recogniser in the recorder's row for later, and returns: it runs between
    a training loop's own work, in caches that are cold for it.
    """

    def __init__(self, torch: Any, recorder: Recorder, recogniser: Recogniser, gpu: GpuPhases | None) -> None:
        self._gradients = torch.is_grad_enabled
        self._recorder = recorder
        self._recogniser = recogniser
        self._clock = recorder.clock
        self._later = recorder.later
        self._pace = recorder.pace
        self._gpu = gpu
        self._copies = torch_copies.install(torch, recorder, gpu) if gpu is not None else None
        self._batches = Batches()
        self._fed = False  # input was fetched since the last tick
        self._stepped = 1  # steps of optimizers since then; the first fetch is a tick, too
        self._backwards = 0  # backward inside backward (activation checkpointing) is part of the outer one
        self._optimizing = 0  # Horovod's step calls the wrapped optimizer's step: both tell us
        self._started = 0
        self._passing = 0  # train steps gone by unrecorded, the one in progress included; 0: it is recorded

    def input_begins(self, iterator: Any) -> int | None:
        recorder = self._recorder
        if get_ident() != recorder.thread and not recorder.training_thread():
            return None
        if self._passing and not self._stepped:
            return None
        start = self._clock()
        gradients = self._gradients()
        if self._stepped:
            self._stepped = 0
            recorder.tick(start)
            if (self._passing or self._pace.passing) and self._passes(start, gradients):
                return None
            if self._gpu is not None and self._pace.measuring:
                self._gpu.fetches()
        self._fed = True
        self._optimizing = 0
        source = id(getattr(iterator, "_dataset", iterator))
        self._later.append((self._recogniser.input_begins, start, source, gradients))
        recorder.ring.enter(SLOT, PHASE, recorder.ids.get("input") or recorder.id("input"), start)
        end = self._clock()
        recorder.own_ns += end - start
        if end > recorder.due_ns + FLUSH_NS:  # an evaluation has no optimizer, where this is done otherwise
            recorder.flush_at(end)
        return start

    def input_ends(self, start: int, batch: Any, _iterator: Any) -> None:
        now = self._clock()
        recorder = self._recorder
        recorder.ring.leave(SLOT)
        self._later.append((self._recogniser.input_ends, start, now, self._batches.work(batch)))
        if self._gpu is not None and self._pace.measuring:
            self._gpu.ready()
            if self._copies is not None:
                self._copies.begin(sys._getframe(2))
        recorder.own_ns += self._clock() - now

    def input_fails(self, _start: int, _iterator: Any) -> None:
        self._recorder.ring.leave(SLOT)
        self._later.append((self._recogniser.input_fails,))

    def backward_begins(self, *_: Any) -> int | None:
        recorder = self._recorder
        if self._backwards or self._passing or (get_ident() != recorder.thread and not recorder.training_thread()):
            return None
        start = self._clock()
        self._backwards = 1
        self._later.append((self._recogniser.backward_begins, start))
        recorder.ring.enter(SLOT, PHASE, recorder.ids.get("backward") or recorder.id("backward"), start)
        if self._gpu is not None and self._pace.measuring:
            if self._copies is not None:
                self._copies.end()
            self._gpu.backward_begins()
        recorder.own_ns += self._clock() - start
        return start

    def backward_ends(self, start: int, *_: Any) -> None:
        now = self._clock()
        recorder = self._recorder
        self._backwards = 0
        recorder.ring.leave(SLOT)
        self._later.append((self._recogniser.backward_ends, start, now))
        if self._gpu is not None and self._pace.measuring:
            self._gpu.backward_ends()
        recorder.own_ns += self._clock() - now

    def step_begins(self, *_: Any) -> int | None:
        recorder = self._recorder
        if get_ident() != recorder.thread and not recorder.training_thread():
            return None
        self._optimizing += 1
        if self._optimizing == 1 and not self._passing:
            self._started = start = self._clock()
            self._later.append((self._recogniser.optimizer_begins, start))
            recorder.own_ns += self._clock() - start
        return 0

    def step_ends(self, optimizer: Any) -> None:
        recorder = self._recorder
        if not self._optimizing or get_ident() != recorder.thread:
            return
        self._optimizing -= 1
        if self._optimizing:
            return
        if self._passing:
            self._stepped = 1
            return
        now = self._clock()
        if self._gpu is not None and self._pace.measuring:
            self._gpu.optimizer_ends()
        self._later.append((self._recogniser.optimizer_ends, self._started, now, id(optimizer)))
        self._stepped += 1
        if not self._fed or self._stepped > REPEATS:
            self._step_ends_here(now)
        end = self._clock()
        recorder.own_ns += end - now
        if end >= recorder.due_ns:
            recorder.flush_at(end)

    def _passes(self, start: int, gradients: bool) -> bool:
        """Whether the step that begins goes unrecorded, because hooks take too much of such short steps."""
        passing = self._passing
        if self._pace.passing and gradients and not self._recorder.explicit:
            if not passing:
                self._later.append((self._recogniser.ends, start))
            self._passing += 1
            return True
        if passing:
            self._later.append((self._recogniser.passed, start, passing))
            self._passing = 0
        return False

    def _step_ends_here(self, now: int) -> None:
        """Where a loop fetches nothing."""
        measured = self._pace.measuring
        self._recorder.tick(now)
        if self._gpu is not None and self._pace.measuring and not measured:
            self._gpu.ready()

    def fails(self, error: Exception) -> None:
        """Take every hook out of this process's steps: what is known by now may be wrong."""
        self._recorder.abandon()
        complain(f"torch's optimizers cannot be observed ({error!r})")

    def save_begins(self, *_: Any) -> int | None:
        if not self._recorder.training_thread():
            return None
        now = self._clock()
        self._later.append((self._recogniser.pauses, now))
        self._recorder.enter("checkpoint", now)
        return now

    def save_ends(self, start: int, *_: Any) -> None:
        self._recorder.leave()
        self._recorder.phase("checkpoint", start, self._clock())


def install(torch: ModuleType, recorder: Recorder) -> None:
    """Hook torch, which has just been imported. What this build of torch does not have is not hooked."""
    recogniser = Recogniser(recorder)
    t: Any = torch
    gpu = GpuPhases(t.cuda, recorder) if t.version.cuda or getattr(t.version, "hip", None) else None
    hooks = Hooks(torch, recorder, recogniser, gpu)
    recorder.name_framework("torch")
    around(
        t.utils.data.dataloader._BaseDataLoaderIter,
        "__next__",
        hooks.input_begins,
        hooks.input_ends,
        hooks.input_fails,
    )
    around(t.autograd, "backward", hooks.backward_begins, hooks.backward_ends, hooks.backward_ends)
    around(t, "save", hooks.save_begins, hooks.save_ends, hooks.save_ends)
    _hook_optimizers(t, hooks)
    torch_place.install(torch)
    torch_ddp.install(t, recorder)
    torch_collectives.install(t, recorder)


def _hook_optimizers(torch: Any, hooks: Hooks) -> None:
    """Every optimizer's step, and that of the AMP scaler, which skips the optimizer's after an overflow."""
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim removes the attribute

    def before(*_: Any) -> None:
        try:
            hooks.step_begins()
        except Exception as error:
            hooks.fails(error)

    def after(optimizer: Any, *_: Any) -> None:
        try:
            hooks.step_ends(optimizer)
        except Exception as error:
            hooks.fails(error)

    before._torchdynamo_disable = after._torchdynamo_disable = True  # type: ignore[attr-defined]
    undo.append(module.register_optimizer_step_pre_hook(before).remove)
    undo.append(module.register_optimizer_step_post_hook(after).remove)
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if scaler is not None:
        around(
            scaler,
            "step",
            lambda _scaler, optimizer, *_: hooks.step_begins(optimizer),
            lambda _start, _result, _scaler, optimizer, *_: hooks.step_ends(optimizer),
            lambda _start, _scaler, optimizer, *_: hooks.step_ends(optimizer),
        )
