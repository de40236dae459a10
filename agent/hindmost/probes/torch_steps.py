"""Where a training loop's steps begin and end, from what its framework does: a state machine over a few times.

A train step runs from the start of one fetch of input, after which an optimizer stepped, to the start of the next
fetch. Several fetches without an optimizer step between them (gradient accumulation, two loaders) are one step, and so
are several optimizers after one fetch. A loop that fetches nothing (its data are made in place, or one batch is used
for ever) has steps that end with its first optimizer's step. A fetch without gradients begins an evaluation step; so,
where the step before was of a loop that fetches nothing, does one from a source that never trained: only where the next
step has such a fetch, too, the loop has begun to train on what it fetches.

``forward`` is not hooked: it is the time from when the batch was there (or the last backward, or optimizer step, ended)
until backward began, less whatever is named inside it. It so includes the loss and, on a CPU, everything that the loop
does to the batch. A batch's work is its tokens, where it has ``input_ids``, else its samples.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hindmost.recorder import Recorder

#: So many steps of one optimizer after one fetch mean that the loop fetches no more.
REPEATS = 8
#: Batches that a loader may be ahead of the step that uses them.
AHEAD = 16
#: Different sources of input; the least recently used is forgotten.
SOURCES = 8


class Source:
    """Where batches are fetched from."""

    __slots__ = ("before", "fetched", "trains", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque(maxlen=AHEAD)  # work of batches fetched and not yet used
        self.fetched = 0  # batches since some were used
        self.before = 0  # the same, between the two uses before
        self.trains = False  # a backward followed


class StepDetector:
    """Gets what happens in the training thread, with ``CLOCK_MONOTONIC`` ns; writes steps and phases."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._boundary = -1  # where the step in progress began; -1: none is
        self._ready = -1  # since when a forward may be running
        self._last = -1  # when the last optimizer step or backward ended
        self._sources: dict[int, Source] = {}  # the one used last is the last
        self._fed = False  # input was fetched in this step
        self._evaluating = False
        self._backward = False
        self._prompted = False  # backward was called, ever
        self._unprompted = 0  # steps of optimizers before that
        self._stepped: dict[int, int] = {}  # optimizer -> its steps in this step
        self._leader: int | None = None  # the optimizer whose step ends a step of a loop that fetches nothing
        self._trainers = False  # a backward has followed some source
        self._unfed = False  # the train step before this one fetched nothing
        self._strayed = False  # this one did, for an evaluation
        self._source = 0
        recorder.closers.append(self.finish)
        recorder.on_epoch.append(self.forgets)
        recorder.on_pause.append(self.pauses)

    def input_begins(self, now: int, source: int = 0, gradients: bool = True) -> None:
        """A fetch from ``source`` begins; ``gradients`` says whether autograd records."""
        if self._stepped:
            self._close(now, "train")
        elif self._fed and (self._evaluating or (not self._backward and self._only_evaluates(self._source))):
            self._forward_until(now)
            self._use_batches()
            self._close(now, "eval")
        if not (self._fed or self._backward):
            self._boundary = now
        self._evaluating = not gradients
        self._source = source
        self._show(self._boundary, "train" if gradients else "eval")

    def input_ends(self, start: int, now: int, work: int = 0) -> None:
        """The batch is there. ``work``: samples or tokens in it, 0 unknown."""
        self._recorder.write("input", start, now)
        self._fed = True
        self._backward = False
        known = self._sources.pop(self._source, None)
        source = self._sources[self._source] = known or Source()
        if len(self._sources) > SOURCES:
            del self._sources[next(iter(self._sources))]
        source.waiting.append(work)
        source.fetched += 1
        self._ready = now

    def input_fails(self) -> None:
        """There was no batch: the epoch is over, or the data set raised."""
        self._tell_stray()
        if not self._fed and not self._backward:
            self._boundary = self._ready = -1
            if not self._recorder.explicit:
                self._recorder.step_leaves()

    def backward_begins(self, now: int) -> None:
        """The outermost backward begins."""
        self._begin(now)
        self._forward_until(now)
        self._backward = self._prompted = True
        self._use_batches()
        if self._fed and self._source in self._sources:
            self._sources[self._source].trains = self._trainers = True
        self._evaluating = False

    def backward_ends(self, start: int, now: int) -> None:
        """The outermost backward has returned."""
        self._recorder.write("backward", start, now)
        self._ready = self._last = now

    def optimizer_begins(self, now: int) -> None:
        """An optimizer's step begins. Where it calls a closure, the forward in there began no earlier."""
        self._begin(now)
        self._ready = now

    def optimizer_ends(self, start: int, now: int, optimizer: int) -> None:
        """An optimizer's step has ended. ``optimizer`` tells the optimizers of a process apart."""
        self._recorder.write("optimizer", start, now)
        self.stepped(now, optimizer)

    def stepped(self, now: int, optimizer: int) -> None:
        """An optimizer has made its step, whose time is none of the training thread's."""
        self._ready = self._last = now
        if not self._trains():
            return
        repeats = self._stepped[optimizer] = self._stepped.get(optimizer, 0) + 1
        if self._leader is None or (repeats > 1 and self._leader not in self._stepped):
            self._leader = optimizer
        if optimizer == self._leader and (not self._fed or repeats > REPEATS):
            self._close(now, "train")
            self._show(now)

    def forgets(self) -> None:
        """An epoch begins, or training begins again: what was fetched and not used is no step's."""
        if self._stepped:
            self._close(self._last, "train")
        self._recorder.seen_work = 0
        self._forget_batches()
        self._boundary = self._ready = -1
        self._fed = self._backward = self._evaluating = False

    def pauses(self, now: int) -> None:
        """The loop does something that is no batch's: an evaluation whose last batch it knew to be so has ended."""
        if self._evaluating and self._fed:
            self._forward_until(now)
            self._use_batches()
            self._close(now, "eval")
            self._boundary = self._ready = -1

    def ends(self, now: int) -> None:
        """The step in progress ends here, and what comes goes unrecorded."""
        if self._stepped:
            self._close(now, "train")
        self._recorder.step_leaves()

    def passed(self, now: int, count: int) -> None:
        """So many train steps went by unrecorded; the next begins now."""
        if not self._recorder.explicit:
            self._recorder.numbers["train"] += count
        self._boundary = self._ready = now
        self._forget_batches()

    def finish(self) -> None:
        """No more will come: the last step ended with its last optimizer step."""
        if self._stepped:
            self._close(self._last, "train")
        self._recorder.step_leaves()

    def _trains(self) -> bool:
        """Whether an optimizer's step ends something: one before any backward only makes the optimizer's state.

        A loop that never calls backward has gradients from elsewhere; after some steps that is believed.
        """
        self._unprompted += not self._prompted
        return self._prompted or self._unprompted > REPEATS

    def _begin(self, now: int) -> None:
        """The first sign of a step, where no fetch was."""
        self._tell_stray()
        if self._boundary < 0:
            self._boundary = now
            self._show(now)
        if self._ready < 0:
            self._ready = now

    def _tell_stray(self) -> None:
        """Where the loop fetches nothing to train on, what it fetched was for an evaluation, and that has ended."""
        if self._fed and self._unfed and not self._backward and not self._trains_from(self._source):
            if self._source in self._sources:
                self._sources[self._source].waiting.clear()
            self._boundary = self._ready = -1
            self._fed = self._evaluating = False
            self._strayed = True

    def _use_batches(self) -> None:
        """One batch of each source is used: the oldest, for a loader may be some batches ahead.

        Where several are fetched between uses again and again, of two loaders of one data set, as many.
        """
        for source in self._sources.values():
            used = source.fetched if source.fetched > 1 and source.before > 1 else 1
            source.before, source.fetched = source.fetched, 0
            for _ in range(min(used, len(source.waiting))):
                self._recorder.seen_work += source.waiting.popleft()

    def _forget_batches(self) -> None:
        for source in self._sources.values():
            source.waiting.clear()

    def _show(self, now: int, kind: str = "train") -> None:
        """Show a step in progress, unless the loop says for itself."""
        if not self._recorder.explicit:
            self._recorder.step_begins(now, kind)

    def _forward_until(self, now: int) -> None:
        if 0 <= self._ready < now:
            self._recorder.write("forward", self._ready, now)

    def _only_evaluates(self, source: int) -> bool:
        """Whether this source has fed no backward while another has."""
        return self._trainers and not self._trains_from(source)

    def _trains_from(self, source: int) -> bool:
        return source in self._sources and self._sources[source].trains

    def _close(self, now: int, kind: str) -> None:
        """The step in progress ends here and the next one begins."""
        recorder = self._recorder
        if not recorder.explicit:
            recorder.write_step(self._boundary, now, kind)
        elif kind == "eval":
            recorder.seen_work = 0  # else the next step that is marked would count it
        if kind == "train":
            self._unfed = not (self._fed or self._strayed)
            self._strayed = False
        self._boundary = self._ready = now
        self._fed = self._backward = self._evaluating = False
        self._stepped.clear()


#: How deep a batch is searched for its first tensor.
DEPTH = 3
#: Batches that are not searched, after many that had none.
MOST_SKIPPED = 63


class Batches:
    """Remembers where in a loader's batches the tensor stands whose shape tells how much work they are."""

    def __init__(self) -> None:
        self._kind: type | None = None
        self._way: tuple[Any, ...] = ()
        self._skip = self._fruitless = 0

    def work(self, batch: Any) -> int:
        """Tokens or samples in a batch; 0 unknown."""
        if type(batch) is not self._kind and not self._search(batch):
            return 0
        try:
            found = batch
            for key in self._way:
                found = found[key]
            shape = found.shape
            return math.prod(shape) if "input_ids" in self._way else int(shape[0])
        except (AttributeError, IndexError, KeyError, TypeError):  # unlike the last: it is looked at anew
            self._kind = None
            return 0

    def _search(self, batch: Any) -> bool:
        """Whether a tensor was found. Where none was again and again, few batches are searched: that takes a while."""
        if self._skip:
            self._skip -= 1
            return False
        try:
            way = way_to_shape(batch)
        except (AttributeError, IndexError, KeyError, TypeError):
            way = None
        if way is None:
            self._skip, self._fruitless = self._fruitless, (2 * self._fruitless + 1) & MOST_SKIPPED
            return False
        self._kind, self._way = type(batch), way
        self._skip = self._fruitless = 0
        return True


def way_to_shape(batch: Any, depth: int = DEPTH) -> tuple[Any, ...] | None:
    """The keys and indices that lead to ``input_ids``, or else to the first tensor that has a dimension."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return () if len(shape) else None
    if depth == 0:
        return None
    keys: Any = ()
    if isinstance(batch, (list, tuple)):
        keys = range(min(len(batch), 16))
    elif hasattr(batch, "keys"):
        keys = ["input_ids"] if hasattr(batch.get("input_ids"), "shape") else list(batch.keys())[:16]
    ways = ((key, way_to_shape(batch[key], depth - 1)) for key in keys)
    return next(((key, *way) for key, way in ways if way is not None), None)
