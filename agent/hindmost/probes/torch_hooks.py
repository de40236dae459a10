"""What is called before and after torch's functions: the Python twin of ``native/_hooks.c``.

A hook that runs once a step runs in cold caches, where Python is many times slower than in a loop. So what is seen here
is only stamped, and left in the recorder's row for later; C writes it at once.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING, Any

from hindmost.errors import warn_once
from hindmost.probes import torch_copies
from hindmost.probes.guard import around
from hindmost.probes.torch_steps import REPEATS, Batches, StepDetector
from hindmost.recorder import FLUSH_NS, PHASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost.probes.torch_cuda import GpuPhases
    from hindmost.recorder import Recorder

SLOT = 8  # of the open table: the innermost phases of loops that mark so many are not shown


class Hooks:
    """What is called before and after torch's functions, in the training thread only.

    Each takes the time, leaves a call to the detector in the recorder's row for later, and returns: it runs between
    a training loop's own work, in caches that are cold for it.
    """

    def __init__(self, torch: Any, recorder: Recorder, gpu: GpuPhases | None) -> None:
        self._gradients = torch.is_grad_enabled
        self._recorder = recorder
        self._detector = StepDetector(recorder)
        self.step_begins = self._careful(self._step_begins)
        self.step_ends = self._careful(self._step_ends)
        self._clock = recorder.clock
        self._later = recorder.later
        self._sampling = recorder.sampling
        self._gpu = gpu
        self._copies = torch_copies.install(torch, recorder, gpu) if gpu is not None else None
        self._batches = Batches()
        self._fed = False  # input was fetched since the last tick
        self._stepped = 1  # steps of optimizers since then; the first fetch is a tick, too
        self._backwards = 0  # backward inside backward (activation checkpointing) is part of the outer one
        self._optimizing = 0  # Horovod's step calls the wrapped optimizer's step: both tell us
        self._prompted = False  # a backward began since the optimizer's last step did, in its closure or after it
        self._started = 0
        self._passing = 0  # train steps gone by unrecorded, the one in progress included; 0: it is recorded
        self._engine = 0  # a thread of autograd's in which optimizers step while the training thread is in backward
        self._rival = 0  # another thread that trains
        self._within = 0  # an optimizer that has stepped within the backward in progress
        recorder.on_handover.append(self._handed_over)

    def surround(self, owner: Any, name: str, place: str) -> Any:
        """Hook a function: ``place`` is ``fetch`` or ``backward``. Its ``original`` is what the hook calls."""
        if place == "fetch":
            return around(owner, name, self.input_begins, self.input_ends, self.input_fails)
        return around(owner, name, self.backward_begins, self.backward_ends, self.backward_ends)

    def _handed_over(self) -> None:
        """Another thread trains than the one that fetched: what that one did, and may be doing, is no step's."""
        self._fed = False
        self._recorder.ring.leave(SLOT)
        self._later.append((self._detector.forgets,))

    def _careful(self, hook: Callable[..., None]) -> Callable[..., None]:
        """A hook of optimizers. Where it fails all hooks are idle from then on: what is known by then may be wrong."""

        def careful(optimizer: Any, *_: Any) -> None:
            try:
                hook(optimizer)
            except Exception as error:
                self._recorder.abandon()
                warn_once(f"torch's optimizers cannot be observed ({error!r})")

        careful._torchdynamo_disable = True  # type: ignore[attr-defined]
        return careful

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
            if not recorder.explicit:  # a loop that marks its steps says where they end
                recorder.tick(start)
            if (self._passing or self._sampling.passing) and self._passes(start, gradients):
                return None
            if self._gpu is not None and self._sampling.measuring:
                self._gpu.fetches()
        self._fed = True
        self._optimizing = 0
        source = id(getattr(iterator, "_dataset", iterator))
        self._later.append((self._detector.input_begins, start, source, gradients))
        recorder.ring.enter(SLOT, PHASE, recorder.ids.get("input") or recorder.id("input"), start)
        end = self._clock()
        recorder.own_ns += end - start
        if end > recorder.due_ns + FLUSH_NS:  # an evaluation has no optimizer, where this is done otherwise
            recorder.flush_at(end)
        return start

    def input_ends(self, start: int, batch: Any, _iterator: Any) -> None:
        now = self._clock()
        recorder = self._recorder
        if get_ident() != recorder.thread:  # another has taken its place meanwhile
            return
        recorder.ring.leave(SLOT)
        self._later.append((self._detector.input_ends, start, now, self._batches.work(batch)))
        if self._gpu is not None and self._sampling.measuring:
            self._gpu.ready()
            if self._copies is not None:
                self._copies.begin(sys._getframe(2))
        recorder.own_ns += self._clock() - now

    def input_fails(self, _start: int, _iterator: Any) -> None:
        if get_ident() != self._recorder.thread:
            return
        self._recorder.ring.leave(SLOT)
        self._later.append((self._detector.input_fails,))

    def backward_begins(self, *_: Any) -> int | None:
        recorder = self._recorder
        if self._backwards or self._passing:
            return None
        if not self._trains_here():
            self._rival = get_ident()
            return None
        start = self._clock()
        self._backwards = 1
        self._prompted = True
        self._later.append((self._detector.backward_begins, start))
        recorder.ring.enter(SLOT, PHASE, recorder.ids.get("backward") or recorder.id("backward"), start)
        if self._gpu is not None and self._sampling.measuring:
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
        self._later.append((self._detector.backward_ends, start, now))
        if self._gpu is not None and self._sampling.measuring:
            self._gpu.backward_ends()
        within, self._within = self._within, 0
        if within:
            self._steps(now, self._detector.stepped, now, within)
        else:
            recorder.own_ns += self._clock() - now

    def _steps_elsewhere(self, optimizer: Any) -> None:
        """On a GPU hooks of gradients run in a thread of autograd's: who steps in one is the training thread's."""
        here = get_ident()
        if here == self._rival:
            return
        if self._backwards:
            self._engine, self._within = here, id(optimizer)
        elif self._passing and here == self._engine:
            self._stepped = 1

    def _step_begins(self, optimizer: Any) -> None:
        recorder = self._recorder
        if not self._trains_here():
            self._steps_elsewhere(optimizer)
            return
        if self._prompted:  # since the previous step began: that one ended, or raised and reported no end
            self._prompted = False
            self._optimizing = 0
        self._optimizing += 1
        if self._optimizing == 1 and not self._passing:
            self._started = start = self._clock()
            self._later.append((self._detector.optimizer_begins, start))
            recorder.own_ns += self._clock() - start

    def _step_ends(self, optimizer: Any) -> None:
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
        if self._gpu is not None and self._sampling.measuring:
            self._gpu.optimizer_ends()
        self._steps(now, self._detector.optimizer_ends, self._started, now, id(optimizer))

    def _steps(self, now: int, callback: Callable[..., None], *what: int) -> None:
        """An optimizer's step has ended."""
        recorder = self._recorder
        self._stepped += 1
        if not self._fed or self._stepped > REPEATS:
            self._step_ends_here(now)
        self._later.append((callback, *what))
        end = self._clock()
        recorder.own_ns += end - now
        if end >= recorder.due_ns:
            recorder.flush_at(end)

    def _trains_here(self) -> bool:
        recorder = self._recorder
        return get_ident() == recorder.thread if recorder.surely else recorder.trains_here()

    def _passes(self, start: int, gradients: bool) -> bool:
        """Whether the step that begins goes unrecorded, because hooks take too much of such short steps."""
        passing = self._passing
        if self._sampling.passing and gradients and not self._recorder.explicit:
            if not passing:
                self._later.append((self._detector.ends, start))
            self._passing += 1
            return True
        if passing:
            self._later.append((self._detector.passed, start, passing))
            self._passing = 0
        return False

    def _step_ends_here(self, now: int) -> None:
        """Where a loop fetches nothing. What the step used has to be known before it is written."""
        if self._recorder.explicit:
            return
        measured = self._sampling.measuring
        self._recorder.tick(now)
        if self._gpu is not None and self._sampling.measuring and not measured:
            self._gpu.ready()
