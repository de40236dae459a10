"""Who computes on AMD GPUs: the rank that owns each, and the memory it uses there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.amd import Device, number, opened, trouble
from hindmost_agent.gpu import Owners
from hindmost_agent.sampler import register

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hindmost_agent.gpu import Trouble
    from hindmost_agent.sampler import Host


@register
class AmdProcesses(Owners):
    """The job's ranks on each AMD GPU and the memory that they use there."""

    name = "amd_processes"
    source = "AMD SMI"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._lib = opened(host).lib
        self.error = self._lib.AmdSmiException

    def devices(self) -> Sequence[Device]:
        return opened(self.host).devices

    def processes(self, device: Device) -> Iterable[tuple[int, float]]:
        running = self._lib.amdsmi_get_gpu_process_list(device.handle)
        return ((one["pid"], number(one["memory_usage"]["vram_mem"])) for one in running)

    def trouble(self, error: Exception) -> Trouble:
        return trouble(error)
