"""Who computes on NVIDIA GPUs: the rank that owns each, the memory it uses there, and MIG instances."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hindmost_agent.gpu import RANK, RANK_MEMORY, Trouble
from hindmost_agent.metric import Series, gauge, series
from hindmost_agent.nvml import Device, opened, trouble
from hindmost_agent.sampler import NAN, Host, Sampler, register

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

MIG = gauge("hindmost_gpu_mig_info", "1; a MIG instance of this GPU.", "gpu_uuid", "mig_uuid")
MIG_USED = gauge(
    "hindmost_gpu_mig_memory_used_bytes", "Device memory in use in a MIG instance.", "gpu_uuid", "mig_uuid"
)


@register
class NvidiaProcesses(Sampler):
    """The job's ranks on each GPU with their memory there, and the GPU's MIG instances."""

    name = "nvidia_processes"
    period = 10.0
    source = "NVML"
    metrics = (RANK, RANK_MEMORY, MIG, MIG_USED)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._nvml = opened(host)
        self._said: set[str] = set()

    def sample(self) -> list[float]:
        found: dict[Series, float] = {}
        for device in self._nvml.devices:
            for question in (self._owners, self._instances):
                found.update(self._asked(question, device))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())

    def _asked(self, question: Callable[[Device], dict[Series, float]], device: Device) -> dict[Series, float]:
        try:
            return question(device)
        except self._nvml.lib.NVMLError as error:
            if trouble(error) is not Trouble.UNSUPPORTED and device.uuid not in self._said:
                self._said.add(device.uuid)
                log.warning("GPU %s: owners or instances could not be read (%s)", device.uuid, error)
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

    def _instances(self, device: Device) -> dict[Series, float]:
        lib, found = self._nvml.lib, {}
        if not lib.nvmlDeviceGetMigMode(device.handle)[0]:
            return {}
        for index in range(lib.nvmlDeviceGetMaxMigDeviceCount(device.handle)):
            try:
                handle = lib.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
            except lib.NVMLError:  # this slot holds no instance
                continue
            who = (device.uuid, str(lib.nvmlDeviceGetUUID(handle)))
            found[series(MIG, *who)] = 1.0
            found[series(MIG_USED, *who)] = float(lib.nvmlDeviceGetMemoryInfo(handle).used)
        return found
