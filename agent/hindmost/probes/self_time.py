"""What the training thread did between two of its collectives: CPU time, and time in the queue for a CPU.

Where ranks share CPUs, only this separates a rank that works longer from one that slept or waited for a CPU. Readings
cost system calls, so they are made around gaps of 1 ms and more. After which call such a gap begins is learned, by its
place since the last long one. Other gaps carry no CPU time; none is guessed.

``native/pmpi_gap.c`` does so for MPI, but there CPU time is the whole process', with its other computing threads;
here it is the training thread's alone, without autograd's and gloo's threads. The queue is one thread's in both.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hindmost.step_sampling import COST_SHARE, RunQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost.recorder import Recorder

SELF = 5  # of ring.h
CPU_KNOWN, RUNQUEUE_KNOWN = 8, 16
NONE16 = 0xFFFF
#: Gaps from here on are measured.
LONG_NS = 1_000_000
#: So sure that a long gap follows a call: each that does adds two, up to this, and each that does not takes one.
SUREST = 3
#: Calls in a row without a long gap in between, after which all places count as one.
PLACES = 256


class SelfTime:
    """Gets the begin and end of calls in the training thread; writes the gap before each, where that was measured.

    ``read`` gives CPU ns of the calling thread, and ns that it stood in the queue (-1 where the kernel does not say).
    """

    def __init__(self, recorder: Recorder, read: Callable[[], tuple[int, int]] | None = None) -> None:
        self._recorder = recorder
        self._read = read or self._first_reading
        self._sure = [0] * PLACES
        self._place = 0
        self._left = 0  # when the last call ended; 0: what came since is not known
        self._before: tuple[int, int] | None = None
        self._after: tuple[int, int] | None = None
        self._spent = self._since = self._cost = 0

    def ends(self) -> None:
        """A call may begin now: the last time that this is said before it counts."""
        if self._before is not None and self._recorder.training_thread():
            self._after = self._read()

    def write(self, start_ns: int) -> None:
        """Write what came before a call that began then, just before that is written itself."""
        left, before, after = self._left, self._before, self._after
        if not left:
            return
        if start_ns - left >= LONG_NS:
            self._sure[self._place] = min(self._sure[self._place] + 2, SUREST)
            self._place = -1
        elif self._sure[self._place]:
            self._sure[self._place] -= 1
        if before is None or after is None or start_ns < left:
            return
        queued = after[1] - before[1] if min(after[1], before[1]) >= 0 else -1
        flags = CPU_KNOWN | (RUNQUEUE_KNOWN if queued >= 0 else 0)
        waited = max(queued, 0) // 1000
        ring = self._recorder.ring
        ring.event(SELF, NONE16, left, start_ns - left, waited, NONE16, NONE16, after[0] - before[0], flags)

    def begins(self, now_ns: int) -> None:
        """A call ended then: what follows is the rank's own."""
        self._left, self._before, self._after = now_ns, None, None
        self._place = (self._place + 1) % PLACES
        self._since = self._since or now_ns
        if self._sure[self._place] and self._spent * COST_SHARE <= now_ns - self._since:
            start = self._recorder.clock()
            self._before = self._read()
            self._spent += 2 * self._usual(self._recorder.clock() - start)  # and as much again when it ends

    def _usual(self, took_ns: int) -> int:
        """What a reading costs: of those that others' work interrupted it is unknown."""
        known = self._cost
        self._cost = known + min(took_ns - known, known) // 16 if 0 < known < took_ns else took_ns
        return self._cost

    def broken(self) -> None:
        """The thread waits, or starts an operation: until the next call ends, what it did is not known."""
        self._left, self._before = 0, None

    def _first_reading(self) -> tuple[int, int]:
        """Open the file of the thread that trains, and read it from now on."""
        opened = _Thread()
        self._recorder.closers.append(opened.close)
        self._read = opened.read
        return opened.read()


class _Thread(RunQueue):
    """CPU time of the thread that made this, and for how long it was in the queue."""

    def read(self) -> tuple[int, int]:
        queued = self.waited()
        return time.thread_time_ns(), queued
