"""NVIDIA GPUs: what they do and hold, as a whole, by process and by MIG instance."""

from __future__ import annotations

import logging
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler, HungCard, Owners, of_each
from hindmost_agent.metric import counter, gauge, series
from hindmost_agent.nvml import Device, Field, field_call, opened, trouble
from hindmost_agent.sampler import GPU, NAN, Absent, Host, Sampler, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hindmost_agent.gpu import Trouble
    from hindmost_agent.metric import Series

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
        cards = [Card(device.uuid, _tick_calls(nvml.lib, device), trouble, up=True) for device in nvml.devices]
        return [*cards, *(HungCard(device.uuid) for device in nvml.hung)]


def _tick_calls(lib: Any, device: Device) -> list[Call]:
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
        return [Card(device.uuid, _state_calls(nvml.lib, device), trouble) for device in nvml.devices]


def _state_calls(lib: Any, device: Device) -> list[Call]:
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
        return [Card(device.uuid, _counter_calls(nvml.lib, device), trouble) for device in nvml.devices]


def _counter_calls(lib: Any, device: Device) -> list[Call]:
    width = partial(lib.nvmlDeviceGetCurrPcieLinkWidth, device.handle)
    return [
        field_call(lib, device, FIELDS),
        Call("PCIe width", (series(gpu.PCIE_WIDTH, device.uuid),), lambda: (width(),)),
    ]


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
