"""What of NVIDIA GPUs changes seldom or costs too much for every tick: identity, owners, errors, links, energy."""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler, Trouble
from hindmost_agent.metric import Metric, Series, counter, gauge, series
from hindmost_agent.nvml import Device, opened, trouble
from hindmost_agent.sampler import NAN, register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hindmost_agent.nvml import Nvml
    from hindmost_agent.sampler import Host

log = logging.getLogger(__name__)

#: A field that takes NVML longer than this is not asked for again: its value is not worth a training job's time.
SLOW_US = 2_000
ALL_LINKS = 0xFFFFFFFF
XID_EVENT = 0x8
TIMEOUT, KIBI = 10, 1024.0

RANK = gauge("hindmost_gpu_rank_info", "1; which rank computes on this GPU.", "gpu_uuid", "job", "rank")
RANK_MEMORY = gauge(
    "hindmost_gpu_process_memory_used_bytes", "Device memory that a rank uses.", "gpu_uuid", "job", "rank"
)
XID = counter("hindmost_gpu_xid_errors_total", "XID errors seen by this agent, by number.", "gpu_uuid", "xid")
MIG = gauge("hindmost_gpu_mig_info", "1; a MIG instance of this GPU.", "gpu_uuid", "mig_uuid")
MIG_USED = gauge(
    "hindmost_gpu_mig_memory_used_bytes", "Device memory in use in a MIG instance.", "gpu_uuid", "mig_uuid"
)
ECC = counter(
    "hindmost_gpu_ecc_errors_total", "Memory errors since the driver was loaded, by whether ECC corrected them.",
    "gpu_uuid", "corrected",
)  # fmt: skip
REMAPPED = gauge("hindmost_gpu_remapped_rows", "Memory rows replaced by spare ones, by cause.", "gpu_uuid", "cause")
REMAP_PENDING = gauge("hindmost_gpu_remap_pending", "1 if rows wait for a reset to be replaced.", "gpu_uuid")
REMAP_FAILED = gauge("hindmost_gpu_remap_failed", "1 if a row could not be replaced.", "gpu_uuid")
WIDTH = gauge("hindmost_gpu_pcie_link_width", "PCIe lanes in use.", "gpu_uuid")
GENERATION = gauge("hindmost_gpu_pcie_link_generation", "PCIe generation in use (lower when idle).", "gpu_uuid")


class Field(NamedTuple):
    """One of NVML's field values: its number, the scope it is asked for, what it fills and its unit's size."""

    number: int
    scope: int
    metric: Metric
    unit: float = 1.0
    labels: tuple[str, ...] = ()


def _of(name: str, text: str, *labels: str) -> Metric:
    return counter(f"hindmost_gpu_{name}_total", text, "gpu_uuid", *labels)


HELD_BACK = _of("clocks_event_seconds", "Time in which this reason held the clocks back.", "reason")
CRC = _of("nvlink_crc_errors", "NVLink packets with a CRC error, all links.", "kind")
FIELDS = (
    Field(83, 0, _of("energy_joules", "Energy used since the driver was loaded."), 1e-3),
    Field(94, 0, _of("pcie_replays", "PCIe packets that had to be sent again.")),
    Field(197, 0, _of("pcie_transmit_bytes", "Bytes from the GPU over PCIe.")),
    Field(198, 0, _of("pcie_receive_bytes", "Bytes to the GPU over PCIe.")),
    Field(138, ALL_LINKS, _of("nvlink_transmit_bytes", "Payload from the GPU over all NVLinks."), KIBI),
    Field(139, ALL_LINKS, _of("nvlink_receive_bytes", "Payload to the GPU over all NVLinks."), KIBI),
    Field(52, 0, _of("nvlink_replay_errors", "NVLink packets that had to be sent again, all links.")),
    Field(38, 0, CRC, 1.0, ("flow_control",)),
    Field(45, 0, CRC, 1.0, ("data",)),
    Field(74, 0, HELD_BACK, 1e-9, ("sw_power_cap",)),
    Field(76, 0, HELD_BACK, 1e-9, ("sync_boost",)),
    Field(269, 0, HELD_BACK, 1e-9, ("sw_thermal_slowdown",)),
    Field(270, 0, HELD_BACK, 1e-9, ("hw_thermal_slowdown",)),
    Field(271, 0, HELD_BACK, 1e-9, ("hw_power_brake",)),
)
#: Which member of the value union a field's ``valueType`` names.
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Fields:
    """The field values of one GPU, asked for in one call; slow and unsupported ones are left out after the first."""

    def __init__(self, lib: Any, device: Device) -> None:
        self._lib = lib
        self._device = device
        self._asked = list(range(len(FIELDS)))

    def read(self) -> Sequence[float]:
        """A value for each of ``FIELDS``."""
        values = [NAN] * len(FIELDS)
        asked = [(FIELDS[index].number, FIELDS[index].scope) for index in self._asked]
        found = self._lib.nvmlDeviceGetFieldValues(self._device.handle, asked) if asked else []
        for index, field in zip(tuple(self._asked), found, strict=False):
            if field.nvmlReturn == 0:
                values[index] = getattr(field.value, MEMBERS[field.valueType]) * FIELDS[index].unit
            if field.latencyUsec > SLOW_US or _never(field.nvmlReturn):
                self._leave_out(index, field)
        return values

    def _leave_out(self, index: int, field: Any) -> None:
        self._asked.remove(index)
        why = f"takes {field.latencyUsec} us" if field.nvmlReturn == 0 else f"NVML error {field.nvmlReturn}"
        log.info("GPU %s: %s is not read (%s)", self._device.uuid, FIELDS[index].metric.name, why)


def _never(code: int) -> bool:
    return code in (2, 3, 4, 13)


@register
class NvidiaHealth(GpuSampler):
    """Identity and owner, memory errors, remapped rows, XID errors, PCIe and NVLink totals, energy, MIG."""

    name = "nvidia_health"
    period = 30.0
    source = "NVML"
    metrics = (
        gpu.INFO, gpu.SM_CLOCK_MAX, gpu.MEMORY_CLOCK_MAX, gpu.POWER_LIMIT, ECC, REMAPPED, REMAP_PENDING, REMAP_FAILED,
        WIDTH, GENERATION, *dict.fromkeys(field.metric for field in FIELDS), RANK, RANK_MEMORY, XID, MIG, MIG_USED,
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        self._nvml: Nvml = opened(host)
        super().__init__(host)
        self._fixed = self.series
        self._xids: Counter[tuple[str, str]] = Counter()
        self._events = self._listen()

    def cards(self) -> list[Card]:
        return [Card(device.uuid, _calls(self._nvml, device), trouble) for device in self._nvml.devices]

    def sample(self) -> list[float]:
        values = super().sample()
        self._hear()
        found: dict[Series, float] = {series(XID, uuid, xid): count for (uuid, xid), count in self._xids.items()}
        for device in self._nvml.devices:
            for question in (self._owners, self._instances):
                found.update(self._asked(question, device))
        if self.series != (expected := (*self._fixed, *found)):
            self.series = expected
        return [*values, *found.values()]

    def _asked(self, question: Callable[[Device], dict[Series, float]], device: Device) -> dict[Series, float]:
        try:
            return question(device)
        except self._nvml.lib.NVMLError as error:
            if trouble(error) is not Trouble.UNSUPPORTED:
                log.info("GPU %s: owners or instances could not be read (%s)", device.uuid, error)
            return {}

    def _owners(self, device: Device) -> dict[Series, float]:
        """Which ranks compute on a GPU and the memory they use there; only the job's processes are named."""
        found = {}
        for process in self._nvml.lib.nvmlDeviceGetComputeRunningProcesses(device.handle):
            rank = self.host.ranks.get(process.pid)
            if rank is not None:
                self.host.gpu_of[process.pid] = device.uuid
                who = (device.uuid, rank.job_id, str(rank.rank))
                found[series(RANK, *who)] = 1.0
                found[series(RANK_MEMORY, *who)] = NAN if process.usedGpuMemory is None else process.usedGpuMemory
        return found

    def _instances(self, device: Device) -> dict[Series, float]:
        lib, found = self._nvml.lib, {}
        if not lib.nvmlDeviceGetMigMode(device.handle)[0]:
            return {}
        for index in range(lib.nvmlDeviceGetMaxMigDeviceCount(device.handle)):
            try:
                handle = lib.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
            except lib.NVMLError:  # this slot holds no instance
                continue
            who = (device.uuid, str(lib.nvmlDeviceGetUUID(handle)))
            found[series(MIG, *who)] = 1.0
            found[series(MIG_USED, *who)] = float(lib.nvmlDeviceGetMemoryInfo(handle).used)
        return found

    def _listen(self) -> Any:
        """Ask to be told of XID errors; ``None`` where that cannot be had."""
        lib = self._nvml.lib
        try:
            events = lib.nvmlEventSetCreate()
            for device in self._nvml.devices:
                lib.nvmlDeviceRegisterEvents(device.handle, XID_EVENT, events)
        except lib.NVMLError as error:
            log.info("XID errors are not heard of through NVML (%s)", error)
            return None
        return events

    def _hear(self) -> None:
        """Count the XID errors that are waiting; never waits for one."""
        lib = self._nvml.lib
        for _ in range(64 if self._events is not None else 0):
            try:
                event = lib.nvmlEventSetWait_v2(self._events, 0)
                uuid = lib.nvmlDeviceGetUUID(event.device)
            except lib.NVMLError as error:
                if getattr(error, "value", None) != TIMEOUT:
                    self._events = None
                return
            self._xids[str(uuid), str(event.eventData)] += 1
            log.warning("GPU %s: XID %d", uuid, event.eventData)


def _calls(nvml: Nvml, device: Device) -> list[Call]:
    lib, handle, uuid = nvml.lib, device.handle, device.uuid
    identity = (uuid, str(device.number), "nvidia", device.model, device.pci_bus_id, nvml.driver)
    limit = partial(lib.nvmlDeviceGetEnforcedPowerLimit, handle)
    generation = partial(lib.nvmlDeviceGetCurrPcieLinkGeneration, handle)
    most = partial(lib.nvmlDeviceGetMaxClockInfo, handle)
    return [
        Call("identity", (series(gpu.INFO, *identity),), lambda: (1.0,)),
        Call("SM clock limit", (series(gpu.SM_CLOCK_MAX, uuid),), _once(lambda: most(lib.NVML_CLOCK_SM) * 1e6)),
        Call(
            "memory clock limit", (series(gpu.MEMORY_CLOCK_MAX, uuid),), _once(lambda: most(lib.NVML_CLOCK_MEM) * 1e6)
        ),
        Call("power limit", (series(gpu.POWER_LIMIT, uuid),), lambda: (limit() / 1e3,)),
        Call("corrected ECC errors", (series(ECC, uuid, "yes"),), lambda: (_ecc(lib, handle, 0),)),
        Call("uncorrected ECC errors", (series(ECC, uuid, "no"),), lambda: (_ecc(lib, handle, 1),)),
        Call("remapped rows", _remapped(uuid), partial(lib.nvmlDeviceGetRemappedRows, handle)),
        Call("PCIe width", (series(WIDTH, uuid),), lambda: (lib.nvmlDeviceGetCurrPcieLinkWidth(handle),)),
        Call("PCIe generation", (series(GENERATION, uuid),), lambda: (generation(),)),
        Call("field values", tuple(series(f.metric, uuid, *f.labels) for f in FIELDS), Fields(lib, device).read),
    ]


def _once(read: Callable[[], float]) -> Callable[[], tuple[float]]:
    """What never changes and takes milliseconds is asked for once."""
    return cache(lambda: (read(),))


def _remapped(uuid: str) -> tuple[Series, ...]:
    causes = (series(REMAPPED, uuid, "correctable"), series(REMAPPED, uuid, "uncorrectable"))
    return (*causes, series(REMAP_PENDING, uuid), series(REMAP_FAILED, uuid))


def _ecc(lib: Any, handle: Any, kind: int) -> float:
    return float(lib.nvmlDeviceGetTotalEccErrors(handle, kind, 0))  # 0: since the driver was loaded
