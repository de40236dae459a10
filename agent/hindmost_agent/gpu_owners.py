"""Which rank computes on which GPU, and the memory that it and the processes below it use there."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from hindmost_agent.gpu import RANK, RANK_MEMORY, Trouble, of_each
from hindmost_agent.jobs.ancestors import owner
from hindmost_agent.metric import series
from hindmost_agent.sampler import GPU, Host, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hindmost_agent.metric import Series

log = logging.getLogger(__name__)


class Owners(Sampler):
    """The job's ranks on each GPU of one maker and the memory that they use there; the maker's file says how to ask."""

    period = 10.0
    tells_why = True
    asks_driver = GPU
    metrics = (RANK, RANK_MEMORY)
    #: What the maker's library raises.
    error: type[Exception]

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._said: set[str] = set()

    @abstractmethod
    def devices(self) -> Sequence[Any]:
        """The GPUs that answer, each with its ``uuid``."""

    @abstractmethod
    def processes(self, device: Any) -> Iterable[tuple[int, float]]:
        """Pid and bytes in use of each process on a GPU; NaN where the driver does not report the bytes."""

    @abstractmethod
    def trouble(self, error: Exception) -> Trouble:
        """What an error of the library means."""

    def sample(self) -> list[float]:
        forget_ended(self.host)
        return of_each(self, self.devices(), self._asked)

    def _asked(self, device: Any) -> dict[Series, float]:
        try:
            return owners(self.host, device.uuid, self.processes(device))
        except self.error as error:  # a GPU that is lost takes no other's ranks along
            if self.trouble(error) is not Trouble.UNSUPPORTED and device.uuid not in self._said:
                self._said.add(device.uuid)
                log.warning("GPU %s: its processes could not be read (%s)", device.uuid, " ".join(str(error).split()))
            return {}


def owners(host: Host, gpu_uuid: str, processes: Iterable[tuple[int, float]]) -> dict[Series, float]:
    """The ranks on one GPU, of its ``processes`` (pid and bytes in use there); other processes are not named.

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
