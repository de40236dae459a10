"""Distributed checkpoints of torch (``torch.distributed.checkpoint``) as phase ``checkpoint``.

Of an asynchronous save only what holds up the training thread counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import around

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder


def install(saver: ModuleType, recorder: Recorder) -> None:
    """Hook the functions of ``torch.distributed.checkpoint.state_dict_saver``, before the package hands them on."""

    def begins(*_: Any) -> int | None:
        if not recorder.training_thread():
            return None
        now = recorder.clock()
        recorder.enter("checkpoint", now)
        return now

    def ends(start: int, *_: Any) -> None:
        recorder.leave()
        recorder.phase("checkpoint", start, recorder.clock())

    for name in ("save", "async_save", "save_state_dict"):
        if hasattr(saver, name):
            around(saver, name, begins, ends, ends)
