"""Pauses of Python's cyclic garbage collector, as phase ``gc``."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from hindmost.probes.guard import guarded, undo

if TYPE_CHECKING:
    from hindmost.recorder import Recorder

#: Shorter pauses are not written: young collections run hundreds of times a second and cost microseconds.
LEAST_NS = 100_000


def install(recorder: Recorder) -> None:
    """Record collections once training has begun, whichever thread triggers them: all threads wait."""
    clock = recorder.clock
    started = 0

    def collected(phase: str, _info: dict[str, int]) -> None:
        nonlocal started
        now = clock()
        if phase == "start":
            started = now
        elif started and now - started >= LEAST_NS and recorder.training():
            recorder.phase("gc", started, now)

    callback = guarded(collected)
    gc.callbacks.append(callback)
    undo.append(lambda: gc.callbacks.remove(callback))
