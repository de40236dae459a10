"""GPU time of forward, backward and optimizer, by CUDA events that are read steps later and never waited for.

An event is recorded on the current stream where the host has the batch, and where it begins backward, ends backward
and ends the optimizer's step; the time between two of them is the GPU's, idle gaps included. So ``gpu_forward`` holds
the copies to the device unless ``torch_copies.py`` sees them, ``gpu_backward`` the communication that backward waits
for (its last event comes after the reducer has joined the communication stream), and ``gpu_optimizer`` gradient
clipping and unscaling.

Of a copy it is noted with its events how long the host was in the call, and whether the GPU had done all before it and
after it: :func:`copied_ms` says why. During the capture of a graph no CUDA call is made that would invalidate it.

Recording and reading cost host time, which a step of some ms would feel: ``step_sampling.py`` says which steps are
measured.

A copy that is over when its call returns held the host up: every blocking one, and one too short to tell from them. It
took the host's time in the call, from launching it to waking up, and from when the GPU was through with earlier work,
which such a call waits for, too: that is no copying. A copy that goes on when its call has returned holds up the GPU,
from when that came to it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost.recorder import PHASE

if TYPE_CHECKING:
    from hindmost.recorder import Recorder


class Call(NamedTuple):
    """A call that copies: ms the host was in it, whether the GPU was idle at its begin, and again at its end."""

    ms: float
    idle: bool
    over: bool


def copied_ms(between_ms: float, call: Call) -> float:
    """ms of a copy. ``between_ms`` are on the GPU, between an event recorded before the call and one after it.

    An idle GPU passes the first event at once, a busy one when it is through with what it has; it passes the second
    when the copy has ended and the host, which may be slow to, has recorded it.
    """
    if call.over:
        return min(between_ms, call.ms)
    if call.idle:  # it waited for the host to launch; of pageable memory much is copied inside the call
        return max(between_ms - call.ms, call.ms)
    return between_ms


GPU_TIME = 1  # of ring.h: a time of the GPU's
#: Steps whose events may be outstanding; a GPU further behind than this has the oldest unmeasured.
OUTSTANDING = 16
#: Phases of one step that are measured: accumulation over more micro-batches has the rest unmeasured.
INTERVALS = 128


class Interval(NamedTuple):
    """One phase on the GPU, between two recorded events."""

    name: str
    begin: Any
    end: Any
    call: Call | None = None  # of a copy


class GpuPhases:
    """Gets the begin and end of phases from the host's hooks, on measured steps. Writes ``gpu_*`` measures of steps."""

    def __init__(self, cuda: Any, recorder: Recorder) -> None:
        self._cuda = cuda
        self._recorder = recorder
        self._clock = recorder.clock
        self._pool: list[Any] = []
        self._read_last: dict[int, Any] = {}  # events of the step read last: the next one may begin with one of them
        self._steps: deque[tuple[int, int, list[Interval]]] = deque()
        self._intervals: list[Interval] = []
        self._mark_before: Any = None  # where the phase that ends next began
        self._known = False
        self._idle = False  # whether the GPU was, when the copy in progress began
        recorder.sampling.on_gpu = True
        recorder.on_step.append(self.step_ends)
        recorder.closers.append(self.read)

    def waits(self) -> bool:
        """Whether the next step's end matters."""
        return bool(self._steps or self._intervals)

    def fetches(self) -> None:
        """A fetch of input begins: what the GPU does until there is a batch is no phase."""
        self._mark_before = None

    def ready(self) -> None:
        """Forward may begin: the batch is there, or the loop fetches none and the step before has ended."""
        self._mark_before = self._mark()

    def backward_begins(self) -> None:
        self._ends("gpu_forward")

    def backward_ends(self) -> None:
        self._ends("gpu_backward")

    def optimizer_ends(self) -> None:
        self._ends("gpu_optimizer")

    def copy_begins(self) -> None:
        """A copy of the batch to the GPU begins: it is no part of forward."""
        before = self._mark_before
        self._idle = before is not None and not self._cuda.is_current_stream_capturing() and before.query()
        self._ends("gpu_forward")

    def copy_ends(self, host_ns: int) -> None:
        """The copy's call has returned, after so long."""
        if self._mark_before is None or self._cuda.is_current_stream_capturing():
            self._mark_before = self._mark()
            return
        self._ends("h2d", Call(host_ns / 1e6, self._idle, self._cuda.current_stream().query()))

    def step_ends(self, number: int, start_ns: int, kind: str) -> None:
        """Keep this step's events until the GPU has passed them; write what it has passed by now."""
        intervals, self._intervals = self._intervals, []
        if intervals and kind == "train" and number > 0:  # number 0 says "the next step" in a measure
            self._steps.append((number, start_ns, intervals))
            if len(self._steps) > OUTSTANDING:
                self._steps.popleft()
        if self._steps and not self._cuda.is_current_stream_capturing():
            before = self._clock()
            self.read()
            self._recorder.sampling.spent_ns += self._clock() - before

    def _ends(self, name: str, call: Call | None = None) -> None:
        """A phase ends here and the next begins."""
        now, begin = self._mark(), self._mark_before
        self._mark_before = now
        if begin is not None and now is not None:
            self._recorder.defer(self._add, Interval(name, begin, now, call))

    def _add(self, interval: Interval) -> None:
        if len(self._intervals) < INTERVALS:
            self._intervals.append(interval)

    def _mark(self) -> Any:
        """An event recorded on the current stream; ``None`` before CUDA is in use and while a graph is captured."""
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        start = self._clock()
        if not self._known:
            self._name_device()
        event = self._pool.pop() if self._pool else cuda.Event(enable_timing=True)
        event.record()
        self._recorder.sampling.spent_ns += self._clock() - start
        return event

    def read(self) -> None:
        """Write the steps that the GPU has finished."""
        ring = self._recorder.ring
        while self._steps and self._steps[0][2][-1].end.query():
            number, start_ns, intervals = self._steps.popleft()
            sums: dict[str, float] = {}
            for name, begin, end, call in intervals:
                between = begin.elapsed_time(end)
                sums[name] = sums.get(name, 0.0) + (between if call is None else copied_ms(between, call))
            for name, milliseconds in sums.items():
                ring.event(PHASE, ring.name(name), start_ns, int(milliseconds * 1e6), number, flags=GPU_TIME)
            self._recycle(intervals)

    def _recycle(self, intervals: list[Interval]) -> None:
        """Events can be recorded anew once no step refers to them: those of the step read before this one."""
        here = {id(event): event for one in intervals for event in (one.begin, one.end)}
        self._pool.extend(event for key, event in self._read_last.items() if key not in here)
        self._read_last = here

    def _name_device(self) -> None:
        """Say which GPU this rank uses, so that its telemetry can be joined."""
        self._known = True
        uuid = getattr(self._cuda.get_device_properties(self._cuda.current_device()), "uuid", None)
        if uuid is not None:
            text = str(uuid)
            self._recorder.ring.set_gpu(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
