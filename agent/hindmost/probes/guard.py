"""What probes hook functions with: hooks that can neither fail nor change what they surround, and can be taken out."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

from hindmost.errors import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost.recorder import Recorder


def guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, made unable to raise: its first fault is one line on stderr, and it does nothing ever after."""
    broken = False

    def call(*arguments: Any) -> Any:
        nonlocal broken
        if broken:
            return None
        try:
            return hook(*arguments)
        except Exception as error:
            broken = True
            _say(hook, error)
        return None

    return call


def _say(hook: Callable[..., Any], error: Exception) -> None:
    warn_once(f"{getattr(hook, '__qualname__', hook)} failed ({error!r})")


class Inside:
    """What a hook calls: the function that it surrounds, or who surrounds that in turn."""

    __slots__ = ("original",)

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original


def around(
    owner: Any,
    name: str,
    before: Callable[..., Any],
    after: Callable[..., Any],
    failed: Callable[..., Any] | None = None,
    named: bool = False,
) -> Inside:
    """Replace ``owner.name`` by a function that calls ``before(*args)`` first and ``after(token, result, *args)`` last.

    ``token`` is what ``before`` returned; where that is ``None``, nothing else is called. ``failed(token, *args)`` is
    called when the original raised, which goes on as it was. ``named``: ``before`` gets the named arguments, too.
    Results and arguments pass untouched. What is returned can be surrounded, too, by its name ``original``: inside.
    """
    original = getattr(owner, name)
    inside = Inside(original)
    fail = guarded(failed or (lambda *_: None))
    broken = False

    # The bodies of ``guarded`` stand in here: each call that a step does not make is a microsecond of a cold cache.
    @functools.wraps(original)
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        nonlocal broken
        token = None
        try:
            token = None if broken else before(*args, **kwargs) if named else before(*args)
        except Exception as error:
            broken = True
            _say(before, error)
        if token is None:
            return inside.original(*args, **kwargs)
        try:
            result = inside.original(*args, **kwargs)
        except BaseException:
            fail(token, *args)
            raise
        try:
            after(token, result, *args)
        except Exception as error:
            broken = True
            _say(after, error)
        return result

    replace(owner, name, original, surrounded)
    return inside


def replace(owner: Any, name: str, original: Any, by: Any) -> None:
    """Put a hook in place of a function, until hooks are taken out."""
    by._torchdynamo_disable = True  # torch.compile must neither trace the hooks nor wonder at them
    setattr(owner, name, by)

    def restore() -> None:
        if getattr(owner, name) is by:  # a later patch keeps calling us, and we call the original
            setattr(owner, name, original)

    undo.append(restore)


#: What takes the hooks out again, in the order in which they were put in.
undo: list[Callable[[], None]] = []


def remove_all() -> None:
    """Take every hook out, the last first: ``hindmost attach`` leaves the process as it found it."""
    while undo:
        guarded(undo.pop())()


def as_phase(owner: Any, function: str, phase: str, recorder: Recorder, *, ends_evaluation: bool = True) -> None:
    """Record calls of ``owner.function`` as this phase. ``ends_evaluation``: an evaluation before it has ended."""

    def begins(*_: Any) -> int | None:
        if not recorder.training_thread():
            return None
        now = recorder.clock()
        if ends_evaluation:
            recorder.pauses(now)
        recorder.enter(phase, now)
        return now

    def ends(start: int, *_: Any) -> None:
        recorder.leave()
        recorder.phase(phase, start, recorder.clock())

    around(owner, function, begins, ends, ends)


#: Shorter pauses are not written: young collections run hundreds of times a second and cost microseconds.
LEAST_PAUSE_NS = 100_000


def record_pauses(recorder: Recorder) -> None:
    """Record pauses of Python's cyclic garbage collector as phase ``gc``.

    They count once training has begun, whichever thread triggers them: all threads wait.
    """
    clock = recorder.clock
    started = 0

    def collected(phase: str, _info: dict[str, int]) -> None:
        nonlocal started
        now = clock()
        if phase == "start":
            started = now
        elif started and now - started >= LEAST_PAUSE_NS and recorder.training():
            recorder.phase("gc", started, now)

    callback = guarded(collected)
    gc.callbacks.append(callback)
    undo.append(lambda: gc.callbacks.remove(callback))
