"""Counters of NVIDIA GPUs that NVML takes a millisecond to read: time throttled by reason, energy, PCIe replays."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler
from hindmost_agent.metric import counter, series
from hindmost_agent.nvml import Device, Field, field_call, opened, trouble
from hindmost_agent.sampler import register

if TYPE_CHECKING:
    from typing import Any

HELD_BACK = counter(
    "hindmost_gpu_clocks_event_seconds_total", "Time in which this reason held the clocks back.", "gpu_uuid", "reason"
)
FIELDS = (
    Field(83, 0, gpu.ENERGY, 1e-3),
    Field(94, 0, gpu.PCIE_REPLAYS),
    Field(74, 0, HELD_BACK, 1e-9, ("sw_power_cap",)),
    Field(76, 0, HELD_BACK, 1e-9, ("sync_boost",)),
    Field(269, 0, HELD_BACK, 1e-9, ("sw_thermal_slowdown",)),
    Field(270, 0, HELD_BACK, 1e-9, ("hw_thermal_slowdown",)),
    Field(271, 0, HELD_BACK, 1e-9, ("hw_power_brake",)),
)


@register
class NvidiaCounters(GpuSampler):
    """Time held back by each reason, PCIe replays and width, and energy where it takes less than 2 ms.

    On the H200 we measured (driver 580) energy takes 6 ms, so it is missing there: integrate the power instead.
    """

    name = "nvidia_counters"
    period = 60.0
    source = "NVML"
    metrics = (*dict.fromkeys(field.metric for field in FIELDS), gpu.PCIE_WIDTH)

    def cards(self) -> list[Card]:
        nvml = opened(self.host)
        return [Card(device.uuid, _calls(nvml.lib, device), trouble) for device in nvml.devices]


def _calls(lib: Any, device: Device) -> list[Call]:
    width = partial(lib.nvmlDeviceGetCurrPcieLinkWidth, device.handle)
    return [
        field_call(lib, device, FIELDS),
        Call("PCIe width", (series(gpu.PCIE_WIDTH, device.uuid),), lambda: (width(),)),
    ]
