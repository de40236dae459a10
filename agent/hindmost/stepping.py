"""Steps and phases of a training loop, written to this process's ring; ``hindmost.step`` and ``hindmost.phase``.

A step's record spans from where the one before it ended, so that waiting for input between two ``with step():`` blocks
is part of the step that had to wait. Only the thread that trains is recorded: what a background thread does (an
asynchronous checkpoint, a prefetcher) is not the step's time.
"""

from __future__ import annotations

import os
import time
from threading import get_ident, get_native_id
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

T = TypeVar("T")

STEP, PHASE = 1, 2  # kinds of ring.h
STEP_SLOT = 0
#: What is sampled, CPU time and GPU events, may cost one part in so many of a step each.
COST_SHARE = 1000
FRAMEWORKS = ("python", "mpi4py", "torch", "keras", "horovod")
FIRST_PHASE_SLOT, LAST_PHASE_SLOT = 1, 8


class Ring(Protocol):
    """What is needed of ``hindmost.ring.Writer``."""

    event: Any

    def name(self, text: str) -> int: ...
    def enter(self, slot: int, kind: int, name: int, start_ns: int, seq: int = ..., comm: int = ...) -> None: ...
    def leave(self, slot: int) -> None: ...
    def communicator(self, id: int, rank: int, size: int, name: str) -> int: ...  # noqa: A002 - the ring's word
    def set_framework(self, text: str) -> None: ...
    def set_gpu(self, uuid: str) -> None: ...


class Usage:
    """CPU time of this process and run-queue delay of the thread that opened it, both in ns."""

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

    def read(self) -> tuple[int, int]:
        """CPU ns of all threads, and ns the thread was runnable and did not run (-1 where the kernel does not say)."""
        waited = -1
        if self._file is not None:
            try:
                waited = int(os.pread(self._file, 64, 0).split()[1])
            except (OSError, IndexError, ValueError):
                self._file = None
        return time.process_time_ns(), waited


class Recorder:
    """Writes steps and phases of the training thread. One a process; times are ns of ``CLOCK_MONOTONIC``."""

    def __init__(
        self,
        ring: Ring,
        clock: Callable[[], int] = time.monotonic_ns,
        usage: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self.ring = ring
        self.clock = clock
        self.explicit = False  # the loop marks its own steps: what probes recognise is not written
        self.seen_work = 0  # samples or tokens that probes saw this step use
        self.numbers = {"train": 0, "eval": 0}  # the next step of each kind
        self.closers: list[Callable[[], None]] = []  # what has to be written before the ring is closed
        #: Called after each written step with its number, its start (ns) and its kind.
        self.on_step: list[Callable[[int, int, str], None]] = []
        self._ids: dict[str, int] = {}  # the ring's indices of names: a look-up here is a call less
        self._usage = usage
        self._used: tuple[int, int] | None = None  # when the step in progress began; None: it is not sampled
        self._usage_cost_ns = 0
        self._framework = FRAMEWORKS[0]
        self._thread = 0
        self._depth = 0
        self._ended = -1

    def training_thread(self) -> bool:
        """Whether the caller is the thread that trains; the first that asks is."""
        if not self._thread:
            # First, and now: a collection may strike while a ring is made, or a name registered under its lock.
            self.ring.name("gc")
            self._thread = get_ident()
            if self._usage is None:
                opened = Usage()
                self._usage = opened.read
                self.closers.append(opened.close)
                self._usage_cost_ns = min(self._time_usage() for _ in range(3))
            self._used = self._usage()
        return self._thread == get_ident()

    def training(self) -> bool:
        """Whether a training thread has shown itself yet."""
        return self._thread != 0

    def name_framework(self, text: str) -> None:
        """Say what trains here. A Horovod job imports torch, too: the later one of ``FRAMEWORKS`` is what it is."""
        if FRAMEWORKS.index(text) > FRAMEWORKS.index(self._framework):
            self._framework = text
            self.ring.set_framework(text)

    def move(self, ring: Ring) -> None:
        """Go on in another ring."""
        self.ring = ring
        self._ids.clear()
        ring.name("gc")
        ring.set_framework(self._framework)

    def usage(self) -> tuple[int, int]:
        """CPU ns of this process and run-queue ns of the training thread, so far; -1 unmeasured."""
        return self._usage() if self._usage is not None else (0, -1)

    def phase(self, name: str, start_ns: int, end_ns: int) -> None:
        """Write an interval that has ended."""
        self.ring.event(PHASE, self._ids.get(name) or self._id(name), start_ns, end_ns - start_ns)

    def enter(self, name: str, start_ns: int) -> None:
        """Show a phase as being in progress, until ``leave``."""
        self._depth += 1
        if self._depth <= LAST_PHASE_SLOT:
            self.ring.enter(self._depth, PHASE, self._ids.get(name) or self._id(name), start_ns)

    def _id(self, name: str) -> int:
        index = self._ids[name] = self.ring.name(name)
        return index

    def leave(self) -> None:
        """The innermost phase in progress has ended."""
        if FIRST_PHASE_SLOT <= self._depth <= LAST_PHASE_SLOT:
            self.ring.leave(self._depth)
        self._depth = max(0, self._depth - 1)

    def step_begins(self, start_ns: int, kind: str = "train") -> None:
        """Show a step as being in progress."""
        index = self._ids.get(kind) or self._id(kind)
        self.ring.enter(STEP_SLOT, STEP, index, start_ns, self.numbers.get(kind, 0))

    def step_leaves(self) -> None:
        """No step is in progress: between epochs, or when training has ended."""
        self.ring.leave(STEP_SLOT)

    def step(self, start_ns: int, end_ns: int, kind: str = "train", work: int = 0) -> None:
        """Write a step that has ended, with what it used of the CPU. ``work``: samples or tokens, 0: as was seen."""
        number = self.numbers.get(kind, 0)
        self.numbers[kind] = number + 1
        self._write_usage(start_ns, number + 1, end_ns - start_ns)
        index = self._ids.get(kind) or self._id(kind)
        self.ring.event(STEP, index, start_ns, end_ns - start_ns, number, value=work or self.seen_work)
        self.seen_work = 0
        self._ended = end_ns
        for heard in self.on_step:
            heard(number, start_ns, kind)

    def previous_end(self, now_ns: int) -> int:
        """Where the last step ended; ``now_ns`` when there was none."""
        return self._ended if self._ended >= 0 else now_ns

    def step_ends_here(self, now_ns: int, kind: str, work: int) -> None:
        """A step that was not bracketed ends: it began where the one before ended. The first call only says where."""
        self.explicit = True
        if self._ended >= 0:
            self.step(self._ended, now_ns, kind, work)
        self._ended = now_ns
        self.step_begins(now_ns, kind)

    def _time_usage(self) -> int:
        """What one reading of the usage costs, ns: two system calls, cheap on bare metal and dear in some sandboxes."""
        start = self.clock()
        self.usage()
        return self.clock() - start

    def _write_usage(self, start_ns: int, following: int, duration_ns: int) -> None:
        """The measures ``cpu`` and ``runqueue``: amounts within the step, not intervals of it.

        Where reading them would cost more than a share of a step, only every 2nd, 4th … step is sampled.
        """
        if self._usage is None:
            return
        now = None
        if self._used is not None:
            now = self._usage()
            self.ring.event(PHASE, self._id("cpu"), start_ns, now[0] - self._used[0])
            if now[1] >= 0 and self._used[1] >= 0:
                self.ring.event(PHASE, self._id("runqueue"), start_ns, now[1] - self._used[1])
        if following & every(self._usage_cost_ns, duration_ns // COST_SHARE) - 1:
            self._used = None
        else:
            self._used = now or self._usage()


def every(cost: int, budget: int) -> int:
    """Every how many steps something of this cost may be done within a budget a step: a power of two, at most 64.

    A power of two, so that the steps that a slower rank samples are among those that its peers do.
    """
    wanted = cost // max(budget, 1)
    return min(64, 1 << wanted.bit_length()) if wanted else 1


class _Nothing:
    """What ``step()`` and ``phase()`` return where nothing listens."""

    __slots__ = ()

    def cancel(self) -> None:
        return None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None


_NOTHING = _Nothing()
UNENTERED, CANCELLED = -1, -2  # in place of a step's start
_recorder: Recorder | None = None


class _Step:
    """One marked step. Writes its record at exit, an exception included; dropped without ``with``, it ends a step."""

    __slots__ = ("_kind", "_recorder", "_start", "_work")

    def __init__(self, recorder: Recorder, kind: str, work: int) -> None:
        self._recorder, self._kind, self._work = recorder, kind, work
        self._start = UNENTERED

    def __del__(self) -> None:
        if self._start == UNENTERED and _recorder is self._recorder:
            self._recorder.step_ends_here(self._recorder.clock(), self._kind, self._work)

    def __enter__(self) -> None:
        recorder = self._recorder
        recorder.explicit = True
        self._start = recorder.previous_end(recorder.clock())
        recorder.step_begins(self._start, self._kind)

    def cancel(self) -> None:
        """There was no step after all: write none."""
        self._start = CANCELLED

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.step_leaves()
        if self._start >= 0:
            self._recorder.step(self._start, self._recorder.clock(), self._kind, self._work)


class _Phase:
    """One marked phase. Phases nest; each counts without what is nested in it."""

    __slots__ = ("_name", "_recorder", "_start")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder, self._name = recorder, name
        self._start = 0

    def __enter__(self) -> None:
        self._start = self._recorder.clock()
        self._recorder.enter(self._name, self._start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.leave()
        self._recorder.phase(self._name, self._start, self._recorder.clock())


def step(kind: str = "train", work: int = 0) -> _Step | _Nothing:
    """Mark one step of a training loop: ``with hindmost.step(): …``. Steps number themselves.

    A bare ``hindmost.step()`` at the end of the loop's body will do: each call but the first ends a step.
    ``kind`` is ``train`` or ``eval``; ``work`` the step's samples or tokens, where known. From the first marked step
    on, steps that hindmost recognises by itself are not counted. Without ``hindmost run`` it does nothing.
    """
    recorder = _recorder
    if recorder is None or not recorder.training_thread():
        return _NOTHING
    return _Step(recorder, kind, work)


def phase(name: str) -> _Phase | _Nothing:
    """Mark a phase of a step: ``with hindmost.phase("input"): …``.

    Names that reports know: input, h2d, forward, backward, sync, optimizer, checkpoint; any other is kept as it is.
    Without ``hindmost run`` it does nothing.
    """
    recorder = _recorder
    if recorder is None or not recorder.training_thread():
        return _NOTHING
    return _Phase(recorder, name)


def steps(batches: Iterable[T], kind: str = "train") -> Iterator[T]:
    """The batches, each inside a step whose wait for it is its ``input``: ``for x in hindmost.steps(loader): …``."""
    iterator = iter(batches)
    while True:
        marked = step(kind)
        with marked:
            with phase("input"):
                batch = next(iterator, _NOTHING)
            if isinstance(batch, _Nothing):
                marked.cancel()
                return
            yield batch


def attach(recorder: Recorder | None) -> None:
    """Make ``step`` and ``phase`` write to this recorder, or to nothing."""
    global _recorder  # noqa: PLW0603 - one a process, and a call of step() must find it in one look-up
    _recorder = recorder


def move(ring: Ring) -> None:
    """What is recorded from now on goes to another ring."""
    if _recorder is not None:
        _recorder.move(ring)


def finish() -> None:
    """Write what is still held back, and record nothing from now on."""
    recorder = _recorder
    attach(None)
    for close in recorder.closers if recorder else ():
        close()
