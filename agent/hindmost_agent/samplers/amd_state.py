"""AMD GPUs, every few seconds: what drifts rather than jumps."""

from __future__ import annotations

from functools import partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.amd import Device, number, opened, trouble
from hindmost_agent.gpu import Call, Card, GpuSampler
from hindmost_agent.metric import series
from hindmost_agent.sampler import register

MIB = float(1 << 20)


@register
class AmdState(GpuSampler):
    """Memory in use, temperatures and memory clock of each AMD GPU."""

    name = "amd_state"
    period = 5.0
    tells_why = True
    source = "AMD SMI"
    metrics = (gpu.MEMORY_USED, gpu.MEMORY_TOTAL, gpu.TEMPERATURE, gpu.MEMORY_TEMPERATURE, gpu.MEMORY_CLOCK)

    def cards(self) -> list[Card]:
        amd = opened(self.host)
        return [Card(device.uuid, _calls(amd.lib, device), trouble) for device in amd.devices]


def _calls(lib: Any, device: Device) -> list[Call]:
    handle, uuid = device.handle, device.uuid
    memory = (series(gpu.MEMORY_USED, uuid), series(gpu.MEMORY_TOTAL, uuid))
    kinds = lib.AmdSmiTemperatureType
    vram = partial(_temperature, lib, handle, kinds.VRAM)
    return [
        Call("memory", memory, partial(_memory, lib, handle)),
        Call("temperature", (series(gpu.TEMPERATURE, uuid),), partial(_temperature, lib, handle, _core(lib, handle))),
        Call("memory temperature", (series(gpu.MEMORY_TEMPERATURE, uuid),), vram),
        Call("memory clock", (series(gpu.MEMORY_CLOCK, uuid),), partial(_clock, lib, handle)),
    ]


def _core(lib: Any, handle: Any) -> Any:
    """The sensor of the chip: its edge, or on accelerators without one (MI200 and later) its hottest spot."""
    kinds = lib.AmdSmiTemperatureType
    try:
        _temperature(lib, handle, kinds.EDGE)
    except lib.AmdSmiException:
        return kinds.HOTSPOT
    return kinds.EDGE


def _memory(lib: Any, handle: Any) -> tuple[float, float]:
    found = lib.amdsmi_get_gpu_vram_usage(handle)  # MiB, though it says MB
    return number(found["vram_used"], MIB), number(found["vram_total"], MIB)


def _temperature(lib: Any, handle: Any, kind: Any) -> tuple[float]:
    return (number(lib.amdsmi_get_temp_metric(handle, kind, lib.AmdSmiTemperatureMetric.CURRENT)),)


def _clock(lib: Any, handle: Any) -> tuple[float]:
    return (number(lib.amdsmi_get_clock_info(handle, lib.AmdSmiClkType.MEM)["clk"], 1e6),)
