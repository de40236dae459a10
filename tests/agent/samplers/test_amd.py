"""AMD's GPUs through AMD's own Python package: the same names as NVIDIA's where the meaning is the same."""

import ctypes
import importlib
import importlib.util
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Absent, Host
from hindmost_agent.samplers.amd import Amd, AmdHealth, AmdProcesses, AmdState, AmdTable

from tests.agent.readings import read_gpu

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


pytestmark = pytest.mark.skipif(importlib.util.find_spec("amdsmi") is None, reason="amdsmi is not installed")
ALL = (Amd, AmdState, AmdHealth, AmdTable, AmdProcesses)
FIRST, SECOND = (f"{gpu:02x}ff74a1-0000-1000-80c1-94d62f7ec64b" for gpu in (0, 1))


@pytest.fixture
def driver() -> Driver:
    """A node with two MI300X under load."""
    return Driver(2)


@pytest.fixture
def host(driver: Driver) -> Host:
    """A host whose amdsmi is AMD's own, over that driver."""
    return Host(amdsmi_library=package(driver))


def test_a_card_says_what_it_does_and_draws(host: Host) -> None:
    """Ratios, watts and hertz, from AMD's own dictionaries."""
    found = read_gpu(Amd(host))
    assert found["utilization_ratio", FIRST] == pytest.approx(0.97)
    assert found["memory_utilization_ratio", FIRST] == pytest.approx(0.41)
    assert (found["power_watts", SECOND], found["sm_clock_hertz", SECOND]) == (712, 1.9e9)


def test_memory_and_temperatures_are_in_base_units(host: Host) -> None:
    """MiB become bytes; where there is no sensor at the edge, the hottest spot stands for the chip."""
    found = read_gpu(AmdState(host))
    assert found["memory_total_bytes", FIRST] == 192 * 2**30 - 16 * 2**20
    assert found["memory_used_bytes", FIRST] == 60_000 * 2**20
    assert (found["temperature_celsius", FIRST], found["memory_temperature_celsius", FIRST]) == (71, 66)
    assert found["memory_clock_hertz", FIRST] == 1.3e9


def test_identity_limits_errors_link_and_energy(host: Host) -> None:
    """One metric says what the card is; uW, MT/s and the accumulator's units become base units."""
    found = read_gpu(AmdHealth(host))
    assert found["info", FIRST, "0", "amd", "AMD Instinct MI300X", "0000:1b:00.0", "6.12.12"] == 1
    assert found["power_limit_watts", FIRST] == 750
    assert found["sm_clock_max_hertz", FIRST] == 2.1e9
    assert (found["ecc_errors_total", FIRST, "yes"], found["ecc_errors_total", FIRST, "no"]) == (3, 1)
    assert (found["pcie_link_width", FIRST], found["pcie_link_generation", FIRST]) == (16, 5)
    assert found["pcie_replays_total", FIRST] == 2
    assert found["energy_joules_total", FIRST] == pytest.approx(2e9 * 15.25e-6)


def test_what_held_the_clocks_back_is_a_share_of_the_time_between_two_readings(host: Host, driver: Driver) -> None:
    """Of 400 rounds of the firmware 100 saw the power limit: a quarter; the first reading has nothing before it."""
    sampler, table = AmdTable(host), driver.answers["amdsmi_get_gpu_metrics_info"]
    assert all(math.isnan(value) for value in read_gpu(sampler).values())
    table.update(accumulation_counter=1_400, ppt_residency_acc=200, xgmi_read_data_acc=[3, 1])
    found = read_gpu(sampler)
    assert found["clocks_event_ratio", FIRST, "power_cap"] == 0.25
    assert found["clocks_event_ratio", FIRST, "socket_thermal"] == 0
    assert found["xgmi_read_bytes_total", FIRST] == 4096
    assert math.isnan(found["xgmi_written_bytes_total", FIRST])


def test_a_gpu_knows_its_rank(host: Host, driver: Driver) -> None:
    """The job's process on a GPU names the rank that owns it; other processes are not named."""
    host.ranks.put(RankProcess("j", 3, 8, 1, pid=4242, start_ticks=1))
    driver.processes[1] = [(4242, 5 << 30), (99, 1 << 30)]
    found = read_gpu(AmdProcesses(host))
    assert found == {("rank_info", SECOND, "j", "3"): 1, ("process_memory_used_bytes", SECOND, "j", "3"): 5 << 30}
    assert host.gpu_of == {(4242, 1): SECOND}


def test_what_the_driver_does_not_know_is_missing(host: Host, driver: Driver) -> None:
    """AMD writes N/A for it: never 0."""
    driver.answers["amdsmi_get_gpu_activity"] = {"gfx_activity": 0xFFFF, "umc_activity": 41, "mm_activity": 0}
    driver.answers["amdsmi_get_power_info"] = {"current_socket_power": 0xFFFF, "average_socket_power": 0xFFFF}
    found = read_gpu(Amd(host))
    assert math.isnan(found["utilization_ratio", FIRST])
    assert math.isnan(found["power_watts", FIRST])
    assert found["memory_utilization_ratio", FIRST] == pytest.approx(0.41)


def test_a_lost_card_stops_no_other(host: Host, driver: Driver) -> None:
    """Its values are missing and up is 0; a driver that is only busy loses nothing but that value. What is not
    supported is asked once."""
    sampler = Amd(host)
    driver.fails["amdsmi_get_gpu_activity"] = {0: NOT_FOUND, 1: BUSY}
    driver.fails["amdsmi_get_clock_info"] = {1: NOT_SUPPORTED}
    found = read_gpu(sampler)
    assert (found["up", FIRST], found["up", SECOND]) == (0, 1)
    assert math.isnan(found["power_watts", FIRST])
    assert found["power_watts", SECOND] == 712
    driver.fails.clear()
    found = read_gpu(sampler)
    assert (found["up", FIRST], found["sm_clock_hertz", FIRST]) == (1, 1.9e9)
    assert math.isnan(found["sm_clock_hertz", SECOND])


def test_no_call_of_a_tick_is_known_to_block(host: Host, driver: Driver) -> None:
    """AMD's violation status waits a tenth of a second inside: it is never asked."""
    made = [kind(host) for kind in ALL]
    for sampler in made:
        sampler.sample()
    assert "amdsmi_get_violation_status" not in driver.calls
    driver.calls.clear()
    made[0].sample()
    assert len(driver.calls) == 3 * driver.count


def test_the_runner_reads_every_sampler_of_amd(host: Host) -> None:
    """No error over a minute of ticks, and each of them has a reading."""
    runner = Runner({kind.name: kind for kind in ALL}, host, NS)
    for second in range(60):
        runner.run(second * NS)
    assert +host.counts.errors == {}
    assert set(host.counts.success) == {kind.name for kind in ALL}


def test_without_the_driver_nothing_is_imported(tmp_path: Path) -> None:
    """A node without AMD's kernel driver spends nothing on its package."""
    before = set(sys.modules)
    for kind in ALL:
        with pytest.raises(Absent):
            kind(Host(dev=tmp_path))
    assert "amdsmi" not in set(sys.modules) - before


def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What the package prints then does not reach stdout, where the agent says that it is ready."""
    (tmp_path / "kfd").touch()
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))

    def missing(name: str) -> Any:
        sys.stdout.write("Unable to find libamd_smi.so")
        raise KeyError("libamd_smi.so")

    monkeypatch.setattr("hindmost_agent.samplers.amd.importlib.import_module", missing)
    with pytest.raises(Absent, match=r"libamd_smi\.so"):
        Amd(Host(dev=tmp_path))
    assert capsys.readouterr().out == ""


def test_a_gpu_that_answers_later_is_taken_on(driver: Driver) -> None:
    """Silent at the agent's start, it is asked again twice a minute, and joins the others."""
    driver.fails["amdsmi_get_gpu_device_uuid"] = {0: BUSY}
    host = Host(amdsmi_library=package(driver))
    health, every_tick = AmdHealth(host), Amd(host)
    assert {key[1] for key in (*read_gpu(health), *read_gpu(every_tick))} == {SECOND}
    driver.fails.clear()
    assert {key[1] for key in read_gpu(health)} == {key[1] for key in read_gpu(every_tick)} == {FIRST, SECOND}


def test_a_gpu_that_hangs_is_not_asked_and_said_to_be_down(host: Host) -> None:
    """The others are read; once it is asked again it is read like them."""
    sampler = Amd(host)
    host.hung, host.gpu_generation = frozenset({FIRST}), 1
    found = read_gpu(sampler)
    assert {key: value for key, value in found.items() if key[1] == FIRST} == {("up", FIRST): 0}
    assert (found["up", SECOND], found["power_watts", SECOND]) == (1, 712)
    assert {key[1] for key in read_gpu(AmdState(host))} == {SECOND}
    host.hung, host.gpu_generation = frozenset(), 2
    assert read_gpu(sampler)["up", FIRST] == 1
