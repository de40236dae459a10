"""What single sources say of a node: truths that a page as a whole does not show."""

import errno
import math
import resource
from pathlib import Path

import pytest
from hindmost.daemon_process import raise_open_file_limit
from hindmost_agent import samplers
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.kernel_files import File
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Absent, Host
from hindmost_agent.samplers.cgroup import Cgroup
from hindmost_agent.samplers.cpu import CpuFrequency
from hindmost_agent.samplers.infiniband import Infiniband
from hindmost_agent.samplers.network import NetworkLink
from hindmost_agent.samplers.numa import Numa
from hindmost_agent.samplers.pressure import Pressure
from hindmost_agent.samplers.process import Process, ProcessChildren, ProcessStatus, ProcessThreads
from hindmost_agent.samplers.vmstat import Vmstat

from tests.agent.folders import gone, write
from tests.agent.readings import read

PID = 4242
STATUS = (
    "Name:\tpython\nCpus_allowed_list:\t0-23,96-119\nMems_allowed_list:\t0-1\n"
    "voluntary_ctxt_switches:\t400\nnonvoluntary_ctxt_switches:\t30\n"
)
IO = "rchar: 9\nwchar: 8\nsyscr: 7\nsyscw: 6\nread_bytes: 8192\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """An empty node with one rank."""
    made = Host(proc=tmp_path / "proc", sys=tmp_path / "sys", cgroup=tmp_path / "cgroup")
    made.ranks.put(RankProcess("j", 0, 1, 0, PID, 777))
    return made


def stat(pid: int, name: str, ticks: int, start: int = 777, state: str = "S") -> str:
    """A line of /proc/PID/stat: user time in ticks, start, 2048 pages resident."""
    fields = ["0"] * 49
    fields[10], fields[18], fields[20] = str(ticks), str(start), "2048"
    return f"{pid} ({name}) {state} " + " ".join(fields) + "\n"


def thread(folder: Path, tid: int, name: str, ticks: int, waited_s: float, children: str = "") -> None:
    write(
        folder / f"task/{tid}",
        {"stat": stat(tid, name, ticks), "schedstat": f"1 {waited_s * 1e9:.0f} 1\n", "children": children},
    )


def test_what_an_ended_thread_used_stays_in_its_group(host: Host) -> None:
    """A sum over live threads falls when one ends, and Prometheus takes that for a restart: this one only grows."""
    folder = host.proc / str(PID)
    thread(folder, PID, "python", 100, 1.0)
    thread(folder, 4243, "pt_autograd_0", 200, 0.5)
    sampler = ProcessThreads(host)
    cpu, waited = "hindmost_process_thread_group_cpu_seconds_total", "hindmost_process_threads_runqueue_seconds_total"
    assert read(sampler)[cpu, "j", "0", "pt_autograd"] == 2.0
    gone(folder / "task/4243")
    thread(folder, 4244, "pt_autograd_1", 30, 0.25)
    found = read(sampler)
    assert found[cpu, "j", "0", "pt_autograd"] == pytest.approx(2.3)
    assert found[waited, "j", "0"] == pytest.approx(1.75)


def worker(host: Host, pid: int, ticks: int, children: str = "", state: str = "S", waited_s: float = 0.0) -> Path:
    """A DataLoader worker that read 4 KiB from storage."""
    folder = host.proc / str(pid)
    thread(folder, pid, "pt_data_worker", ticks, 0.0, children=children)
    line = stat(pid, "pt_data_worker", ticks, state=state)
    queue = f"1 {waited_s * 1e9:.0f} 1\n"
    write(folder, {"stat": line, "schedstat": queue, "io": "rchar: 9\n" * 4 + "r: 4096\nw: 0\n"})
    return folder


def test_a_dataloader_s_worker_belongs_to_its_rank(host: Host) -> None:
    """Its time, memory and reads count for the rank, also after it has ended; a rank below a rank is its own."""
    thread(host.proc / str(PID), PID, "python", 100, 0.0, children="5000 6000 ")
    worker(host, 5000, 700, children="5001 ", waited_s=0.5)
    worker(host, 5001, 40, waited_s=0.25)
    worker(host, 6000, 900)
    host.ranks.put(RankProcess("j", 1, 2, 1, 6000, 777))
    sampler = ProcessChildren(host)
    found = read(sampler)
    assert found["hindmost_process_children", "j", "0"] == 2
    assert found["hindmost_process_children_cpu_seconds_total", "j", "0"] == pytest.approx(7.4)
    assert found["hindmost_process_children_runqueue_seconds_total", "j", "0"] == pytest.approx(0.75)
    assert found["hindmost_process_children_read_bytes_total", "j", "0"] == 8192
    gone(host.proc / "5001")
    thread(host.proc / "5000", 5000, "pt_data_worker", 700, 0.0)
    found = read(sampler)
    assert found["hindmost_process_children", "j", "0"] == 1
    assert found["hindmost_process_children_cpu_seconds_total", "j", "0"] == pytest.approx(7.4)


def rank_and_worker(host: Host, io: str) -> Path:
    """The folder of a rank that made 7 reads; what its worker made is in ``io``."""
    folder = host.proc / str(PID)
    thread(folder, PID, "python", 100, 0.0, children="5000 ")
    write(folder, {"stat": stat(PID, "python", 100), "io": IO})
    write(worker(host, 5000, 10), {"io": io})
    return folder


@pytest.mark.parametrize(("waited_for", "looks", "own", "all_of_it"), [(True, 1, "41", 41), (False, 2, "17", 47)])
def test_reads_of_a_worker_count_once_before_and_after_it_ends(
    host: Host, waited_for: bool, looks: int, own: str, all_of_it: int
) -> None:
    """The kernel adds an ended child's reads to its parent's, once that has waited for it: none that ignores SIGCHLD
    ever does."""
    folder = rank_and_worker(host, IO.replace("7", "30"))
    sampler, of = ProcessChildren(host), ("hindmost_process_read_calls_total", "j", "0")
    assert read(sampler)[of] == 37
    if waited_for:
        thread(folder, PID, "python", 100, 0.0)
    gone(host.proc / "5000")
    assert [read(sampler)[of] for _ in range(looks)] == [37] * looks
    write(folder, {"io": IO.replace("7", own)})
    assert read(sampler)[of] == all_of_it


def test_a_worker_whose_reads_are_out_of_reach_hides_none_of_its_rank(host: Host) -> None:
    """It may run as another user."""
    rank_and_worker(host, "")
    assert read(ProcessChildren(host))["hindmost_process_read_calls_total", "j", "0"] == 7


def test_a_worker_of_a_new_epoch_is_seen_at_the_next_sample(host: Host) -> None:
    """Workers begin and end with each epoch; those of the rank's main thread are listed in one file."""
    thread(host.proc / str(PID), PID, "python", 100, 0.0)
    sampler = ProcessChildren(host)
    assert read(sampler)["hindmost_process_children", "j", "0"] == 0
    worker(host, 5000, 10)
    thread(host.proc / str(PID), PID, "python", 100, 0.0, children="5000 ")
    assert read(sampler)["hindmost_process_children", "j", "0"] == 1


def test_workers_that_wait_for_storage_show_their_mount(host: Host) -> None:
    """State D, and the mount of the file opened last that is not in memory; once seen, a mount stays, at 0."""
    thread(host.proc / str(PID), PID, "python", 100, 0.0, children="5000 5001 ")
    mounts = "/dev/sda1 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nnas:/data /data nfs4 rw 0 0\n"
    for pid, state in ((5000, "D"), (5001, "S")):
        folder = worker(host, pid, 10, state=state)
        write(folder, {"mounts": mounts})
        (folder / "fd").mkdir()
        opened = ("/dev/null", "/var/log/train.log", "/data/train/0.tar", "/dev/shm/q", "pipe:[7]")
        for number, target in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(target)
    sampler = ProcessChildren(host)
    where = ("hindmost_process_mount_blocked", "j", "0", "nas:/data", "/data")
    found = read(sampler)
    assert found["hindmost_process_children_blocked", "j", "0"] == found[where] == 1
    write(host.proc / "5000", {"stat": stat(5000, "pt_data_worker", 10)})
    found = read(sampler)
    assert found["hindmost_process_children_blocked", "j", "0"] == found[where] == 0


def test_a_rank_says_where_it_may_run(host: Host) -> None:
    """The number of cores and their list, as the kernel gives it."""
    write(host.proc / str(PID), {"status": STATUS})
    found = read(ProcessStatus(host))
    assert found["hindmost_process_allowed_cpus", "j", "0"] == 48
    assert found["hindmost_process_affinity_info", "j", "0", "0-23,96-119"] == 1
    assert found["hindmost_process_memory_nodes_info", "j", "0", "0-1"] == 1
    assert found["hindmost_process_voluntary_switches_total", "j", "0"] == 400
    assert found["hindmost_process_involuntary_switches_total", "j", "0"] == 30


def test_waiting_that_the_kernel_does_not_keep_is_missing(host: Host) -> None:
    """A kernel without scheduler statistics: CPU time is there, run-queue wait is not, and is not 0."""
    write(host.proc / f"{PID}/task/{PID}", {"stat": stat(PID, "python", 100)})
    found = read(ProcessThreads(host))
    assert found["hindmost_process_thread_group_cpu_seconds_total", "j", "0", "python"] == 1.0
    assert math.isnan(found["hindmost_process_threads_runqueue_seconds_total", "j", "0"])


@pytest.mark.parametrize(("state", "stopped"), [("T", 1), ("t", 1), ("S", 0), ("R", 0), ("D", 0)])
def test_a_stopped_process_is_seen_as_stopped(host: Host, state: str, stopped: int) -> None:
    """By a signal (T) or a debugger (t); one that sleeps, runs or waits for a disk (D) is not."""
    write(host.proc / str(PID), {"stat": stat(PID, "a (T) name", 100, state=state)})
    sampler = Process(host)
    read(sampler)
    found = read(sampler)
    assert found["hindmost_process_stopped", "j", "0"] == stopped
    assert found["hindmost_process_blocked", "j", "0"] == (state == "D")


def test_files_of_a_rank_that_are_out_of_reach_are_said_once(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Values missing, one line that names the file."""
    write(host.proc / str(PID), {"stat": stat(PID, "python", 100)})
    found = {}
    for sampler in (Process(host), ProcessChildren(host)):
        read(sampler)
        found.update(read(sampler))
    assert found["hindmost_process_cpu_seconds_total", "j", "0"] == 1.0
    assert math.isnan(found["hindmost_process_runqueue_seconds_total", "j", "0"])
    assert math.isnan(found["hindmost_process_read_bytes_total", "j", "0"])
    assert caplog.messages == [
        "/proc/4242: schedstat cannot be read (logged once)",
        "/proc/4242: io cannot be read (logged once)",
    ]


def test_reads_of_a_rank_that_ends_are_missing_and_not_unreadable(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes of storage while it runs; once it has gone nothing is said, and nothing is 0."""
    write(host.proc / str(PID), {"stat": stat(PID, "python", 100), "io": IO})
    sampler = ProcessChildren(host)
    found = read(sampler)
    assert found["hindmost_process_read_bytes_total", "j", "0"] == 8192
    assert found["hindmost_process_written_bytes_total", "j", "0"] == 4096
    gone(host.proc / str(PID))
    assert ("hindmost_process_read_bytes_total", "j", "0") not in read(sampler)
    assert not caplog.records


V2 = {"cpu.stat": "usage_usec 1\nnr_periods 100\nnr_throttled 40\nthrottled_usec 2500000\n", "cpu.max": "max 100000\n"}


def test_a_limit_above_a_rank_s_own_group_binds_it_too(host: Host) -> None:
    """Slurm limits the job's group, the rank is in its task's: both are shown, those without a limit are not."""
    path = "system.slice/slurmstepd.scope/job_77/step_0/user/task_0"
    write(host.proc / str(PID), {"cgroup": f"0::/{path}\n"})
    write(host.cgroup, {"cgroup.controllers": "cpu memory\n"})
    for level in (Path(path), *Path(path).parents[:-1]):
        write(host.cgroup / level, {"memory.max": "max\n", "memory.current": "4096\n", **V2})
    job = "system.slice/slurmstepd.scope/job_77"
    write(host.cgroup / job, {"memory.max": "8589934592\n", "memory.events": "max 3\noom 1\noom_kill 1\n"})
    found = read(Cgroup(host))
    assert {key[1] for key in found if key[0].startswith("hindmost_node")} == {f"/{path}", f"/{job}"}
    assert ("hindmost_process_cpu_cgroup_info", "j", "0", "cpu.max", f"/{path}") in found
    assert found["hindmost_node_cgroup_memory_limit_bytes", f"/{job}"] == 8 << 30
    assert found["hindmost_node_cgroup_memory_events_total", f"/{job}", "oom_kill"] == 1
    assert found["hindmost_node_cgroup_cpu_throttled_seconds_total", f"/{path}"] == 2.5


def test_in_a_container_the_mounted_group_is_the_rank_s(host: Host) -> None:
    """The path is the host's, the files are at the mount: shown once, under the path."""
    write(host.proc / str(PID), {"cgroup": "3:memory:/docker/c0ffee\n"})
    write(host.cgroup / "memory", {"memory.usage_in_bytes": "4096\n", "memory.limit_in_bytes": "8192\n"})
    found = read(Cgroup(host))
    assert found["hindmost_node_cgroup_memory_limit_bytes", "/docker/c0ffee"] == 8192
    assert {key[1] for key in found if key[0].startswith("hindmost_node")} == {"/docker/c0ffee"}


def test_a_quota_carries_the_path_of_the_cpu_s_controller(host: Host) -> None:
    """In version 1 a rank's group for CPU time is not its group for memory. What it was throttled is in ns there."""
    host.ranks.put(RankProcess("j", 1, 2, 1, PID + 1, 778))
    write(host.proc / str(PID), {"cgroup": "3:memory:/pod\n2:cpu,cpuacct:/free\n"})
    write(host.proc / str(PID + 1), {"cgroup": "3:memory:/pod\n2:cpu,cpuacct:/held/rank1\n"})
    write(host.cgroup / "memory/pod", {"memory.usage_in_bytes": "4096\n"})
    for name, quota in (("free", -1), ("held/rank1", -1), ("held", 50000)):
        write(host.cgroup / "cpu" / name, {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"})
    write(host.cgroup / "cpu/held", {"cpu.stat": "nr_periods 100\nnr_throttled 40\nthrottled_time 2500000000\n"})
    found = read(Cgroup(host))
    assert found["hindmost_node_cgroup_cpu_throttled_seconds_total", "/held"] == 2.5
    info = "hindmost_process_cpu_cgroup_info"
    assert {key for key in found if key[0] == info} == {
        (info, "j", "0", "cpu.cfs_quota_us", "/free"),
        (info, "j", "1", "cpu.cfs_quota_us", "/held/rank1"),
    }
    limit = "hindmost_node_cgroup_cpu_limit_cores"
    assert {key: found[key] for key in found if key[0] == limit} == {(limit, "/held"): 0.5}


def test_a_rank_that_is_moved_is_followed(host: Host) -> None:
    """A service may put a running process into another group: the next reading has that one."""
    write(host.cgroup, {"cgroup.controllers": "cpu memory\n"})
    for name in ("a", "b"):
        write(host.cgroup / name, {"memory.current": "4096\n"})
    sampler = Cgroup(host)
    for name in ("a", "b"):
        write(host.proc / str(PID), {"cgroup": f"0::/{name}\n"})
        assert {key[-1] for key in read(sampler)} == {f"/{name}"}


def test_in_a_container_of_version_2_the_root_is_the_rank_s(host: Host) -> None:
    """With a namespace of its own the path is /, and the root has the container's limits."""
    write(host.proc / str(PID), {"cgroup": "0::/\n"})
    write(
        host.cgroup, {"cgroup.controllers": "cpu memory\n", "memory.max": "8192\n", **V2, "cpu.max": "200000 100000\n"}
    )
    found = read(Cgroup(host))
    assert found["hindmost_node_cgroup_memory_limit_bytes", "/"] == 8192
    assert found["hindmost_node_cgroup_cpu_limit_cores", "/"] == 2


def test_a_rate_that_is_not_known_is_missing(host: Host) -> None:
    """Virtual adapters say -1 Mbit/s; interfaces without hardware are left out."""
    write(host.sys / "class/net/eth0", {"device/vendor": "0x1af4\n", "carrier": "1\n", "speed": "-1\n"})
    write(host.sys / "class/net/lo", {"carrier": "1\n"})
    found = read(NetworkLink(host))
    assert found["hindmost_node_network_carrier", "eth0"] == 1
    assert math.isnan(found["hindmost_node_network_link_bytes_per_second", "eth0"])
    assert {key[1] for key in found} == {"eth0"}


def test_a_node_without_adapters_has_none(host: Host) -> None:
    """Missing, not an empty page."""
    for kind in (Infiniband, NetworkLink):
        with pytest.raises(Absent):
            kind(host).sample()


def test_the_number_of_files_that_may_be_open_is_raised(node: Host) -> None:
    """A node of 192 cores has more files to keep open than the usual soft limit allows: no sampler goes without."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        raise_open_file_limit()
        runner = Runner(samplers.load(), node, NS)
        for second in (0, 100):
            runner.run(second * NS, everything=True)
        assert +node.counts.errors == {}
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_number_that_never_changes_keeps_no_file_open(host: Host) -> None:
    """A core's highest clock is read once; its clock again and again."""
    folder = host.sys / "devices/system/cpu/cpu0/cpufreq"
    write(folder, {"scaling_cur_freq": "2400000\n", "cpuinfo_max_freq": "3700000\n"})
    sampler = CpuFrequency(host)
    read(sampler)
    write(folder, {"scaling_cur_freq": "2500000\n", "cpuinfo_max_freq": "0\n"})
    found = read(sampler)
    assert found["hindmost_node_cpu_frequency_hertz", "0"] == 2.5e9
    assert found["hindmost_node_cpu_frequency_max_hertz", "0"] == 3.7e9


def test_a_control_group_that_was_removed_takes_no_other_with_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its open files answer with an error; the values of the other job's group are still there."""
    host.ranks.put(RankProcess("other", 0, 1, 0, PID + 1, 777))
    write(host.cgroup, {"cgroup.controllers": "cpu memory\n"})
    for pid, job in ((PID, "job_1"), (PID + 1, "job_2")):
        write(host.proc / str(pid), {"cgroup": f"0::/{job}\n"})
        write(host.cgroup / job, {"memory.current": "4096\n"})
    sampler, used = Cgroup(host), "hindmost_node_cgroup_memory_used_bytes"
    assert {key for key in read(sampler) if key[0] == used} == {(used, "/job_1"), (used, "/job_2")}
    whole = File.read

    def removed(file: File, *limit: int) -> bytes:
        if "job_1" in file.path:
            raise OSError(errno.ENODEV, "No such device")
        return whole(file, *limit)

    monkeypatch.setattr(File, "read", removed)
    assert {key: value for key, value in read(sampler).items() if key[0] == used} == {(used, "/job_2"): 4096}


def test_throttled_time_that_is_not_kept_is_missing(host: Host) -> None:
    """Periods are counted and their time is not: it is missing, not 0."""
    write(host.proc / str(PID), {"cgroup": "0::/job_1\n"})
    write(host.cgroup, {"cgroup.controllers": "cpu\n", "job_1/cpu.stat": "nr_periods 100\nnr_throttled 40\n"})
    found = read(Cgroup(host))
    assert found["hindmost_node_cgroup_cpu_throttled_periods_total", "/job_1"] == 40
    assert math.isnan(found["hindmost_node_cgroup_cpu_throttled_seconds_total", "/job_1"])


def test_all_tasks_waiting_for_a_cpu_means_nothing_of_a_node(host: Host) -> None:
    """The kernel writes 0 there, of every other resource it says something."""
    lines = "some avg10=1.00 total=2500000\nfull avg10=0.00 total={}\n"
    write(host.proc / "pressure", {"cpu": lines.format(0), "io": lines.format(900000)})
    found = read(Pressure(host))
    assert {key[1:]: value for key, value in found.items() if "stalled" in key[0]} == {("io",): 0.9}
    assert {key[1] for key in found if "waiting" in key[0]} == {"cpu", "io"}


@pytest.mark.parametrize(("refused", "left"), [({"irq"}, {"cpu", "io"}), ({"cpu", "io", "irq"}, set())])
def test_pressure_is_not_kept(host: Host, monkeypatch: pytest.MonkeyPatch, refused: set[str], left: set[str]) -> None:
    """RHEL 8 and 9 have the files and refuse to read them: missing, with what to do, and not a failure each tick."""
    line = "some avg10=1.00 avg60=1.00 avg300=1.00 total=2500000\n"
    write(host.proc / "pressure", dict.fromkeys(("cpu", "io", "irq"), line))
    whole = File.read

    def asked(file: File) -> bytes:
        if Path(file.path).name in refused:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return whole(file)

    monkeypatch.setattr(File, "read", asked)
    runner = Runner({"pressure": Pressure}, host, NS)
    assert {one.values[0] for reading in runner.run(0) for one in reading.series} == left
    assert +host.counts.errors == {}
    if not left:
        with pytest.raises(Absent, match="psi=1"):
            Pressure(host)


@pytest.mark.parametrize(
    ("lines", "stalls"),
    [
        ("allocstall_dma 1\nallocstall_dma32 2\nallocstall_normal 30\nallocstall_movable 400\n", 433),
        ("allocstall 7\n", 7),
        ("", math.nan),
    ],
)
def test_allocations_stall_in_any_zone(host: Host, lines: str, stalls: float) -> None:
    """Most of a training node's memory is movable: all zones count, and none is missing rather than 0."""
    write(host.proc, {"vmstat": f"pgfault 100\n{lines}"})
    found = read(Vmstat(host))
    assert found["hindmost_node_allocation_stalls_total",] == pytest.approx(stalls, nan_ok=True)
    assert found["hindmost_node_page_faults_total",] == 100


def test_the_cores_of_a_numa_node_are_read_whole(tmp_path: Path) -> None:
    """Where cores of two nodes alternate the list has a number for each."""
    cores = ",".join(map(str, range(0, 512, 2)))
    for node in (0, 1):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        for name, content in {"meminfo": "", "numastat": "", "cpulist": f"{cores}\n"}.items():
            (folder / name).write_text(content)
    sampler = Numa(Host(sys=tmp_path))
    sampler.sample()
    assert [one.values for one in sampler.series] == [("0", cores), ("1", cores)]
