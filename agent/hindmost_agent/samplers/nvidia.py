"""NVIDIA GPUs: what they do and hold, by process and MIG instance too; their performance monitor; their health."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, Device, EachGpu, GpuSampler, Owners, ratio
from hindmost_agent.nvml import NVIDIA, Field, XidErrors, field_call
from hindmost_agent.sampler import NAN, Absent, Host, Metric, Series, counter, gauge, register, series

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
    maker = NVIDIA
    says_up = True
    metrics = (gpu.UP, gpu.UTILIZATION, gpu.MEMORY_BUSY, gpu.POWER, gpu.SM_CLOCK, MASK, ACTIVE)

    def calls(self, lib: Any, device: Device) -> list[Call]:
        handle, uuid = device.handle, device.uuid
        reasons = (series(MASK, uuid), *(series(ACTIVE, uuid, name) for name in REASONS.values()))
        rates = (series(gpu.UTILIZATION, uuid), series(gpu.MEMORY_BUSY, uuid))
        power, clock = lib.nvmlDeviceGetPowerUsage, partial(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_SM)
        return [
            Call("utilisation", rates, partial(_utilization, lib, handle)),
            Call("power", (series(gpu.POWER, uuid),), lambda: (power(handle) / 1e3,)),
            Call("SM clock", (series(gpu.SM_CLOCK, uuid),), lambda: (clock() * 1e6,)),
            Call("clocks event reasons", reasons, lambda: _active(lib.nvmlDeviceGetCurrentClocksEventReasons(handle))),
        ]


def _utilization(lib: Any, handle: Any) -> tuple[float, float]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100, rates.memory / 100


@lru_cache(64)
def _active(mask: int) -> tuple[float, ...]:
    """The mask and each of its reasons; there are few masks, and each tick one is asked for."""
    return (mask, *(float(bool(mask & bit)) for bit in REASONS))


MEMORY_TEMP_FIELD = 82

PSTATE = gauge("hindmost_gpu_performance_state", "Performance state, 0 the fastest.", "gpu_uuid")


@register
class NvidiaState(GpuSampler):
    """Memory in use, temperatures, memory clock and performance state of each NVIDIA GPU."""

    name = "nvidia_state"
    period = 5.0
    tells_why = True
    source = "NVML"
    maker = NVIDIA
    metrics = (
        gpu.MEMORY_USED, gpu.MEMORY_TOTAL, gpu.TEMPERATURE, gpu.MEMORY_TEMPERATURE, gpu.MEMORY_CLOCK, PSTATE,
    )  # fmt: skip

    def calls(self, lib: Any, device: Device) -> list[Call]:
        handle, uuid = device.handle, device.uuid
        memory = (series(gpu.MEMORY_USED, uuid), series(gpu.MEMORY_TOTAL, uuid))
        hot = (series(gpu.MEMORY_TEMPERATURE, uuid),)
        clock = partial(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_MEM)
        return [
            Call("memory", memory, partial(_memory, lib, handle)),
            Call("temperature", (series(gpu.TEMPERATURE, uuid),), lambda: (lib.nvmlDeviceGetTemperature(handle, 0),)),
            Call("memory temperature", hot, partial(_memory_temperature, lib, handle)),
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
    maker = NVIDIA
    metrics = (*dict.fromkeys(field.metric for field in FIELDS), gpu.PCIE_WIDTH)

    def calls(self, lib: Any, device: Device) -> list[Call]:
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
    maker = NVIDIA

    def processes(self, lib: Any, device: Device) -> Iterable[tuple[int, float]]:
        running = lib.nvmlDeviceGetComputeRunningProcesses(device.handle)
        return ((one.pid, NAN if one.usedGpuMemory is None else one.usedGpuMemory) for one in running)


MIG = gauge("hindmost_gpu_mig_info", "1; a MIG instance of this GPU.", "gpu_uuid", "mig_uuid")
MIG_USED = gauge(
    "hindmost_gpu_mig_memory_used_bytes", "Device memory in use in a MIG instance.", "gpu_uuid", "mig_uuid"
)


@register
class NvidiaMig(EachGpu):
    """The MIG instances of each GPU and the memory used in them."""

    name = "nvidia_mig"
    period = 60.0  # whether a GPU is divided takes 0.3 ms to ask, and changes only when nothing runs on it
    source = "NVML"
    maker = NVIDIA
    metrics = (MIG, MIG_USED)
    what = "MIG instances"

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._divided = self._all_divided()
        if not self._divided:
            raise Absent("no GPU here is in MIG mode")

    def devices(self) -> list[Device]:
        library = NVIDIA.opened(self.host)
        if library.devices != self.library.devices:  # a GPU that did not answer has joined, or one went
            self.library = library
            self._divided = self._all_divided()
        return self._divided

    def of(self, lib: Any, device: Device) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for slot in range(lib.nvmlDeviceGetMaxMigDeviceCount(device.handle)):
            try:
                handle = lib.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, slot)
            except lib.NVMLError:  # this slot holds no instance
                continue
            who = (device.uuid, str(lib.nvmlDeviceGetUUID(handle)))
            found[series(MIG, *who)] = 1.0
            found[series(MIG_USED, *who)] = float(lib.nvmlDeviceGetMemoryInfo(handle).used)
        return found

    def _all_divided(self) -> list[Device]:
        return [device for device in self.library.devices if self._is_divided(device)]

    def _is_divided(self, device: Device) -> bool:
        self.host.asking.of(device.uuid)
        try:
            return bool(self.library.lib.nvmlDeviceGetMigMode(device.handle)[0])
        except self.library.lib.NVMLError:  # not a GPU that can be divided
            return False


MIB = float(1 << 20)


def _rate(name: str, text: str) -> Metric:
    return gauge(f"hindmost_gpu_{name}_bytes_per_second", text, "gpu_uuid")


#: NVML's GPM metric number, the metric, and what one of its units is (it gives per cent and MiB a second).
GPM: tuple[tuple[int, Metric, float], ...] = (
    (2, ratio("sm_activity", "Share of time in which the average SM had work."), 0.01),
    (3, ratio("sm_occupancy", "Warps resident, as a share of what the SMs could hold."), 0.01),
    (5, ratio("tensor_activity", "Share of the peak at which tensor cores worked."), 0.01),
    (10, ratio("dram_activity", "Share of the peak bandwidth at which device memory was used."), 0.01),
    (11, ratio("fp64_activity", "Share of the peak at which FP64 pipes worked."), 0.01),
    (12, ratio("fp32_activity", "Share of the peak at which FP32 pipes worked."), 0.01),
    (13, ratio("fp16_activity", "Share of the peak at which FP16 pipes worked (not the tensor cores)."), 0.01),
    (20, _rate("pcie_transmit", "Bytes a second from the GPU over PCIe."), MIB),
    (21, _rate("pcie_receive", "Bytes a second to the GPU over PCIe."), MIB),
    (60, _rate("nvlink_receive", "Bytes a second to the GPU over all NVLinks."), MIB),
    (61, _rate("nvlink_transmit", "Bytes a second from the GPU over all NVLinks."), MIB),
)


class Monitor:
    """Two samples of one GPU, taken in turn: activity is what happened between them."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._lib = lib
        self._handle = handle
        self._before, self._after = lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()
        self._primed = False
        request = self._request = lib.c_nvmlGpmMetricsGet_t()
        request.version = lib.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM)
        for slot, (number, _, _) in zip(request.metrics, GPM, strict=False):
            slot.metricId = number

    def read(self) -> Sequence[float]:
        """Activity since the last reading, in the order of ``GPM``; all missing the first time."""
        self._before, self._after = self._after, self._before
        self._lib.nvmlGpmSampleGet(self._handle, self._after)
        if not self._primed:
            self._primed = True
            return [NAN] * len(GPM)
        request = self._request
        request.sample1, request.sample2 = self._before, self._after
        self._lib.nvmlGpmMetricsGet(request)
        found = zip(request.metrics, GPM, strict=False)
        return [NAN if slot.nvmlReturn else slot.value * unit for slot, (_, _, unit) in found]


@register
class NvidiaGpm(GpuSampler):
    """Activity of SMs, tensor cores, memory and links between two readings; Hopper and later.

    On 4 H200s in a DDP job NVLink's rates, 1.48 GiB/s each way, agreed with the counters of `nvidia_links` within 10 %.
    """

    name = "nvidia_gpm"
    # A sample takes 0.3 ms a GPU: at this period that is well below the cost of the tick's own calls.
    period = 5.0
    source = "NVML, GPM"
    maker = NVIDIA
    metrics = tuple(metric for _, metric, _ in GPM)

    def cards(self) -> list[Card]:
        cards = [card for card in super().cards() if card.series]
        if not cards:
            raise Absent("no GPU here has a performance monitor (Hopper and later have)")
        return cards

    def calls(self, lib: Any, device: Device) -> list[Call]:
        self.host.asking.of(device.uuid)
        if not _supported(lib, device.handle):
            return []
        fills = tuple(series(metric, device.uuid) for metric in self.metrics)
        return [Call("GPM", fills, Monitor(lib, device.handle).read)]


def _supported(lib: Any, handle: Any) -> bool:
    try:
        return bool(lib.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except lib.NVMLError:
        return False


XIDS = counter("hindmost_gpu_all_xid_errors_total", "XID errors of any number since the agent started.", "gpu_uuid")
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
    maker = NVIDIA
    metrics = (
        gpu.INFO, gpu.SM_CLOCK_MAX, gpu.MEMORY_CLOCK_MAX, gpu.POWER_LIMIT, gpu.ECC, REMAPPED, REMAP_PENDING,
        REMAP_FAILED, XIDS, XID,
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._xids = XidErrors(NVIDIA.opened(host).lib, host.asking)
        self._xids.hear(NVIDIA.opened(host).devices)  # listens from now on

    def calls(self, lib: Any, device: Device) -> list[Call]:
        handle, uuid = device.handle, device.uuid
        identity = (uuid, str(device.number), "nvidia", device.model, device.pci_bus_id, device.driver)
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

    def sample(self) -> list[float]:
        NVIDIA.look_again(self.host)
        values = super().sample()
        nvml = NVIDIA.opened(self.host)
        self._xids.hear(nvml.devices, nvml.hung)
        heard = self._xids.counts
        found: dict[Series, float] = {series(XIDS, uuid): count for uuid, count in self._xids.totals.items()}
        found.update((series(XID, uuid, xid), count) for (uuid, xid), count in heard.items())
        self.series = (*self.fixed(), *found)
        return [*values, *found.values()]


def _once(megahertz: Callable[[], float]) -> Callable[[], tuple[float]]:
    """What never changes and takes milliseconds is asked for once."""
    return cache(lambda: (megahertz() * 1e6,))


def _remapped(uuid: str) -> tuple[Series, ...]:
    causes = (series(REMAPPED, uuid, "correctable"), series(REMAPPED, uuid, "uncorrectable"))
    return (*causes, series(REMAP_PENDING, uuid), series(REMAP_FAILED, uuid))


def _ecc(lib: Any, handle: Any, kind: int) -> float:
    return float(lib.nvmlDeviceGetTotalEccErrors(handle, kind, 0))  # 0: since the driver was loaded
