"""What changes rarely on NVIDIA GPUs: identity, limits, memory errors, XID errors."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler
from hindmost_agent.metric import Series, counter, gauge, series
from hindmost_agent.nvml import Device, XidErrors, look_again, opened, trouble
from hindmost_agent.sampler import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_agent.nvml import Nvml
    from hindmost_agent.sampler import Host

XIDS = counter(
    "hindmost_gpu_all_xid_errors_total",
    "XID errors of any number since the agent started.",
    "gpu_uuid",
)
XID = counter("hindmost_gpu_xid_errors_total", "XID errors since the agent started, by number.", "gpu_uuid", "xid")
REMAPPED = gauge("hindmost_gpu_remapped_rows", "Memory rows replaced by spare ones, by cause.", "gpu_uuid", "cause")
REMAP_PENDING = gauge("hindmost_gpu_remap_pending", "1 if rows wait for a reset to be replaced.", "gpu_uuid")
REMAP_FAILED = gauge("hindmost_gpu_remap_failed", "1 if a row could not be replaced.", "gpu_uuid")


@register
class NvidiaHealth(GpuSampler):
    """Identity, highest clocks, power limit, memory errors, remapped rows, XID errors.

    The series of an XID number begins with its first error, at 1, so `increase()` misses that error.
    `hindmost_gpu_all_xid_errors_total` counts every error; `hindmost_gpu_xid_errors_total` says which XID it was.
    """

    name = "nvidia_health"
    period = 30.0
    source = "NVML"
    metrics = (
        gpu.INFO, gpu.SM_CLOCK_MAX, gpu.MEMORY_CLOCK_MAX, gpu.POWER_LIMIT, gpu.ECC, REMAPPED, REMAP_PENDING,
        REMAP_FAILED, XIDS, XID,
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._xids = XidErrors(opened(host).lib, host.asking)
        self._xids.hear(opened(host).devices)  # listens from now on

    def cards(self) -> list[Card]:
        nvml = opened(self.host)
        return [Card(device.uuid, _calls(nvml, device), trouble) for device in nvml.devices]

    def sample(self) -> list[float]:
        look_again(self.host)
        values = super().sample()
        nvml = opened(self.host)
        self._xids.hear(nvml.devices, nvml.hung)
        heard = self._xids.counts
        found: dict[Series, float] = {series(XIDS, uuid): count for uuid, count in self._xids.totals.items()}
        found.update((series(XID, uuid, xid), count) for (uuid, xid), count in heard.items())
        if self.series != (expected := (*self.fixed(), *found)):
            self.series = expected
        return [*values, *found.values()]


def _calls(nvml: Nvml, device: Device) -> list[Call]:
    lib, handle, uuid = nvml.lib, device.handle, device.uuid
    identity = (uuid, str(device.number), "nvidia", device.model, device.pci_bus_id, nvml.driver)
    limit, most = lib.nvmlDeviceGetEnforcedPowerLimit, partial(lib.nvmlDeviceGetMaxClockInfo, handle)
    sm_most, memory_most = _once(partial(most, lib.NVML_CLOCK_SM)), _once(partial(most, lib.NVML_CLOCK_MEM))
    return [
        Call("identity", (series(gpu.INFO, *identity),), lambda: (1.0,)),
        Call("highest SM clock", (series(gpu.SM_CLOCK_MAX, uuid),), sm_most),
        Call("highest memory clock", (series(gpu.MEMORY_CLOCK_MAX, uuid),), memory_most),
        Call("power limit", (series(gpu.POWER_LIMIT, uuid),), lambda: (limit(handle) / 1e3,)),
        Call("corrected ECC errors", (series(gpu.ECC, uuid, "yes"),), lambda: (_ecc(lib, handle, 0),)),
        Call("uncorrected ECC errors", (series(gpu.ECC, uuid, "no"),), lambda: (_ecc(lib, handle, 1),)),
        Call("remapped rows", _remapped(uuid), partial(lib.nvmlDeviceGetRemappedRows, handle)),
    ]


def _once(megahertz: Callable[[], float]) -> Callable[[], tuple[float]]:
    """What never changes and takes milliseconds is asked for once."""
    return cache(lambda: (megahertz() * 1e6,))


def _remapped(uuid: str) -> tuple[Series, ...]:
    causes = (series(REMAPPED, uuid, "correctable"), series(REMAPPED, uuid, "uncorrectable"))
    return (*causes, series(REMAP_PENDING, uuid), series(REMAP_FAILED, uuid))


def _ecc(lib: Any, handle: Any, kind: int) -> float:
    return float(lib.nvmlDeviceGetTotalEccErrors(handle, kind, 0))  # 0: since the driver was loaded
