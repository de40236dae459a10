"""Which rank computes on which GPU, and the memory that it and the processes below it use there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.ancestors import owner
from hindmost_agent.gpu import RANK, RANK_MEMORY
from hindmost_agent.metric import series

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_agent.metric import Series
    from hindmost_agent.sampler import Host


def owners(host: Host, gpu_uuid: str, processes: Iterable[tuple[int, float]]) -> dict[Series, float]:
    """The ranks on one GPU, of its ``processes`` (pid and bytes in use there); strangers are not named.

    Notes in ``host.gpu_of`` which GPU a rank uses: where its own process does not, one of those below it.
    """
    found: dict[Series, float] = {}
    for pid, used in processes:
        rank = owner(host, pid)
        if rank is None:
            continue
        if rank.pid == pid:
            host.gpu_of[rank.pid, rank.start_ticks] = gpu_uuid
        else:
            host.gpu_of.setdefault((rank.pid, rank.start_ticks), gpu_uuid)
        who = (gpu_uuid, rank.job_id, str(rank.rank))
        memory = series(RANK_MEMORY, *who)
        found[series(RANK, *who)] = 1.0
        found[memory] = found.get(memory, 0.0) + used
    return found


def forget_ended(host: Host) -> None:
    """Keep no GPU of a rank that has gone."""
    if host.gpu_of:
        live = {(rank.pid, rank.start_ticks) for rank in host.ranks}
        for key in host.gpu_of.keys() - live:
            del host.gpu_of[key]
