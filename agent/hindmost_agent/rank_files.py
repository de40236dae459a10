"""Base of samplers that read the same files of each rank's process, one process a rank."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

from hindmost_agent.metric import series
from hindmost_agent.sampler import NAN, Host, Sampler

if TYPE_CHECKING:
    from hindmost_agent.jobs.ranks import RankProcess

log = logging.getLogger(__name__)


class Watch(Protocol):
    """The open files of one process; ``out_of_reach`` names those that may not be read, whose values are missing."""

    out_of_reach: str

    def values(self) -> list[float]:
        """In the order of the sampler's metrics. Raises ``ProcessLookupError`` once the process has gone."""


class RankFiles(Sampler):
    """Keeps the files of the node's ranks open: takes on new ranks, leaves those that went."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._generation = -1
        self._watched: dict[RankProcess, Watch] = {}
        self._said = False

    @abstractmethod
    def watch(self, folder: str) -> Watch:
        """Open the files of the process whose folder this is. Raises ``OSError`` where they are not there."""

    def sample(self) -> list[float]:
        if self.host.ranks.generation != self._generation:
            self._follow()
        values: list[float] = []
        for watch in self._watched.values():
            values += self._values(watch)
        return values

    def _values(self, watch: Watch) -> list[float]:
        try:
            return watch.values()
        except ProcessLookupError:
            return [NAN] * len(self.metrics)

    def _open(self, rank: RankProcess) -> Watch | None:
        try:
            watch = self.watch(f"{self.host.proc}/{rank.pid}")
        except (FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
            return None
        if watch.out_of_reach and not self._said:
            self._said = True
            log.warning("/proc/%d: %s cannot be read (logged once)", rank.pid, watch.out_of_reach)
        return watch

    def _follow(self) -> None:
        followed = {rank: self._watched.get(rank) or self._open(rank) for rank in self.host.ranks.shown()}
        self._watched = watched = {rank: watch for rank, watch in followed.items() if watch}
        self._generation = self.host.ranks.generation
        self.series = tuple(series(metric, rank.job_id, str(rank.rank)) for rank in watched for metric in self.metrics)
