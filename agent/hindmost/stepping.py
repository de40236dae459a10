"""Steps and phases of a training loop, written to this process's ring; ``hindmost.step`` and ``hindmost.phase``.

A step's record spans from where the one before it ended, so that waiting for input between two ``with step():`` blocks
is part of the step that had to wait. Only the thread that trains is recorded: what a background thread does (an
asynchronous checkpoint, a prefetcher) is not the step's time.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; `typing` takes a tenth of the time that `hindmost --help` does
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import TypeVar

    from hindmost.recorder import Recorder, Ring

    T = TypeVar("T")


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
attached: Recorder | None = None


class _Step:
    """One marked step. Writes its record at exit, an exception included; dropped without ``with``, it ends a step."""

    __slots__ = ("_kind", "_recorder", "_start", "_work")

    def __init__(self, recorder: Recorder, kind: str, work: int) -> None:
        self._recorder, self._kind, self._work = recorder, kind, work
        self._start = UNENTERED

    def __del__(self) -> None:
        if self._start == UNENTERED and attached is self._recorder:
            self._recorder.step_ends_here(self._recorder.clock(), self._kind, self._work)

    def __enter__(self) -> None:
        recorder = self._recorder
        recorder.marks()
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
    on, steps that hindmost recognises automatically are not counted. Without ``hindmost run`` it does nothing.
    """
    recorder = attached
    if recorder is None or not recorder.trains_here():
        return _NOTHING
    return _Step(recorder, kind, work)


def phase(name: str) -> _Phase | _Nothing:
    """Mark a phase of a step: ``with hindmost.phase("input"): …``.

    Names that reports know: input, h2d, forward, backward, sync, optimizer, checkpoint; any other is kept as it is.
    Without ``hindmost run`` it does nothing.
    """
    recorder = attached
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
    global attached  # noqa: PLW0603 - one a process, and a call of step() must find it in one look-up
    attached = recorder


def abandon() -> None:
    """Record nothing in this process, which is a fork of the one that does."""
    if attached is not None:
        attached.abandon()
    attach(None)


def move(ring: Ring) -> None:
    """What is recorded from now on goes to another ring."""
    if attached is not None:
        attached.move(ring)


def finish() -> None:
    """Write what is still held back, and record nothing from now on."""
    recorder = attached
    attach(None)
    if recorder is not None:
        recorder.flush()
    for close in recorder.closers if recorder else ():
        close()
