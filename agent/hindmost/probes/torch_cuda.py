"""GPU time of forward, backward and optimizer, by CUDA events that are read steps later and never waited for.

An event is recorded on the current stream where the host begins and ends a phase; the time between two of them is the
GPU's, idle gaps included. ``gpu_forward`` begins when the batch was there, so it holds the copies to the device.
Backward's last event comes after the reducer has joined the communication stream: exposed communication is in it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hindmost.stepping import Recorder

PHASE = 2  # of ring.h
#: Steps whose events may be outstanding; a GPU further behind than this has the oldest unmeasured.
OUTSTANDING = 16
#: Phases of one step that are measured: accumulation over more micro-batches has the rest unmeasured.
INTERVALS = 128


class Interval(NamedTuple):
    """One phase on the GPU, between two recorded events."""

    name: str
    begin: Any
    end: Any


class GpuPhases:
    """Told by the host's hooks where phases begin and end. Writes ``gpu_*`` measures of steps, oldest first."""

    def __init__(self, cuda: Any, recorder: Recorder) -> None:
        self._cuda = cuda
        self._recorder = recorder
        self._steps: deque[tuple[int, int, list[Interval]]] = deque()
        self._intervals: list[Interval] = []
        self._begun: Any = None
        self._ready: Any = None  # the event of the moment from which a forward may run
        self._known = False
        recorder.on_step.append(self.step_ends)
        recorder.closers.append(self._read)

    def ready(self) -> None:
        """The batch is there: forward may begin."""
        self._ready = self._mark()

    def backward_begins(self) -> None:
        now = self._mark()
        self._add("gpu_forward", self._ready, now)
        self._ready, self._begun = None, now

    def backward_ends(self) -> None:
        now = self._mark()
        self._add("gpu_backward", self._begun, now)
        self._begun, self._ready = None, now

    def optimizer_begins(self) -> None:
        self._begun = self._mark()

    def optimizer_ends(self) -> None:
        now = self._mark()
        self._add("gpu_optimizer", self._begun, now)
        self._begun, self._ready = None, now

    def step_ends(self, number: int, start_ns: int, kind: str) -> None:
        """Keep this step's events until the GPU has passed them; write what it has passed by now."""
        if self._intervals:
            if kind == "train" and number > 0:  # number 0 says "the next step" in a measure: warm-up goes unmeasured
                self._steps.append((number, start_ns, self._intervals))
            self._intervals = []
        if len(self._steps) > OUTSTANDING:
            self._steps.popleft()
        self._read()

    def _add(self, name: str, begin: Any, end: Any) -> None:
        if begin is not None and end is not None and len(self._intervals) < INTERVALS:
            self._intervals.append(Interval(name, begin, end))

    def _mark(self) -> Any:
        """An event recorded on the current stream; ``None`` before CUDA is in use and while a graph is captured."""
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        if not self._known:
            self._name_device()
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        """Write the steps that the GPU has finished."""
        while self._steps and self._steps[0][2][-1].end.query():
            number, start_ns, intervals = self._steps.popleft()
            sums: dict[str, float] = {}
            for name, begin, end in intervals:
                sums[name] = sums.get(name, 0.0) + begin.elapsed_time(end)
            ring = self._recorder.ring
            for name, milliseconds in sums.items():
                ring.event(PHASE, ring.name(name), start_ns, int(milliseconds * 1e6), number)

    def _name_device(self) -> None:
        """Say which GPU this rank uses, so that its telemetry can be joined."""
        self._known = True
        uuid = getattr(self._cuda.get_device_properties(self._cuda.current_device()), "uuid", None)
        if uuid is not None:
            text = str(uuid)
            self._recorder.ring.set_gpu(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
