"""Who computes on NVIDIA GPUs: the rank that owns each, and the memory it uses there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.gpu import Owners
from hindmost_agent.nvml import Device, opened, trouble
from hindmost_agent.sampler import NAN, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hindmost_agent.gpu import Trouble
    from hindmost_agent.sampler import Host


@register
class NvidiaProcesses(Owners):
    """The job's ranks on each GPU and the memory that they use there."""

    name = "nvidia_processes"
    source = "NVML"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._lib = opened(host).lib
        self.error = self._lib.NVMLError

    def devices(self) -> Sequence[Device]:
        return opened(self.host).devices

    def processes(self, device: Device) -> Iterable[tuple[int, float]]:
        running = self._lib.nvmlDeviceGetComputeRunningProcesses(device.handle)
        return ((one.pid, NAN if one.usedGpuMemory is None else one.usedGpuMemory) for one in running)

    def trouble(self, error: Exception) -> Trouble:
        return trouble(error)
