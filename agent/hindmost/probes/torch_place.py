"""Ranks whom no launcher named: ``torch.multiprocessing.spawn``, or a script that is given its rank by an argument.

Who such a process is shows when it joins the others: ``torch.distributed.init_process_group``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import around

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def install(torch: ModuleType, place: Callable[[int, int], None]) -> None:
    """Have ``init_process_group`` of torch, which has just been imported, call ``place(rank, world_size)``."""
    t: Any = torch
    if not t.distributed.is_available():
        return

    def met(*_: Any) -> None:
        place(t.distributed.get_rank(), t.distributed.get_world_size())

    for module in (t.distributed, t.distributed.distributed_c10d):
        around(module, "init_process_group", lambda *_: 0, met)
