"""Nodes of clusters: what every kind of source says there, in the formats of kernels from 3.10 to 6.8."""

import math
from pathlib import Path

import pytest
from hindmost_agent import samplers
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host

from tests.agent import typical_nodes
from tests.agent.conftest import FakePsutil, local_statvfs

EVERYWHERE = {
    "cgroup", "cpu", "cpu_core", "disk", "filesystem", "infiniband", "memory", "network", "network_link", "node_info",
    "process", "process_children", "process_status", "process_threads", "runqueue", "tcp", "vmstat",
}  # fmt: skip
#: What else each node has.
HAS = {
    "rhel8": {"cpu_frequency", "edac", "hwmon", "lustre", "numa"},
    "roce": {"nfs", "numa", "pressure"},
    "rhel7": {"hwmon", "nfs"},
}
Values = dict[tuple[str, ...], float]


@pytest.fixture
def values(request: pytest.FixtureRequest, tmp_path: Path) -> Values:
    """All values of a node at its second reading, by name without ``hindmost_`` and labels."""
    root = typical_nodes.build(request.param, tmp_path)
    host = Host(
        proc=root / "proc", sys=root / "sys", cgroup=root / "cgroup", dev=root / "dev", statvfs=local_statvfs,
        psutil=FakePsutil(),
    )  # fmt: skip
    host.ranks.put(RankProcess("j", 0, 8, 0, typical_nodes.PID, typical_nodes.START))
    runner = Runner({name: kind for name, kind in samplers.load().items() if name != "agent"}, host, NS)
    for second in (0, 1000):
        runner.run(second * NS)
    assert +host.counts.errors == {}
    assert set(runner.latest) == EVERYWHERE | HAS[request.param]
    return {
        (one.metric.name.removeprefix("hindmost_"), *one.values): value
        for reading in runner.latest.values()
        for one, value in zip(reading.series, reading.values, strict=True)
    }


def on(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("values", [name], indirect=True)


def of(values: Values, metric: str) -> Values:
    return {key[1:]: value for key, value in values.items() if key[0] == metric}


@pytest.mark.parametrize("values", list(HAS), indirect=True)
def test_no_number_is_negative_and_few_are_missing(values: Values) -> None:
    """All sources of each node are read whole: at most one in fifty numbers is one that this kernel does not keep."""
    assert min(value for value in values.values() if not math.isnan(value)) >= 0
    assert sum(map(math.isnan, values.values())) <= len(values) / 50


@on("rhel8")
def test_an_infiniband_port_has_no_roce_congestion(values: Values) -> None:
    """Words of four bytes, retransmissions; no counter that such a port does not have, nor one that is full."""
    port = ("mlx5_0", "1")
    assert values[("node_infiniband_transmit_bytes_total", *port)] == 4 * 2880761508848
    assert values[("node_infiniband_adaptive_retransmissions_total", *port)] == 99
    assert values[("node_infiniband_ack_timeouts_total", *port)] == 131
    assert values[("node_infiniband_link_bytes_per_second", *port)] == 25e9
    assert math.isnan(values[("node_infiniband_transmit_wait_ticks_total", *port)])
    assert not of(values, "node_infiniband_cnp_sent_total")


@pytest.mark.parametrize(("values", "kills"), [("rhel8", 2.0), ("rhel7", None)], indirect=["values"])
def test_slurm_s_groups_of_version_1(values: Values, kills: float | None) -> None:
    """The job's group has the limit, the task's none; where the kernel counts no kills, they are missing and not 0."""
    job, task = "/slurm/uid_1000/job_77", typical_nodes.SLURM_V1
    assert of(values, "node_cgroup_memory_limit_bytes") == {(job,): 128 << 30}
    assert set(of(values, "node_cgroup_memory_used_bytes")) == {(job,), (task,)}
    assert of(values, "node_cgroup_memory_events_total").get((job, "oom_kill")) == kills
    assert of(values, "node_cgroup_memory_events_total")[job, "max"] == 41
    assert not of(values, "node_cgroup_cpu_limit_cores")


@on("rhel7")
def test_an_old_kernel_is_understood(values: Values) -> None:
    """Wide counters in a folder of their own, one kind of stall, sensors below the device, no list of children."""
    assert values["node_infiniband_transmit_bytes_total", "mlx4_0", "1"] == 4 * 26509113295
    assert values["node_allocation_stalls_total",] == 83165
    assert math.isnan(values["node_oom_kills_total",])
    assert values["node_temperature_celsius", "coretemp_0", "Physical id 0"] == 47
    assert values["process_threads", "j", "0"] == 2
    assert not of(values, "process_children")


@on("rhel7")
def test_nfs_3_among_automounts(values: Values) -> None:
    """Mounts that keep no statistics are passed over; a request that timed out was sent again."""
    mount = ("nas1:/vol/home/ada", "/home/ada")
    assert set(of(values, "node_nfs_read_bytes_total")) == {mount}
    assert values[("node_nfs_read_bytes_total", *mount)] == 1207640230 + 524288000
    assert values[("node_nfs_transmissions_total", *mount, "read")] == 1301
    assert values[("node_nfs_timeouts_total", *mount, "read")] == 1
    assert {key[2] for key in of(values, "node_nfs_operations_total")} == {"getattr", "lookup", "read", "write"}
