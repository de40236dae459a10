"""What a recorded job on four H200s shows: things that no composed node has."""

import math
from pathlib import Path

import pytest
from hindmost_agent import samplers
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host, Reading

from tests.agent.conftest import recorded_node

UUIDS = [f"GPU-00000000-0000-0000-0000-{number:012x}" for number in range(1, 5)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return recorded_node("h200x4", tmp_path)


@pytest.fixture
def readings(host: Host) -> dict[str, Reading]:
    """The second reading of each sampler: the performance monitor says nothing the first time."""
    runner = Runner({name: kind for name, kind in samplers.load().items() if name != "agent"}, host, NS)
    for second in (0, 1000):
        runner.run(second * NS)
    assert +host.own.errors == {}
    return runner.latest


def values(readings: dict[str, Reading]) -> dict[tuple[str, ...], float]:
    return {
        (one.metric.name.removeprefix("hindmost_"), *one.values): value
        for reading in readings.values()
        for one, value in zip(reading.series, reading.values, strict=True)
    }


def test_each_gpu_has_its_rank(readings: dict[str, Reading]) -> None:
    """The driver names processes by the numbers that /proc has: no other namespace was between them."""
    found = values(readings)
    assert all(found["gpu_rank_info", uuid, "recorded", str(rank)] == 1 for rank, uuid in enumerate(UUIDS))


def test_what_the_performance_monitor_says_is_plausible_at_full_load(readings: dict[str, Reading]) -> None:
    """Shares are shares, and what one GPU sends over NVLink in a ring, its neighbour receives."""
    found = values(readings)
    for uuid in UUIDS:
        assert 0.8 < found["gpu_sm_activity_ratio", uuid] < 0.95 < found["gpu_utilization_ratio", uuid] + 0.05 < 1.05
        sent, received = (found[f"gpu_nvlink_{way}_bytes_per_second", uuid] for way in ("transmit", "receive"))
        assert 1.4e9 < sent < 1.7e9
        assert sent == pytest.approx(received, rel=0.01)


def test_a_counter_that_ran_over_within_a_second_is_none_of_ours(host: Host, readings: dict[str, Reading]) -> None:
    """NVML counts PCIe's bytes in 32 bits: the third GPU's went from 3.8 to 0.3 billion between two readings."""
    answers = host.nvml_library.recording["answers"]
    before, after = (one["value"] for one in answers['nvmlDeviceGetFieldValues["#3",[198,0]]'])
    assert after < before < 1 << 32
    names = {name for name, *_ in values(readings)}
    assert "gpu_pcie_receive_bytes_per_second" in names
    assert not {name for name in names if name.startswith("gpu_pcie") and name.endswith("bytes_total")}


def test_what_takes_too_long_or_was_not_asked_is_missing(readings: dict[str, Reading]) -> None:
    """Energy takes 5 ms, and the second GPU was never asked for the errors of its links: neither is 0."""
    found = values(readings)
    assert math.isnan(found["gpu_energy_joules_total", UUIDS[0]])
    assert math.isnan(found["gpu_nvlink_replay_errors_total", UUIDS[1]])


def test_the_links_of_one_gpu(readings: dict[str, Reading]) -> None:
    """Eighteen NVLinks without an error; on PCIe there were some since the machine was started."""
    found = values(readings)
    assert found["gpu_nvlink_links_active", UUIDS[0]] == 18
    assert found["gpu_nvlink_replay_errors_total", UUIDS[0]] == found["gpu_nvlink_crc_errors_total", UUIDS[0]] == 0
    assert found["gpu_pcie_errors_total", UUIDS[0], "bad_tlp"] == 194
    assert found["gpu_pcie_errors_total", UUIDS[0], "naks_sent"] == 150


def test_ranks_that_use_the_gpu_are_seen_inside(readings: dict[str, Reading]) -> None:
    """CUDA's and NCCL's threads by their names, and where the rank may run."""
    found = values(readings)
    assert {key[3] for key in found if key[0] == "process_thread_group_cpu_seconds_total"} >= {
        "pt_nccl_watchdg",
        "python",
    }
    assert found["process_allowed_cpus", "recorded", "0"] == 64
    assert found["node_cpus",] == 64
