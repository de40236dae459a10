"""Who computes on AMD GPUs: the rank that owns each, and the memory it uses there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hindmost_agent.amd import Device, number, opened, trouble
from hindmost_agent.gpu import RANK, RANK_MEMORY, Trouble
from hindmost_agent.gpu_owners import forget_ended, owners
from hindmost_agent.sampler import Host, Sampler, register

if TYPE_CHECKING:
    from hindmost_agent.metric import Series

log = logging.getLogger(__name__)


@register
class AmdProcesses(Sampler):
    """The job's ranks on each AMD GPU and the memory that they use there."""

    name = "amd_processes"
    period = 10.0
    source = "AMD SMI"
    metrics = (RANK, RANK_MEMORY)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._lib = opened(host).lib
        self._said: set[str] = set()

    def sample(self) -> list[float]:
        forget_ended(self.host)
        found: dict[Series, float] = {}
        for device in opened(self.host).devices:
            found.update(self._asked(device))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())

    def _asked(self, device: Device) -> dict[Series, float]:
        try:
            return self._owners(device)
        except self._lib.AmdSmiException as error:
            if trouble(error) is not Trouble.UNSUPPORTED and device.uuid not in self._said:
                self._said.add(device.uuid)
                log.warning("GPU %s: its processes could not be read (%s)", device.uuid, " ".join(str(error).split()))
            return {}

    def _owners(self, device: Device) -> dict[Series, float]:
        running = self._lib.amdsmi_get_gpu_process_list(device.handle)
        used = ((one["pid"], number(one["memory_usage"]["vram_mem"])) for one in running)
        return owners(self.host, device.uuid, used)
