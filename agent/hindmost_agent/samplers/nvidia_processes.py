"""Who computes on NVIDIA GPUs: the rank that owns each, and the memory it uses there."""

from __future__ import annotations

import logging

from hindmost_agent.gpu import RANK, RANK_MEMORY, Trouble
from hindmost_agent.metric import Series, series
from hindmost_agent.nvml import Device, opened, trouble
from hindmost_agent.sampler import NAN, Host, Sampler, register

log = logging.getLogger(__name__)


@register
class NvidiaProcesses(Sampler):
    """The job's ranks on each GPU and the memory that they use there."""

    name = "nvidia_processes"
    period = 10.0
    source = "NVML"
    metrics = (RANK, RANK_MEMORY)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._nvml = opened(host)
        self._said: set[str] = set()

    def sample(self) -> list[float]:
        found: dict[Series, float] = {}
        for device in self._nvml.devices:
            found.update(self._asked(device))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())

    def _asked(self, device: Device) -> dict[Series, float]:
        try:
            return self._owners(device)
        except self._nvml.lib.NVMLError as error:
            if trouble(error) is not Trouble.UNSUPPORTED and device.uuid not in self._said:
                self._said.add(device.uuid)
                log.warning("GPU %s: its processes could not be read (%s)", device.uuid, error)
            return {}

    def _owners(self, device: Device) -> dict[Series, float]:
        """Which ranks compute on a GPU and the memory they use there; only the job's processes are named."""
        found = {}
        for process in self._nvml.lib.nvmlDeviceGetComputeRunningProcesses(device.handle):
            rank = self.host.ranks.get(process.pid)
            if rank is not None:
                self.host.gpu_of[process.pid] = device.uuid
                who = (device.uuid, rank.job_id, str(rank.rank))
                found[series(RANK, *who)] = 1.0
                found[series(RANK_MEMORY, *who)] = NAN if process.usedGpuMemory is None else process.usedGpuMemory
        return found
