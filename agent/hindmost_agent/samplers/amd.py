"""AMD GPUs: samplers that share the Python package ``amdsmi`` of ROCm, opened once."""

import contextlib
import importlib
import sys
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Device, GpuSampler, Maker, Owners, Trouble, ratio
from hindmost_agent.sampler import NAN, Absent, Host, counter, register, series

#: ``amdsmi_status_t`` of what will not be answered next time either: invalid parameters, not supported, not
#: implemented, symbol missing, no permission.
UNSUPPORTED = frozenset({1, 2, 3, 5, 10})
LOST = frozenset({31})  # the device is not found any more


def number(value: object, unit: float = 1.0) -> float:
    """A value of the library in base units; missing where it says ``N/A`` or, in an unsigned field, all ones."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in (0xFFFFFFFF, (1 << 64) - 1):
        return NAN
    return value * unit


def _imported(host: Host) -> Any:
    # Looked at first, because importing costs memory that a node without GPUs need not spend.
    if not (host.dev / "kfd").exists():
        raise Absent("no AMD GPU driver is loaded")
    try:
        # Without ROCm's shared library its import prints to stdout, which the process that started the agent reads.
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module("amdsmi")
    except ImportError as error:
        raise Absent("the package amdsmi is not installed") from error
    except (OSError, KeyError, AttributeError, NameError) as error:  # what it raises depends on how it was installed
        raise Absent(f"amdsmi finds no libamd_smi.so: {error}") from error


class _Amd(Maker):
    library, error, called = "AMD SMI", "AmdSmiException", "AMD GPU"

    def start(self, host: Host) -> tuple[Any, Sequence[Any]]:
        lib = host.amdsmi_library or _imported(host)
        try:
            lib.amdsmi_init(lib.AmdSmiInitFlags.INIT_AMD_GPUS)
            return lib, lib.amdsmi_get_processor_handles()
        except lib.AmdSmiException as error:
            raise Absent(f"AMD SMI does not start: {error}") from error

    def device(self, lib: Any, number: int, slot: Any) -> Device:
        uuid, model = lib.amdsmi_get_gpu_device_uuid(slot), lib.amdsmi_get_gpu_asic_info(slot)["market_name"]
        driver = lib.amdsmi_get_gpu_driver_info(slot)["driver_version"]
        return Device(slot, number, uuid, model, lib.amdsmi_get_gpu_device_bdf(slot), driver)

    def trouble(self, error: Exception) -> Trouble:
        code = getattr(error, "err_code", None)
        # A missing key or attribute: this release of the library does not know of it.
        if isinstance(error, (KeyError, AttributeError)) or code is None or code in UNSUPPORTED:
            return Trouble.UNSUPPORTED
        return Trouble.LOST if code in LOST else Trouble.PASSING


AMD = _Amd()

#: Where the power is: the first that holds a number; which one does depends on the card and on ROCm's release.
POWER_KEYS = ("current_socket_power", "socket_power", "average_socket_power")


@register
class Amd(GpuSampler):
    """Utilisation, power and clock of each AMD GPU."""

    name = "amd"
    source = "AMD SMI"
    maker = AMD
    says_up = True
    metrics = (gpu.UP, gpu.UTILIZATION, gpu.MEMORY_BUSY, gpu.POWER, gpu.SM_CLOCK)

    def calls(self, lib: Any, device: Device) -> list[Call]:
        handle, uuid = device.handle, device.uuid
        rates = (series(gpu.UTILIZATION, uuid), series(gpu.MEMORY_BUSY, uuid))
        return [
            Call("utilisation", rates, partial(_activity, lib, handle)),
            Call("power", (series(gpu.POWER, uuid),), partial(_power, lib, handle)),
            Call("clock", (series(gpu.SM_CLOCK, uuid),), partial(_clock, lib, handle, lib.AmdSmiClkType.GFX)),
        ]


def _activity(lib: Any, handle: Any) -> tuple[float, float]:
    found = lib.amdsmi_get_gpu_activity(handle)
    return number(found["gfx_activity"], 0.01), number(found["umc_activity"], 0.01)


def _power(lib: Any, handle: Any) -> tuple[float]:
    found = lib.amdsmi_get_power_info(handle)
    watts = (number(found.get(key)) for key in POWER_KEYS)
    return (next((value for value in watts if value > 0), NAN),)


def _clock(lib: Any, handle: Any, kind: Any, key: str = "clk") -> tuple[float]:
    return (number(lib.amdsmi_get_clock_info(handle, kind)[key], 1e6),)


MIB = float(1 << 20)


@register
class AmdState(GpuSampler):
    """Memory in use, temperatures and memory clock of each AMD GPU."""

    name = "amd_state"
    period = 5.0
    tells_why = True
    source = "AMD SMI"
    maker = AMD
    metrics = (gpu.MEMORY_USED, gpu.MEMORY_TOTAL, gpu.TEMPERATURE, gpu.MEMORY_TEMPERATURE, gpu.MEMORY_CLOCK)

    def calls(self, lib: Any, device: Device) -> list[Call]:
        handle, uuid = device.handle, device.uuid
        memory = (series(gpu.MEMORY_USED, uuid), series(gpu.MEMORY_TOTAL, uuid))
        core = partial(_temperature, lib, handle, _core(lib, handle))
        vram = partial(_temperature, lib, handle, lib.AmdSmiTemperatureType.VRAM)
        return [
            Call("memory", memory, partial(_memory, lib, handle)),
            Call("temperature", (series(gpu.TEMPERATURE, uuid),), core),
            Call("memory temperature", (series(gpu.MEMORY_TEMPERATURE, uuid),), vram),
            Call(
                "memory clock", (series(gpu.MEMORY_CLOCK, uuid),), partial(_clock, lib, handle, lib.AmdSmiClkType.MEM)
            ),
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


@register
class AmdProcesses(Owners):
    """The job's ranks on each AMD GPU and the memory that they use there."""

    name = "amd_processes"
    source = "AMD SMI"
    maker = AMD

    def processes(self, lib: Any, device: Device) -> Iterable[tuple[int, float]]:
        running = lib.amdsmi_get_gpu_process_list(device.handle)
        return ((one["pid"], number(one["memory_usage"]["vram_mem"])) for one in running)


#: PCIe generation by the transfers a second of a lane, in MT/s.
GENERATIONS = {2500: 1.0, 5000: 2.0, 8000: 3.0, 16000: 4.0, 32000: 5.0, 64000: 6.0}


@register
class AmdHealth(GpuSampler):
    """Identity, highest clocks, power limit, memory errors, PCIe link and replays, energy of each AMD GPU."""

    name = "amd_health"
    period = 30.0
    source = "AMD SMI"
    maker = AMD
    metrics = (
        gpu.INFO, gpu.SM_CLOCK_MAX, gpu.MEMORY_CLOCK_MAX, gpu.POWER_LIMIT, gpu.ECC, gpu.PCIE_WIDTH,
        gpu.PCIE_GENERATION, gpu.PCIE_REPLAYS, gpu.ENERGY,
    )  # fmt: skip

    def calls(self, lib: Any, device: Device) -> list[Call]:
        handle, uuid = device.handle, device.uuid
        identity = (uuid, str(device.number), "amd", device.model, device.pci_bus_id, device.driver)
        ecc = (series(gpu.ECC, uuid, "yes"), series(gpu.ECC, uuid, "no"))
        pcie = (series(gpu.PCIE_WIDTH, uuid), series(gpu.PCIE_GENERATION, uuid), series(gpu.PCIE_REPLAYS, uuid))
        kinds = lib.AmdSmiClkType
        # What never changes is asked for once.
        most, memory_most = (cache(partial(_clock, lib, handle, kind, "max_clk")) for kind in (kinds.GFX, kinds.MEM))
        return [
            Call("identity", (series(gpu.INFO, *identity),), lambda: (1.0,)),
            Call("highest clock", (series(gpu.SM_CLOCK_MAX, uuid),), most),
            Call("highest memory clock", (series(gpu.MEMORY_CLOCK_MAX, uuid),), memory_most),
            Call("power limit", (series(gpu.POWER_LIMIT, uuid),), partial(_limit, lib, handle)),
            Call("ECC errors", ecc, partial(_ecc, lib, handle)),
            Call("PCIe link", pcie, partial(_pcie, lib, handle)),
            Call("energy", (series(gpu.ENERGY, uuid),), partial(_energy, lib, handle)),
        ]

    def sample(self) -> list[float]:
        AMD.look_again(self.host)
        return super().sample()


def _limit(lib: Any, handle: Any) -> tuple[float]:
    return (number(lib.amdsmi_get_power_cap_info(handle)["power_cap"], 1e-6),)  # uW


def _ecc(lib: Any, handle: Any) -> tuple[float, float]:
    found = lib.amdsmi_get_gpu_total_ecc_count(handle)
    return number(found["correctable_count"]), number(found["uncorrectable_count"])


def _pcie(lib: Any, handle: Any) -> tuple[float, float, float]:
    found = lib.amdsmi_get_pcie_info(handle)["pcie_metric"]
    generation = GENERATIONS.get(found["pcie_speed"], NAN)
    return number(found["pcie_width"]), generation, number(found["pcie_replay_count"])


def _energy(lib: Any, handle: Any) -> tuple[float]:
    found = lib.amdsmi_get_energy_count(handle)
    # One unit of the accumulator is so many uJ.
    return (number(found["energy_accumulator"]) * number(found["counter_resolution"]) * 1e-6,)


HELD_BACK = ratio("clocks_event", "Share of time in which this reason held the clocks back.", "reason")
XGMI_READ = counter("hindmost_gpu_xgmi_read_bytes_total", "Bytes read from other GPUs over all XGMI links.", "gpu_uuid")
XGMI_WRITTEN = counter(
    "hindmost_gpu_xgmi_written_bytes_total", "Bytes written to other GPUs over all XGMI links.", "gpu_uuid"
)
#: Key of the table to reason. Each counts how many of the firmware's rounds saw it; ``ROUNDS`` counts the rounds.
REASONS = {
    "ppt_residency_acc": "power_cap",
    "socket_thm_residency_acc": "socket_thermal",
    "vr_thm_residency_acc": "voltage_regulator_thermal",
    "hbm_thm_residency_acc": "memory_thermal",
    "prochot_residency_acc": "processor_hot",
}
ROUNDS = "accumulation_counter"
KIB = 1024.0


@register
class AmdTable(GpuSampler):
    """Share of time since the last reading in which each reason held the clocks back, and XGMI traffic; MI300 on."""

    name = "amd_table"
    period = 10.0
    source = "AMD SMI, gpu_metrics"
    maker = AMD
    metrics = (HELD_BACK, XGMI_READ, XGMI_WRITTEN)

    def calls(self, lib: Any, device: Device) -> list[Call]:
        reasons = (series(HELD_BACK, device.uuid, reason) for reason in REASONS.values())
        fills = (*reasons, series(XGMI_READ, device.uuid), series(XGMI_WRITTEN, device.uuid))
        return [Call("table of metrics", fills, Table(lib, device.handle).read)]


class Table:
    """The table of one GPU, with what it held the last time."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._lib = lib
        self._handle = handle
        self._before: dict[str, float] = {}

    def read(self) -> Sequence[float]:
        """In the order of ``AmdTable.metrics``; shares are missing the first time."""
        table = self._lib.amdsmi_get_gpu_metrics_info(self._handle)
        now = {key: number(table[key]) for key in (*REASONS, ROUNDS)}
        before, self._before = self._before, now
        rounds = now[ROUNDS] - before.get(ROUNDS, NAN)
        shares = [(now[key] - before.get(key, NAN)) / rounds if rounds > 0 else NAN for key in REASONS]
        # Counters that were set to 0 in between make a share below 0: it is not known then.
        known = [min(share, 1.0) if share >= 0 else NAN for share in shares]
        return [*known, _sum(table["xgmi_read_data_acc"]), _sum(table["xgmi_write_data_acc"])]


def _sum(links: object) -> float:
    """Bytes of all links that have a counter (in KiB), missing where none has."""
    counted = [value for link in (links if isinstance(links, list) else ()) if (value := number(link)) >= 0]
    return sum(counted) * KIB if counted else NAN
