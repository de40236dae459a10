"""AMD's real Python package over a driver that is not there: its own code makes the dictionaries that samplers read.

``libamd_smi.so`` is stood in for by functions that fill the structures it is handed, as the library would.
"""

import ctypes
import importlib
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

NOT_SUPPORTED, NOT_FOUND, BUSY = 2, 31, 30
HOTSPOT, VRAM, GFX, MEM = 1, 2, 0, 4

#: What an MI300X under load answers: function, and the fields of the structure that it fills.
ANSWERS: dict[str, dict[str, Any]] = {
    "amdsmi_get_gpu_asic_info": {"market_name": b"AMD Instinct MI300X", "vendor_id": 0x1002, "asic_serial": b"0xA1"},
    "amdsmi_get_gpu_driver_info": {"driver_name": b"amdgpu", "driver_version": b"6.12.12"},
    "amdsmi_get_gpu_device_bdf": {
        f"struct_amdsmi_bdf_t.{part}_number": value
        for part, value in {"domain": 0, "bus": 0x1B, "device": 0, "function": 0}.items()
    },
    "amdsmi_get_gpu_activity": {"gfx_activity": 97, "umc_activity": 41, "mm_activity": 0xFFFF},
    "amdsmi_get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 60_000},
    "amdsmi_get_power_info": {"current_socket_power": 712, "average_socket_power": 0xFFFF, "socket_power": 712},
    "amdsmi_get_power_cap_info": {"power_cap": 750_000_000},
    "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 1},
    "amdsmi_get_pcie_info": {
        "pcie_metric.pcie_width": 16, "pcie_metric.pcie_speed": 32_000, "pcie_metric.pcie_replay_count": 2,
    },
    "amdsmi_get_gpu_metrics_info": {
        "accumulation_counter": 1_000, "ppt_residency_acc": 100, "socket_thm_residency_acc": 0,
        "vr_thm_residency_acc": 0, "hbm_thm_residency_acc": 0, "prochot_residency_acc": 0,
    },
}  # fmt: skip


class Symbol:
    """A function of the shared library; the package sets its ``argtypes`` and ``restype``."""

    def __init__(self, call: Callable[..., int]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> int:
        return self.call(*args)


class Driver:
    """The shared library, over GPUs whose answers tests may change. ``fails[function]``: GPU to status."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.answers = {name: dict(fields) for name, fields in ANSWERS.items()}
        self.clocks = {GFX: (1_900, 2_100), MEM: (1_300, 1_300)}
        self.temperatures = {HOTSPOT: 71, VRAM: 66}
        self.processes: dict[int, list[tuple[int, int]]] = {}
        self.fails: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Symbol:
        symbol = Symbol(lambda *args: self._call(name, *args))
        self.__dict__[name] = symbol
        return symbol

    def _call(self, name: str, *args: Any) -> int:
        self.calls.append(name)
        if name == "amdsmi_init":
            return 0
        if name in ("amdsmi_get_socket_handles", "amdsmi_get_processor_handles"):
            return self._handles(args[-2]._obj, args[-1], self.count if "processor" in name else 1)
        gpu = (args[0].value or 0) - 1
        if status := self.fails[name].get(gpu):
            return status
        special = getattr(type(self), f"_{name}", None)
        if special is not None:
            return int(special(self, gpu, *args[1:]))
        if name not in self.answers:
            return NOT_SUPPORTED
        return self._fill(args[-1]._obj, self.answers[name])

    def _handles(self, count: Any, found: Any, number: int) -> int:
        count.value = number
        if found:
            for index in range(number):
                found[index] = index + 1
        return 0

    @staticmethod
    def _fill(structure: Any, fields: dict[str, Any]) -> int:
        """What is not named is all ones, as the driver says that it does not know."""
        if not any(isinstance(value, bytes) for value in fields.values()):
            ctypes.memset(ctypes.byref(structure), 0xFF, ctypes.sizeof(structure))
        for path, value in fields.items():
            *parents, last = path.split(".")
            place = structure
            for parent in parents:
                place = getattr(place, parent)
            if isinstance(value, list):
                for index, item in enumerate(value):
                    getattr(place, last)[index] = item
            else:
                setattr(place, last, value)
        return 0

    def _amdsmi_get_gpu_device_uuid(self, gpu: int, _: Any, text: Any) -> int:
        text.value = f"{gpu:02x}ff74a1-0000-1000-80c1-94d62f7ec64b".encode()
        return 0

    def _amdsmi_get_temp_metric(self, _: int, kind: int, __: int, value: Any) -> int:
        if kind not in self.temperatures:
            return NOT_SUPPORTED
        value._obj.value = self.temperatures[kind]
        return 0

    def _amdsmi_get_clock_info(self, _: int, kind: int, found: Any) -> int:
        now, most = self.clocks[kind]
        return self._fill(found._obj, {"clk": now, "max_clk": most})

    def _amdsmi_get_energy_count(self, _: int, accumulator: Any, resolution: Any, __: Any) -> int:
        accumulator._obj.value, resolution._obj.value = 2_000_000_000, 15.25
        return 0

    def _amdsmi_get_gpu_process_list(self, gpu: int, count: Any, found: Any) -> int:
        there = self.processes.get(gpu, [])
        count._obj.value = len(there)
        for index, (pid, used) in enumerate(there):
            found[index].pid, found[index].memory_usage.vram_mem = pid, used
        return 0


def package(driver: Driver) -> Any:
    """The package ``amdsmi``, freshly imported over this driver; the next import is not affected."""
    with mock.patch.dict(sys.modules), mock.patch.object(ctypes, "CDLL", return_value=driver):
        for name in [name for name in sys.modules if name.partition(".")[0] == "amdsmi"]:
            del sys.modules[name]
        return importlib.import_module("amdsmi")
