"""NVIDIA GPUs, every tick: what changes from one second to the next, and costs a microsecond or two to ask."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler, HungCard
from hindmost_agent.metric import gauge, series
from hindmost_agent.nvml import Device, opened, trouble
from hindmost_agent.sampler import register

#: Bits of the clocks event reasons, as nvml.h names them.
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}

MASK = gauge("hindmost_gpu_clocks_event_reasons", "Why clocks are what they are, as NVML's bit mask.", "gpu_uuid")
ACTIVE = gauge("hindmost_gpu_clocks_event_active", "1 while this reason holds the clocks back.", "gpu_uuid", "reason")


@register
class Nvidia(GpuSampler):
    """Utilisation, power, the clock and what holds it back, of each NVIDIA GPU."""

    name = "nvidia"
    source = "NVML"
    metrics = (gpu.UP, gpu.UTILIZATION, gpu.MEMORY_BUSY, gpu.POWER, gpu.SM_CLOCK, MASK, ACTIVE)

    def cards(self) -> list[Card]:
        nvml = opened(self.host)
        cards = [Card(device.uuid, _calls(nvml.lib, device), trouble, up=True) for device in nvml.devices]
        return [*cards, *(HungCard(device.uuid) for device in nvml.hung)]


def _calls(lib: Any, device: Device) -> list[Call]:
    handle, uuid = device.handle, device.uuid
    reasons = (series(MASK, uuid), *(series(ACTIVE, uuid, name) for name in REASONS.values()))
    rates = (series(gpu.UTILIZATION, uuid), series(gpu.MEMORY_BUSY, uuid))
    power, clock = lib.nvmlDeviceGetPowerUsage, partial(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_SM)
    return [
        Call("utilisation", rates, partial(_utilization, lib, handle)),
        Call("power", (series(gpu.POWER, uuid),), lambda: (power(handle) / 1e3,)),
        Call("SM clock", (series(gpu.SM_CLOCK, uuid),), lambda: (clock() * 1e6,)),
        Call("clocks event reasons", reasons, partial(_reasons, lib, handle)),
    ]


def _utilization(lib: Any, handle: Any) -> tuple[float, float]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


@lru_cache(64)
def _active(mask: int) -> tuple[float, ...]:
    """The mask and each of its reasons; there are few masks, and each tick one is asked for."""
    return (mask, *(float(bool(mask & bit)) for bit in REASONS))


def _reasons(lib: Any, handle: Any) -> tuple[float, ...]:
    return _active(lib.nvmlDeviceGetCurrentClocksEventReasons(handle))
