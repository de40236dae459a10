"""MIG instances of NVIDIA GPUs; off while no GPU is divided."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hindmost_agent.gpu import of_each
from hindmost_agent.metric import gauge, series
from hindmost_agent.nvml import Device, opened
from hindmost_agent.sampler import GPU, Absent, Host, Sampler, register

if TYPE_CHECKING:
    from hindmost_agent.metric import Series

log = logging.getLogger(__name__)

MIG = gauge("hindmost_gpu_mig_info", "1; a MIG instance of this GPU.", "gpu_uuid", "mig_uuid")
MIG_USED = gauge(
    "hindmost_gpu_mig_memory_used_bytes", "Device memory in use in a MIG instance.", "gpu_uuid", "mig_uuid"
)


@register
class NvidiaMig(Sampler):
    """The MIG instances of each GPU and the memory used in them."""

    name = "nvidia_mig"
    period = 60.0  # whether a GPU is divided takes 0.3 ms to ask, and changes only when nothing runs on it
    asks_driver = GPU
    source = "NVML"
    metrics = (MIG, MIG_USED)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._nvml = opened(host)
        self._lib = self._nvml.lib
        self._said: set[str] = set()
        self._divided = self._all_divided()
        if not self._divided:
            raise Absent("no GPU here is in MIG mode")

    def sample(self) -> list[float]:
        if opened(self.host).devices != self._nvml.devices:  # a GPU that did not answer has joined, or one went
            self._nvml = opened(self.host)
            self._divided = self._all_divided()
        return of_each(self, self._divided, self._asked)

    def _asked(self, device: Device) -> dict[Series, float]:
        try:
            return self._used(device)
        except self._lib.NVMLError as error:  # a lost GPU takes its own instances along, and no other's
            if device.uuid not in self._said:
                self._said.add(device.uuid)
                log.warning("GPU %s: its MIG instances could not be read (%s)", device.uuid, error)
            return {}

    def _used(self, device: Device) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for handle in self._instances(device):
            who = (device.uuid, str(self._lib.nvmlDeviceGetUUID(handle)))
            found[series(MIG, *who)] = 1.0
            found[series(MIG_USED, *who)] = float(self._lib.nvmlDeviceGetMemoryInfo(handle).used)
        return found

    def _all_divided(self) -> list[Device]:
        return [device for device in self._nvml.devices if self._is_divided(device)]

    def _is_divided(self, device: Device) -> bool:
        self.host.asking.of(device.uuid)
        try:
            return bool(self._lib.nvmlDeviceGetMigMode(device.handle)[0])
        except self._lib.NVMLError:  # not a GPU that can be divided
            return False

    def _instances(self, device: Device) -> list[object]:
        slots = range(self._lib.nvmlDeviceGetMaxMigDeviceCount(device.handle))
        return [handle for slot in slots if (handle := self._instance(device, slot)) is not None]

    def _instance(self, device: Device, slot: int) -> object:
        try:
            return self._lib.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, slot)
        except self._lib.NVMLError:  # this slot holds no instance
            return None
