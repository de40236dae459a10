"""NVIDIA GPUs, every tick: only calls that take a few microseconds each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler
from hindmost_agent.metric import Metric, gauge, series
from hindmost_agent.nvml import Device, opened, trouble
from hindmost_agent.sampler import register

if TYPE_CHECKING:
    from collections.abc import Callable

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
MEMORY_TEMP_FIELD = 82

MASK = gauge("hindmost_gpu_clocks_event_reasons", "Why clocks are what they are, as NVML's bit mask.", "gpu_uuid")
ACTIVE = gauge("hindmost_gpu_clocks_event_active", "1 while this reason holds the clocks back.", "gpu_uuid", "reason")
PSTATE = gauge("hindmost_gpu_performance_state", "Performance state, 0 the fastest.", "gpu_uuid")


@register
class Nvidia(GpuSampler):
    """Utilisation, memory, power, temperature, clocks and what holds them back, of each NVIDIA GPU."""

    name = "nvidia"
    source = "NVML"
    metrics = (
        gpu.UP, gpu.UTILIZATION, gpu.MEMORY_BUSY, gpu.MEMORY_USED, gpu.MEMORY_TOTAL, gpu.POWER, gpu.TEMPERATURE,
        gpu.MEMORY_TEMPERATURE, gpu.SM_CLOCK, gpu.MEMORY_CLOCK, MASK, ACTIVE, PSTATE,
    )  # fmt: skip

    def cards(self) -> list[Card]:
        nvml = opened(self.host)
        return [Card(device.uuid, _calls(nvml.lib, device), trouble, up=True) for device in nvml.devices]


def _calls(lib: Any, device: Device) -> list[Call]:
    handle = device.handle
    reasons = (series(MASK, device.uuid), *(series(ACTIVE, device.uuid, name) for name in REASONS.values()))
    ask: list[tuple[str, tuple[Metric, ...], Callable[[], tuple[float, ...]]]] = [
        (
            "utilisation",
            (gpu.UTILIZATION, gpu.MEMORY_BUSY),
            partial(_utilization, lib, handle),
        ),
        ("memory", (gpu.MEMORY_USED, gpu.MEMORY_TOTAL), partial(_memory, lib, handle)),
        ("power", (gpu.POWER,), lambda: (lib.nvmlDeviceGetPowerUsage(handle) / 1e3,)),
        ("temperature", (gpu.TEMPERATURE,), lambda: (lib.nvmlDeviceGetTemperature(handle, 0),)),
        ("memory temperature", (gpu.MEMORY_TEMPERATURE,), partial(_memory_temperature, lib, handle)),
        ("SM clock", (gpu.SM_CLOCK,), lambda: (lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM) * 1e6,)),
        ("memory clock", (gpu.MEMORY_CLOCK,), lambda: (lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM) * 1e6,)),
        ("performance state", (PSTATE,), partial(_pstate, lib, handle)),
    ]
    calls = [Call(what, tuple(series(metric, device.uuid) for metric in fills), read) for what, fills, read in ask]
    return [*calls, Call("clocks event reasons", reasons, partial(_reasons, lib, handle))]


def _utilization(lib: Any, handle: Any) -> tuple[float, float]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


def _memory(lib: Any, handle: Any) -> tuple[float, float]:
    # Version 2 counts what the driver reserves apart from what is used, as nvidia-smi shows it.
    memory = lib.nvmlDeviceGetMemoryInfo(handle, version=lib.nvmlMemory_v2)
    return memory.used, memory.total


def _memory_temperature(lib: Any, handle: Any) -> tuple[float]:
    field = lib.nvmlDeviceGetFieldValues(handle, [MEMORY_TEMP_FIELD])[0]
    if field.nvmlReturn:
        raise lib.NVMLError(field.nvmlReturn)
    return (field.value.uiVal,)


def _pstate(lib: Any, handle: Any) -> tuple[float]:
    state = lib.nvmlDeviceGetPerformanceState(handle)
    return (float("nan") if state > 15 else state,)


def _reasons(lib: Any, handle: Any) -> tuple[float, ...]:
    mask = lib.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return (mask, *(float(bool(mask & bit)) for bit in REASONS))
