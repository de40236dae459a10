"""Distributed checkpoints of torch (``torch.distributed.checkpoint``) as phase ``checkpoint``.

Of an asynchronous save only what holds up the training thread counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost.probes.spans import as_phase

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder


def install(saver: ModuleType, recorder: Recorder) -> None:
    """Hook the functions of ``torch.distributed.checkpoint.state_dict_saver``, before the package hands them on."""

    for name in ("save", "async_save", "save_state_dict"):
        if hasattr(saver, name):
            as_phase(saver, name, "checkpoint", recorder)
