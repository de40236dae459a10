"""Memory in use, temperatures, memory clock and performance state of NVIDIA GPUs, every 5 s."""

from __future__ import annotations

from functools import partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler
from hindmost_agent.metric import gauge, series
from hindmost_agent.nvml import Device, opened, trouble
from hindmost_agent.sampler import NAN, register

MEMORY_TEMP_FIELD = 82

PSTATE = gauge("hindmost_gpu_performance_state", "Performance state, 0 the fastest.", "gpu_uuid")


@register
class NvidiaState(GpuSampler):
    """Memory in use, temperatures, memory clock and performance state of each NVIDIA GPU."""

    name = "nvidia_state"
    period = 5.0
    tells_why = True
    source = "NVML"
    metrics = (
        gpu.MEMORY_USED, gpu.MEMORY_TOTAL, gpu.TEMPERATURE, gpu.MEMORY_TEMPERATURE, gpu.MEMORY_CLOCK, PSTATE,
    )  # fmt: skip

    def cards(self) -> list[Card]:
        nvml = opened(self.host)
        return [Card(device.uuid, _calls(nvml.lib, device), trouble) for device in nvml.devices]


def _calls(lib: Any, device: Device) -> list[Call]:
    handle, uuid = device.handle, device.uuid
    memory = (series(gpu.MEMORY_USED, uuid), series(gpu.MEMORY_TOTAL, uuid))
    clock = partial(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_MEM)
    return [
        Call("memory", memory, partial(_memory, lib, handle)),
        Call("temperature", (series(gpu.TEMPERATURE, uuid),), lambda: (lib.nvmlDeviceGetTemperature(handle, 0),)),
        Call("memory temperature", (series(gpu.MEMORY_TEMPERATURE, uuid),), partial(_memory_temperature, lib, handle)),
        Call("memory clock", (series(gpu.MEMORY_CLOCK, uuid),), lambda: (clock() * 1e6,)),
        Call("performance state", (series(PSTATE, uuid),), partial(_pstate, lib, handle)),
    ]


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
    return (NAN if state > 15 else state,)
