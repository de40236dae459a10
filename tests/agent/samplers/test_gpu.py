"""GPU values are read cheaply, each at its own rate; what cannot be read is missing and stops nothing else."""

import ctypes
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hindmost_agent.gpu import Device
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.nvml import XidErrors
from hindmost_agent.sampler import Absent, Asking, Host
from hindmost_agent.samplers.nvidia import (
    Nvidia,
    NvidiaCounters,
    NvidiaGpm,
    NvidiaHealth,
    NvidiaMig,
    NvidiaProcesses,
    NvidiaState,
)
from hindmost_agent.samplers.nvidia_link import AT_ONCE, LINKS, NvidiaLinkErrors, NvidiaLinks

from tests.agent.readings import read_gpu

ALL = (Nvidia, NvidiaState, NvidiaLinks, NvidiaLinkErrors, NvidiaGpm, NvidiaHealth, NvidiaProcesses, NvidiaCounters)


def test_a_lost_card_stops_no_other(gpu_host: Host, nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its values are missing, not 0; up says so; one line; and it is looked for again."""
    sampler = Nvidia(gpu_host)
    nvml.fails["nvmlDeviceGetUtilizationRates"] = {0: 15}
    found = read_gpu(sampler)
    read_gpu(sampler)
    assert (found["up", "GPU-00000000"], found["up", "GPU-00000001"]) == (0, 1)
    assert math.isnan(found["power_watts", "GPU-00000000"])
    assert found["power_watts", "GPU-00000001"] == pytest.approx(689.001)
    assert len(caplog.records) == 1
    nvml.fails.clear()
    assert read_gpu(sampler)["up", "GPU-00000000"] == 1


def test_what_a_card_lacks_is_not_asked_again(gpu_host: Host, nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A missing value, one line in the log, and no further call."""
    sampler = Nvidia(gpu_host)
    nvml.fails["nvmlDeviceGetPowerUsage"] = {0: 3, 1: 3}
    found = read_gpu(sampler)
    read_gpu(sampler)
    assert math.isnan(found["power_watts", "GPU-00000000"])
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 2
    assert len(caplog.records) == 2


def test_no_call_of_the_tick_blocks(gpu_host: Host, nvml: Any) -> None:
    """Calls known to take milliseconds are never made, in any sampler."""
    samplers = [kind(gpu_host) for kind in ALL]
    for sampler in samplers:
        sampler.sample()
    slow = {"nvmlDeviceGetPcieThroughput", "nvmlDeviceGetSamples", "nvmlDeviceGetViolationStatus"}
    assert not slow & set(nvml.calls)
    nvml.calls.clear()
    samplers[0].sample()
    assert len(nvml.calls) == 4 * nvml.count


def test_activity_is_what_happened_between_two_samples(gpu_host: Host) -> None:
    """The first reading has nothing to compare with: missing. Per cent become ratios."""
    sampler = NvidiaGpm(gpu_host)
    assert all(math.isnan(value) for value in read_gpu(sampler).values())
    found = read_gpu(sampler)
    assert found["tensor_activity_ratio", "GPU-00000000"] == pytest.approx(0.936)
    assert found["nvlink_receive_bytes_per_second", "GPU-00000000"] == pytest.approx(93.6 * 2**20)


def test_cards_without_a_performance_monitor_are_no_error(nvml: Any) -> None:
    """Before Hopper there is none: missing."""
    nvml.gpm = False
    with pytest.raises(Absent):
        NvidiaGpm(Host(nvml_library=nvml))


def test_a_field_that_is_slow_here_is_left_out(gpu_host: Host, nvml: Any) -> None:
    """NVML says how long each value took; after the first reading a slow one is not asked for again."""
    nvml.latency_us[83] = 4_000
    sampler = NvidiaCounters(gpu_host)
    first, second = read_gpu(sampler), read_gpu(sampler)
    assert first["energy_joules_total", "GPU-00000000"] == pytest.approx(83.0)
    assert math.isnan(second["energy_joules_total", "GPU-00000000"])
    assert second["clocks_event_seconds_total", "GPU-00000000", "sw_power_cap"] == pytest.approx(74e-6)
    assert read_gpu(NvidiaLinks(gpu_host))["nvlink_receive_bytes_total", "GPU-00000000"] == 139_000 * 1024


def test_links_of_a_gpu_before_hopper_have_totals(gpu_host: Host, nvml: Any) -> None:
    """Two kinds of CRC errors are one; links are not read one by one."""
    found = read_gpu(NvidiaLinkErrors(gpu_host))
    first = "GPU-00000000"
    assert found["nvlink_links_active", first] == LINKS
    assert found["nvlink_replay_errors_total", first] == 52_000
    assert found["nvlink_crc_errors_total", first] == 38_000 + 45_000
    assert found["pcie_errors_total", first, "bad_tlp"] == 176_000
    assert nvml.calls.count("nvmlDeviceGetFieldValues") == 5 * nvml.count


def hopper_links(host: Host, nvml: Any, *, active: int, replays: int) -> NvidiaLinkErrors:
    """Links that have no totals and must be asked one by one, each with one CRC error."""
    nvml.lacks, nvml.fields = {52, 59, 38, 45}, {165: active, 161: replays, 162: 0, 163: 1}
    return NvidiaLinkErrors(host)


def all_asked(sampler: NvidiaLinkErrors) -> dict[tuple[str, ...], float]:
    """What is read once every link has had its turn again."""
    return [read_gpu(sampler) for _ in range(LINKS // AT_ONCE)][-1]


def test_links_of_hopper_are_asked_in_turn(gpu_host: Host, nvml: Any) -> None:
    """All at first, then a few at each reading, because each takes milliseconds: new errors show after its turn."""
    sampler, first = hopper_links(gpu_host, nvml, active=1, replays=2), "GPU-00000000"
    found = read_gpu(sampler)
    assert found["nvlink_replay_errors_total", first] == 2 * LINKS
    assert (found["nvlink_recoveries_total", first], found["nvlink_crc_errors_total", first]) == (0, LINKS)
    nvml.fields[161] = 7
    assert read_gpu(sampler)["nvlink_replay_errors_total", first] == 2 * LINKS + 5 * AT_ONCE
    assert all_asked(sampler)["nvlink_replay_errors_total", first] == 7 * LINKS


def test_a_link_that_comes_up_later_brings_no_old_errors(gpu_host: Host, nvml: Any) -> None:
    """What it had counted before is not taken for errors of now; what it counts from then on is added."""
    sampler, first = hopper_links(gpu_host, nvml, active=0, replays=9), "GPU-00000000"
    assert math.isnan(read_gpu(sampler)["nvlink_replay_errors_total", first])
    nvml.fields[165] = 1
    for _ in range(LINKS // AT_ONCE):
        assert read_gpu(sampler)["nvlink_replay_errors_total", first] == 0
    nvml.fields[161] = 11
    assert all_asked(sampler)["nvlink_replay_errors_total", first] == 2 * LINKS


def test_a_link_that_is_reset_takes_nothing_from_the_total(gpu_host: Host, nvml: Any) -> None:
    """A falling total would be read as an agent's restart, and all of it as new errors."""
    sampler, first = hopper_links(gpu_host, nvml, active=1, replays=9), "GPU-00000000"
    assert read_gpu(sampler)["nvlink_replay_errors_total", first] == 9 * LINKS
    nvml.fields[161] = 2
    assert read_gpu(sampler)["nvlink_replay_errors_total", first] == 9 * LINKS + 2 * AT_ONCE


def test_a_gpu_without_nvlinks_has_no_link_errors(gpu_host: Host, nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Missing, not 0, and nothing to warn of; PCIe's are there. One whose links are all down has none that is up."""
    nvml.lacks = {52, 59, 38, 45, 161, 162, 163, 165}
    found = read_gpu(NvidiaLinkErrors(gpu_host))
    assert not caplog.records
    assert math.isnan(found["nvlink_links_active", "GPU-00000000"])
    assert math.isnan(found["nvlink_replay_errors_total", "GPU-00000000"])
    assert found["pcie_errors_total", "GPU-00000000", "receiver"] == 175_000
    nvml.lacks, nvml.fields = {52, 59, 38, 45}, {165: 0}
    assert read_gpu(NvidiaLinkErrors(gpu_host))["nvlink_links_active", "GPU-00000000"] == 0


def test_a_gpu_knows_its_rank(gpu_host: Host, nvml: Any) -> None:
    """The job's process on a GPU names the rank that owns it; other processes are not named."""
    gpu_host.ranks.put(RankProcess("j", 3, 8, 1, pid=4242, start_ticks=1))
    nvml.processes[1] = [(4242, 5 << 30), (99, 1 << 30)]
    found = read_gpu(NvidiaProcesses(gpu_host))
    assert found["rank_info", "GPU-00000001", "j", "3"] == 1
    assert found["process_memory_used_bytes", "GPU-00000001", "j", "3"] == 5 << 30
    assert gpu_host.gpu_of == {(4242, 1): "GPU-00000001"}


def test_what_a_rank_s_children_use_is_the_rank_s(nvml: Any, tmp_path: Path) -> None:
    """A DataLoader's worker and what that started, with tensors on the GPU, add to their rank's memory."""
    host = Host(nvml_library=nvml, proc=tmp_path)
    host.ranks.put(RankProcess("j", 3, 8, 1, pid=4242, start_ticks=1))
    for pid, above in ((4300, 4242), (4301, 4300), (99, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (a (b) c) S {above} 1 1")
    nvml.processes = {0: [(4300, 1 << 20)], 1: [(4242, 5 << 30), (4301, 1 << 30), (99, 7), (98, 7)]}
    found = read_gpu(NvidiaProcesses(host))
    assert found["process_memory_used_bytes", "GPU-00000000", "j", "3"] == 1 << 20
    assert found["process_memory_used_bytes", "GPU-00000001", "j", "3"] == 6 << 30
    assert len(found) == 4
    assert host.gpu_of == {(4242, 1): "GPU-00000001"}, "the rank's own process says which is its GPU"


def test_an_ended_rank_leaves_no_gpu_to_the_next_owner_of_its_pid(gpu_host: Host, nvml: Any) -> None:
    """The pid's next owner, another rank, has none until it computes on one; what is kept does not grow."""
    sampler = NvidiaProcesses(gpu_host)
    gpu_host.ranks.put(RankProcess("j", 3, 8, 1, pid=4242, start_ticks=1))
    nvml.processes[1] = [(4242, 5 << 30)]
    read_gpu(sampler)
    gpu_host.ranks.remove(4242)
    gpu_host.ranks.put(RankProcess("k", 0, 1, 0, pid=4242, start_ticks=2))
    assert (4242, 2) not in gpu_host.gpu_of
    nvml.processes.clear()
    read_gpu(sampler)
    assert gpu_host.gpu_of == {}


def test_instances_of_a_divided_gpu_are_named(gpu_host: Host, nvml: Any) -> None:
    """A GPU in MIG mode shows each of its instances with the memory used there; while none is, there is nothing."""
    with pytest.raises(Absent):
        NvidiaMig(gpu_host)
    nvml.instances[1] = ["MIG-a", "MIG-b"]
    found = read_gpu(NvidiaMig(gpu_host))
    assert found["mig_info", "GPU-00000001", "MIG-b"] == 1
    assert found["mig_memory_used_bytes", "GPU-00000001", "MIG-a"] == 70 << 30
    assert len(found) == 4


def test_the_first_xid_is_an_increase(gpu_host: Host, nvml: Any) -> None:
    """A GPU that is listened to has 0 from the start, whatever number comes; one that cannot tell has no value."""
    nvml.fails["nvmlDeviceRegisterEvents"] = {1: 3}  # not supported
    sampler = NvidiaHealth(gpu_host)
    assert {key[1]: value for key, value in read_gpu(sampler).items() if key[0] == "all_xid_errors_total"} == {
        "GPU-00000000": 0
    }
    nvml.xids += [(0, 79), (0, 63)]
    assert read_gpu(sampler)["all_xid_errors_total", "GPU-00000000"] == 2


@pytest.mark.parametrize("silent", [{}, {0: 15, 2: 15}], ids=["all answer", "off the bus"])
def test_xid_errors_are_counted_by_number(gpu_host: Host, nvml: Any, silent: dict[int, int]) -> None:
    """Each is read once and counted on. With XID 79 a GPU does not say its UUID any more, but its handle is known;
    later ones of others are heard too."""
    sampler = NvidiaHealth(gpu_host)
    nvml.fails["nvmlDeviceGetUUID"] = silent
    nvml.xids += [(0, 79), (0, 79), (1, 63)]
    found = read_gpu(sampler)
    assert (found["xid_errors_total", "GPU-00000000", "79"], found["xid_errors_total", "GPU-00000001", "63"]) == (2, 1)
    assert read_gpu(sampler)["xid_errors_total", "GPU-00000000", "79"] == 2


def test_xids_are_heard_again_after_an_error(gpu_host: Host, nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the event set costs one line, not every XID that comes after it."""
    sampler = NvidiaHealth(gpu_host)
    for _ in range(2):
        nvml.events_break.append(15)
        read_gpu(sampler)
    nvml.xids.append((1, 63))
    assert read_gpu(sampler)["xid_errors_total", "GPU-00000001", "63"] == 1
    assert len([record for record in caplog.records if "event stream failed" in record.message]) == 1


def test_a_gpu_refusing_events_silences_no_other(gpu_host: Host, nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The others' XIDs are heard; it is asked again, for it may come back; one line says so."""
    nvml.fails["nvmlDeviceRegisterEvents"] = {0: 15}
    sampler = NvidiaHealth(gpu_host)
    nvml.xids += [(0, 31), (1, 63)]
    assert read_gpu(sampler)["xid_errors_total", "GPU-00000001", "63"] == 1
    assert len([record for record in caplog.records if "no XID errors" in record.message]) == 1
    nvml.fails.clear()
    assert read_gpu(sampler)["xid_errors_total", "GPU-00000000", "31"] == 1


def test_two_pointers_to_one_gpu_are_one_gpu(nvml: Any) -> None:
    """The event's handle is another object than the one asked for at the start, as ctypes makes them."""
    kind = ctypes.POINTER(ctypes.c_int)
    here, there = ctypes.cast(0x1000, kind), ctypes.cast(0x1000, kind)
    nvml._nvmlDeviceRegisterEvents = lambda *_: None
    events = [SimpleNamespace(device=there, eventData=79)]
    none = Mock(side_effect=nvml.NVMLError(10))
    nvml._nvmlEventSetWait_v2 = lambda *_: events.pop() if events else none()
    errors = XidErrors(nvml, Asking())
    errors.hear([Device(here, 0, "GPU-a", "", "", "")])
    assert errors.counts == {("GPU-a", "79"): 1}


@pytest.mark.parametrize(("status", "up", "then"), [(999, 0, 1), (3, math.nan, math.nan)])
def test_a_gpu_of_which_nothing_answers_is_down(gpu_host: Host, nvml: Any, status: int, up: float, then: float) -> None:
    """Every call failed, none with "lost"; one that answers anything is up. If all is not supported it is unknown."""
    sampler = Nvidia(gpu_host)
    calls = ("UtilizationRates", "PowerUsage", "ClockInfo", "CurrentClocksEventReasons")
    nvml.fails = {f"nvmlDeviceGet{what}": {0: status} for what in calls}
    found = read_gpu(sampler)
    assert (found["up", "GPU-00000000"], found["up", "GPU-00000001"]) == pytest.approx((up, 1), nan_ok=True)
    del nvml.fails["nvmlDeviceGetClockInfo"]
    assert read_gpu(sampler)["up", "GPU-00000000"] == pytest.approx(then, nan_ok=True)


def test_a_lost_gpu_takes_no_other_instances_along(gpu_host: Host, nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its own are missing, and one line says so."""
    nvml.instances.update({0: ["MIG-a"], 1: ["MIG-b"]})
    sampler = NvidiaMig(gpu_host)
    nvml.fails["nvmlDeviceGetMaxMigDeviceCount"] = {0: 15}
    read_gpu(sampler)
    assert set(read_gpu(sampler)) == {
        ("mig_info", "GPU-00000001", "MIG-b"), ("mig_memory_used_bytes", "GPU-00000001", "MIG-b"),
    }  # fmt: skip
    assert len(caplog.records) == 1


def test_a_node_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    """Missing, and nothing is imported for it."""
    for kind in (*ALL, NvidiaMig):
        with pytest.raises(Absent):
            kind(Host(dev=tmp_path))


def test_a_gpu_that_answers_later_is_taken_on(nvml: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Silent at the agent's start, it is asked again; all samplers take it on, none forgets the others."""
    caplog.set_level("INFO")
    nvml.fails["nvmlDeviceGetUUID"] = {0: 15}
    nvml.instances[0] = ["MIG-a"]
    nvml.instances[1] = ["MIG-b"]
    host = Host(nvml_library=nvml)
    samplers = {kind: kind(host) for kind in (NvidiaHealth, Nvidia, NvidiaGpm, NvidiaProcesses, NvidiaMig)}
    for _ in range(2):
        for sampler in samplers.values():
            assert "GPU-00000000" not in {key[1] for key in read_gpu(sampler)}
    nvml.fails.clear()
    host.ranks.put(RankProcess("j", 3, 8, 1, pid=4242, start_ticks=1))
    nvml.processes[0] = [(4242, 5 << 30)]
    nvml.xids.append((0, 31))
    found = {kind: read_gpu(sampler) for kind, sampler in samplers.items()}
    assert all("GPU-00000000" in {key[1] for key in values} for values in found.values())
    assert found[NvidiaHealth]["xid_errors_total", "GPU-00000000", "31"] == 1
    assert found[NvidiaGpm]["sm_activity_ratio", "GPU-00000001"] == pytest.approx(0.936), "goes on where it was"
    assert [record.message for record in caplog.records if "answer" in record.message] == [
        "GPU 0 does not answer (NVML error 15); the agent tries again", "GPU 0 answers now and is sampled",
    ]  # fmt: skip
