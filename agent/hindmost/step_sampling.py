"""What is measured on some steps only: CPU time, run-queue delay and GPU times, each of which costs system calls.

What measuring a step cost is itself measured; steps between measured ones are as many as keep it below one part in
``COST_SHARE`` of the training thread's time and, where a GPU is measured, below ``MOST_NS`` a step unless steps are
long, and below half as much where they are short. What all hooks took is added up, too; where that is more than
``MOST_SHARE`` for ``PATIENCE_NS`` on end, only every 2nd, 4th … step is recorded at all.
"""

from __future__ import annotations

import os
import time
from threading import get_native_id
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is sampled may cost one part in so many of a step, on average.
COST_SHARE = 400
#: And no more than this, ns, of a step shorter than ``LONG_NS``, where there are GPU times to read.
MOST_NS = 10_000
LONG_NS = 100_000_000
#: Steps so short are often the host's to launch, and not the GPU's: there it may cost half.
SHORT_NS = 5_000_000
#: The fewest steps that are measured: one in so many.
SELDOM = 128
#: Hooks may take this share of the training thread's time, for so long on end.
MOST_SHARE = 0.05
PATIENCE_NS = 2_000_000_000
#: The first steps make events and fill caches: what they cost says nothing.
WARM_UP = 4


class RunQueue:
    """For how long the thread that opened this was runnable and did not run."""

    def __init__(self, schedstat: str | None = None) -> None:
        path = schedstat or f"/proc/self/task/{get_native_id()}/schedstat"
        try:
            self._file: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel without CONFIG_SCHED_INFO: the delay stays unmeasured
            self._file = None

    def close(self) -> None:
        """Give the file back; later readings have no delay."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def waited(self) -> int:
        """Ns since the thread began; -1 where the kernel does not say."""
        if self._file is not None:
            try:
                return int(os.pread(self._file, 64, 0).split()[1])
            except (OSError, IndexError, ValueError):
                self._file = None
        return -1


class Usage(RunQueue):
    """CPU time of this process and run-queue delay of the thread that opened it, both in ns."""

    def read(self) -> tuple[int, int]:
        """CPU ns of all threads, and ns the thread was runnable and did not run (-1 where the kernel does not say)."""
        waited = self.waited()
        return time.process_time_ns(), waited


class Measured:
    """What a measured step used: when it began and ended, CPU ns, run-queue ns (-1: the kernel does not say)."""

    __slots__ = ("cpu_ns", "end_ns", "runqueue_ns", "start_ns")

    def __init__(self, start_ns: int, before: tuple[int, int], end_ns: int, after: tuple[int, int]) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self.cpu_ns = after[0] - before[0]
        self.runqueue_ns = after[1] - before[1] if min(before[1], after[1]) >= 0 else -1


class StepSampling:
    """Gets the places where steps may end; decides which are measured. Times are ns of ``clock``."""

    def __init__(self, clock: Callable[[], int], usage: Callable[[], tuple[int, int]]) -> None:
        self._clock = clock
        #: Reads CPU ns and run-queue ns.
        self.usage = usage
        #: Whether the step in progress is measured.
        self.measuring = False
        #: Whether GPU times are read: dear, and of steps that are often short for the host.
        self.on_gpu = False
        #: What measuring took since the last reading; each measurement adds to it.
        self.spent_ns = 0
        #: What hooks took of all steps.
        self.limit = OverheadLimit()
        self._ticks = -1
        self._mask = 0
        self._cost_ns = 0
        self._before = (0, -1)
        self._began = 0

    def tick(self, now: int) -> Measured | None:
        """A step may end here and the next begin; what the one that ends here used, where that was measured."""
        self._ticks += 1
        unmeasured = self._ticks & self.mask
        if unmeasured and not self.measuring:
            return None
        usage, measured = self.usage(), None
        if self.measuring:
            measured = Measured(self._began, self._before, now, usage)
            self._reckon(now - self._began)
        self.measuring = not unmeasured
        self._before, self._began = usage, now
        self.spent_ns += self._clock() - now
        return measured

    @property
    def mask(self) -> int:
        """Steps whose number has one of these bits are not measured, or not recorded at all."""
        return self._mask | self.limit.mask

    def skip_to(self, ticks: int) -> None:
        """The next tick has this number: the caller counts, and reports only the ticks that matter."""
        self._ticks = ticks - 1

    @property
    def passing(self) -> bool:
        """Whether the step in progress should go unrecorded."""
        return self._ticks & self.limit.mask != 0

    def _reckon(self, step_ns: int) -> None:
        """Every how many steps is one measured, from the least that it was seen to cost, following when that grows."""
        spent, self.spent_ns = self.spent_ns, 0
        if self._ticks > WARM_UP:
            known = self._cost_ns
            self._cost_ns = known + (spent - known) // 16 if 0 < known < spent else spent
        budget = step_ns // COST_SHARE
        if self.on_gpu and step_ns < LONG_NS:
            budget = min(budget // 2 if step_ns < SHORT_NS else budget, MOST_NS)
        self._mask = every(self._cost_ns, budget) - 1


class OverheadLimit:
    """Gets the time that hooks took since the last call; decides which steps to record."""

    def __init__(self) -> None:
        #: Steps whose number has one of these bits go unrecorded.
        self.mask = 0
        self._over = self._under = 0

    def add(self, own_ns: int, elapsed_ns: int) -> None:
        """What hooks took of so much time. One interrupted hook says nothing, however long; much on end does."""
        share, counts = own_ns / max(elapsed_ns, 1), min(elapsed_ns, PATIENCE_NS // 4)
        self._over = self._over + counts if share > MOST_SHARE else 0
        self._under = self._under + counts if share < MOST_SHARE / 8 else 0
        if self._over >= PATIENCE_NS:
            self.mask, self._over = min(2 * self.mask + 1, 63), 0
        elif self._under >= PATIENCE_NS:
            self.mask, self._under = self.mask >> 1, 0


def every(cost: int, budget: int) -> int:
    """Every how many steps something of this cost may be done within a budget a step: at most ``SELDOM``.

    A power of two, so that the steps that a slower rank samples are among those that its peers do.
    """
    wanted = cost // max(budget, 1)
    return min(SELDOM, 1 << wanted.bit_length()) if wanted else 1
