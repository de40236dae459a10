"""Functions whose every call, in the training thread, is a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import around

if TYPE_CHECKING:
    from hindmost.recorder import Recorder


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
