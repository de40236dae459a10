"""An agent that serves a node finds jobs automatically, by their rings and launchers' variables, and tidies up."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.bootstrap import ENTERED
from hindmost.identity import Identity
from hindmost_agent import kernel_files
from hindmost_agent.agent import Agent
from hindmost_agent.delivery.batch import Builder
from hindmost_agent.jobs import discovery
from hindmost_agent.jobs.command import at_work
from hindmost_agent.jobs.discovery import (
    LONGEST,
    PERIOD_NS,
    YOUNG,
    Jobs,
    job_id,
    pod_of,
    ring_folders,
    sweep,
)
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host
from hindmost_proto import telemetry_pb2 as wire

RANK = "PMI_RANK=0 PMI_SIZE=2 SLURM_JOB_ID=99"
PYTHON = "python\0train.py\0"
#: What runs a rank, which is below it.
WRAPPERS = (
    "timeout\x0038\0python\0", "nice\0", "/usr/bin/nsys\0profile\0", "Apptainer runtime parent\0", "-bash\0",
    "/opt/conda/bin/python\0/opt/conda/bin/conda\0run\0", "uv\0run\0", "nohup\0", "stdbuf\0-oL\0",
)  # fmt: skip


def process(
    proc: Path, pid: int, environ: str, *, parent: int = 1, argv: str = "python\0train.py\0", start: int = 555
) -> None:
    """A process, or what an exec makes of it."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comm").write_text(Path(argv.split("\0", maxsplit=1)[0]).name[:15] + "\n")
    (folder / "environ").write_text(environ.replace(" ", "\0") + "\0")
    (folder / "cmdline").write_text(argv)
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_77/step_0/user\n")
    (folder / "stat").write_text(f"{pid} (python) S {parent} " + "0 " * 17 + f"{start} 0 0 0\n")


def test_a_lock_that_is_no_file_blocks_no_job(tmp_path: Path) -> None:
    """Opening a FIFO as a lock would block for ever; one that is a folder hides no other job."""
    odd, other, fifo = (tmp_path / "hindmost-7" / name for name in ("odd", "other", "fifo"))
    for folder in (odd / "agent.lock", odd / "0.py.100.ring", other, fifo):
        folder.mkdir(parents=True)
    os.mkfifo(fifo / "agent.lock")
    (other / "0.py.100.ring").touch()
    assert ring_folders(tmp_path) == [fifo, odd, other]
    assert sweep(tmp_path / "proc", tmp_path, uid=7) == 1
    assert not other.exists()
    assert (odd / "0.py.100.ring").is_dir()


def test_a_folder_out_of_reach_hides_no_other_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder that may be listed and not entered, not even what its entries are is known."""
    for user in ("hindmost-7/a", "hindmost-8/b"):
        (tmp_path / user).mkdir(parents=True)
    stat = os.stat

    def refusing(path: object, *args: object, **kwargs: bool) -> os.stat_result:
        if str(path).endswith("-7/a"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **kwargs)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", refusing)
    assert ring_folders(tmp_path) == [tmp_path / "hindmost-8/b"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "proc").mkdir()
    return Host(proc=tmp_path / "proc", sys=tmp_path, dev=tmp_path)


@pytest.mark.parametrize(
    ("environ", "job", "rank"),
    [
        ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 PBS_JOBID=12.host", "12.host", 3),
        ("PMI_RANK=2 PMI_SIZE=4 SLURM_JOB_ID=99", "99", 2),
        ("SLURM_PROCID=5 SLURM_STEP_ID=0 SLURM_NTASKS=8", "77", 5),
    ],
)
def test_a_launcher_s_process_is_a_rank(host: Host, environ: str, job: str, rank: int) -> None:
    """The job is named by the scheduler's variable, or else by the control group."""
    process(host.proc, 4242, environ)
    Jobs(host).look(0)
    found = host.ranks.get(4242)
    assert found is not None
    assert (found.job_id, found.rank, found.start_ticks) == (job, rank, 555)


def test_processes_out_of_reach(host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that is not root sees its own user's ranks only, and says so; those it finds as ever."""
    caplog.set_level("INFO")
    for pid in (4242, 4243, 4244):
        process(host.proc, pid, "PMI_RANK=2 PMI_SIZE=4 SLURM_JOB_ID=99")
    read = kernel_files.read_once

    def refusing(path: Path, limit: int) -> bytes:
        if path.name == "environ" and path.parent.name != "4244":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, limit)

    monkeypatch.setattr("hindmost_agent.jobs.discovery.read_once", refusing)
    jobs = Jobs(host)
    jobs.look(0)
    process(host.proc, 4245, "PMI_RANK=3 PMI_SIZE=4 SLURM_JOB_ID=99")
    jobs.look(100 * NS)
    assert [rank.pid for rank in host.ranks] == [4244]
    (line,) = caplog.messages
    assert f"{host.proc}/4242/environ" in line
    assert "CAP_SYS_PTRACE" in line


def test_a_rank_that_ended_is_left(host: Host) -> None:
    """Its pid may be another's at the next check."""
    process(host.proc, 101, "PMI_RANK=0 PMI_SIZE=2 SLURM_JOB_ID=99")
    jobs = Jobs(host)
    jobs.look(0)
    for path in (host.proc / "101").iterdir():
        path.unlink()
    (host.proc / "101").rmdir()
    jobs.look(PERIOD_NS)
    assert len(host.ranks) == 0


def test_what_a_launcher_below_a_rank_starts_are_ranks(host: Host) -> None:
    """A task that runs torchrun through a script of its own: its workers were named anew; their loaders were not."""
    process(host.proc, 100, "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=1 SLURM_JOB_ID=99")
    process(host.proc, 101, "SLURM_JOB_ID=99", parent=100, argv="python\0/usr/bin/torchrun\0train.py\0")
    worker = "TORCHELASTIC_RUN_ID=none RANK={} WORLD_SIZE=2 LOCAL_RANK={} SLURM_JOB_ID=99"
    for rank in (0, 1):
        process(host.proc, 102 + rank, worker.format(rank, rank), parent=101, start=700)
        process(host.proc, 104 + rank, worker.format(rank, rank), parent=102 + rank, start=800)
    Jobs(host).look(0)
    assert [(one.rank, one.world_size, one.pid) for one in host.ranks.shown()] == [(0, 2, 102), (1, 2, 103)]


def test_a_shell_that_becomes_the_rank_is_seen(host: Host) -> None:
    """``bash -c 'setup; monitor & exec python train.py'``: the same process, another program; the monitor is below."""
    process(host.proc, 100, RANK, argv="/bin/bash\0-c\0…\0")
    process(host.proc, 101, RANK, parent=100, argv="monitor\0", start=600)
    jobs = Jobs(host)
    jobs.look(0)
    process(host.proc, 100, RANK, argv="python\0train.py\0")
    jobs.look(PERIOD_NS)
    assert [(rank.pid, rank.command) for rank in host.ranks] == [(100, "train.py")]


def test_processes_that_have_run_for_long_are_rarely_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has thousands; a shell that waits for an hour and then becomes the rank is seen within a minute."""
    for pid in range(100, 160):
        process(host.proc, pid, RANK, argv="/bin/bash\0-c\0…\0")
    jobs, asked = Jobs(host), []
    read = discovery.text
    monkeypatch.setattr(discovery, "text", lambda path: asked.append(path) or read(path))  # type: ignore[func-returns-value]
    looks = []
    for look in range(30):
        asked.clear()
        jobs.look(look * PERIOD_NS)
        looks.append(len(asked))
    assert (looks[:7], looks[7:]) == ([60] * 7, [10] * 23)
    process(host.proc, 100, RANK, argv="python\0train.py\0")
    for look in range(30, 30 + YOUNG):
        jobs.look(look * PERIOD_NS)
    assert [(rank.pid, rank.command) for rank in host.ranks] == [(100, "train.py")]


@pytest.mark.parametrize(
    "processes",
    [
        {100: (1, "/bin/bash\0run.sh\0"), 101: (100, PYTHON), 102: (101, PYTHON)},
        {101: (1, PYTHON), 200: (101, "/bin/sh\0-c\0ffmpeg; true\0"), 201: (200, "ffmpeg\0in\0")},
        *({100: (1, argv), 101: (100, PYTHON)} for argv in WRAPPERS),
    ],
)
def test_of_processes_with_a_rank_s_environment_one_is_the_rank(
    host: Host, processes: dict[int, tuple[int, str]]
) -> None:
    """Not the shell or the tool that runs it, its DataLoader's workers, or what it starts through a shell."""
    process(host.proc, 103, "SLURM_JOB_ID=99")
    for pid, (parent, argv) in processes.items():
        process(host.proc, pid, RANK, parent=parent, argv=argv, start=pid)
    Jobs(host).look(0)
    assert [rank.pid for rank in host.ranks] == [101]


def test_threads_of_the_kernel_are_looked_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """They change their names all the time, and there are thousands."""
    process(host.proc, 10, "", argv="")
    jobs = Jobs(host)
    jobs.look(0)
    (host.proc / "10/comm").write_text("kworker/0:1-events\n")
    monkeypatch.setattr(
        "hindmost_agent.jobs.discovery.command_line", lambda _, pid: pytest.fail(f"{pid} was looked at again")
    )
    jobs.look(PERIOD_NS)
    assert len(host.ranks) == 0


def test_a_ring_goes_before_what_a_launcher_says(host: Host) -> None:
    """Of one rank's processes the one whose ring is read is shown, also if another that has none is younger."""
    host.ranks.put(RankProcess("99", 0, 2, 0, 100, 500, "torch"))
    host.ranks.put(RankProcess("99", 0, 2, 0, 101, 600))
    host.ranks.put(RankProcess("99", 1, 2, 1, 102, 500))
    host.ranks.put(RankProcess("99", 1, 2, 1, 103, 600))
    assert {one.pid for one in host.ranks.shown()} == {100, 103}


def test_what_a_ring_said_stays(host: Host) -> None:
    """A rank with a ring is not replaced when its process renames itself, and not left."""
    process(host.proc, 100, RANK)
    jobs = Jobs(host)
    jobs.look(0)
    stated = RankProcess("99", 0, 2, 0, 100, 555, "torch", "train.py", "GPU-1")
    host.ranks.put(stated)
    (host.proc / "100/comm").write_text("pt_main_thread\n")
    jobs.look(PERIOD_NS)
    assert list(host.ranks) == [stated]


def test_jobs_that_torchrun_was_given_no_name_for_are_apart(host: Host) -> None:
    """It calls them all "none": the torchrun that started them names them, through a shell as well."""
    worker = "TORCHELASTIC_RUN_ID=none RANK={0} WORLD_SIZE=2 LOCAL_RANK={0}"
    for launcher in (100, 200):
        process(host.proc, launcher, "HOME=/root", argv="python\0/usr/bin/torchrun\0train.py\0", start=launcher)
        process(host.proc, launcher + 1, worker.format(0), parent=launcher)
        process(host.proc, launcher + 2, worker.format(1), parent=launcher, argv="bash\0run.sh\0")
        process(host.proc, launcher + 3, worker.format(1), parent=launcher + 2)
    for pid in (101, 102, 103, 201, 202, 203):
        (host.proc / f"{pid}/cgroup").write_text("0::/user.slice\n")
    Jobs(host).look(0)
    assert sorted((rank.job_id, rank.rank) for rank in host.ranks) == [
        ("torchrun-100-100", 0),
        ("torchrun-100-100", 1),
        ("torchrun-200-200", 0),
        ("torchrun-200-200", 1),
    ]


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/system.slice/n1_slurmstepd.scope/job_77/step_0/user/task_0", "77"),
        ("/slurm_n1/uid_1000/job_77/step_batch/task_0", "77"),
        ("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0", "s5K1KKYAYG5D00"),
        ("/system.slice/n1_slurmstepd.scope/s5K1KKYAYG5D00", "s5K1KKYAYG5D00"),
        ("/system.slice/slurmstepd.scope/system", ""),
        ("/kubepods/burstable/pod1234-abcd/55aa", "1234-abcd"),
        ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice/crio-55aa.scope", "1234-abcd"),
        ("/kubepods.slice/kubepods-pod1234_abcd.slice/cri-containerd-55aa.scope", "1234-abcd"),
        ("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1234_abcd.slice/x.scope", "1234-abcd"),
        ("/user.slice", ""),
    ],
)
def test_a_control_group_names_the_job(path: str, job: str) -> None:
    """Where the environment says nothing: Slurm's id or SLUID; the pod's own name, whichever driver made the group."""
    assert job_id({}, f"0::{path}") == job


def test_rings_that_a_job_s_own_agent_reads_are_left_to_it(tmp_path: Path) -> None:
    """Two agents on one ring would send everything twice."""
    ours, theirs = tmp_path / "hindmost-0/a", tmp_path / "hindmost-0/b"
    for folder in (ours, theirs):
        folder.mkdir(parents=True)
    lock = os.open(theirs / "agent.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert ring_folders(tmp_path) == [ours]
    os.close(lock)
    assert ring_folders(tmp_path) == [ours, theirs]


def test_a_ring_that_appears_is_read(host: Host, tmp_path: Path) -> None:
    """A node's agent reads a job that starts after it, and its rank is known."""
    agent = Agent("n", NS, host, Runner({}, host, NS), Rings(host), None, Jobs(host, tmp_path))
    agent.tick(NS)
    folder = tmp_path / "hindmost-0/job"
    folder.mkdir(parents=True)
    writer = ring.Writer.create(folder, Identity("job", 1, 2, 1, "n", "torch", "train.py"), "py")
    writer.event(ring.STEP, writer.name("train"), 1, 2)
    agent.tick(3 * NS)
    agent.tick(4 * NS)
    writer.close()
    assert host.counts.ring_events == 1
    assert [(rank.job_id, rank.rank) for rank in host.ranks] == [("job", 1)]


def test_the_folder_of_a_job_that_is_over_goes(host: Host, tmp_path: Path) -> None:
    """A minute after its last ring; one that holds a ring, is new or is another agent's stays."""
    shm = tmp_path / "shm"
    for name in ("over", "locked", "killed", "runs", "new"):
        (shm / f"hindmost-0/{name}").mkdir(parents=True)
    (shm / "hindmost-0/runs/0.py.1.ring").touch()
    (shm / "hindmost-0/killed/agent.lock").touch()
    with (shm / "hindmost-0/locked/agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in (shm / "hindmost-0").iterdir():
            os.utime(folder, (1000, 1050 if folder.name == "new" else 1000))
        jobs = Jobs(host, shm, unix_s=lambda: 1061)
        rings = Rings(host)
        Agent("n", NS, host, Runner({}, host, NS), rings, None, jobs).tick(0)
    assert sorted(folder.name for folder in (shm / "hindmost-0").iterdir()) == ["locked", "new", "runs"]


def test_abandoned_rings_are_swept(host: Host, tmp_path: Path) -> None:
    """Killed processes and their killed agent leave memory behind; the next agent gives it back, and only that."""
    process(host.proc, 101, "")
    gone, half = tmp_path / "hindmost-7/gone", tmp_path / "hindmost-7/half"
    for folder in (gone, half):
        folder.mkdir(parents=True)
    for path in (gone / "0.py.100.ring", gone / "agent.lock", half / "0.py.100.ring", half / "1.py.101.ring"):
        path.touch()
    assert sweep(host.proc, tmp_path, uid=7) == 2
    assert not gone.exists()
    assert [path.name for path in half.iterdir()] == ["1.py.101.ring"]


def test_what_the_probe_left_keeps_no_folder_and_what_others_left_does(tmp_path: Path) -> None:
    """A folder goes with the lock and the trace of a process without a ring; with anything else it stays whole."""
    folders = ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in folders:
        folder.mkdir()
        for name in ("agent.lock", ENTERED):
            (folder / name).touch()
    (theirs / "notes").touch()
    for folder in folders:
        os.utime(folder, (0, 0))
    discovery.tidy(folders, 1e9)
    assert not ours.exists()
    assert len(list(theirs.iterdir())) == 3


NAMED = {
    "HINDMOST_POD_NAMESPACE": "team-a",
    "HINDMOST_POD_NAME": "train-worker-3",
    "HINDMOST_POD_UID": "8d1c",
    "HINDMOST_WORKLOAD": "MPIJob/train",
    "HINDMOST_QUEUE": "gold",
}
POD = wire.Pod(namespace="team-a", name="train-worker-3", uid="8d1c", workload="MPIJob/train", queue="gold")


def a_process(proc: Path, **environ: str) -> Path:
    """A /proc with process 7 in it, which has this environment."""
    (proc / "7").mkdir()
    (proc / "7/environ").write_text("".join(f"{name}={value}\0" for name, value in environ.items()))
    return proc


@pytest.mark.parametrize(
    ("pid", "environ", "found"),
    [
        (7, {"HINDMOST_POD_NAME": "train-worker-3"}, None),
        (8, {}, None),
        (7, {"HINDMOST_POD_NAMESPACE": "a" * 100_000}, wire.Pod(namespace="a" * LONGEST)),
    ],
    ids=["in none", "gone or out of reach", "a name that Kubernetes would refuse"],
)
def test_most_ranks_are_in_no_pod(tmp_path: Path, pid: int, environ: dict[str, str], found: wire.Pod | None) -> None:
    """Without a namespace there is none. The job may set these variables to anything: a name is cut."""
    assert pod_of(a_process(tmp_path, **environ), pid) == found


def test_a_rank_s_pod_and_what_made_it_are_sent_with_the_rank(tmp_path: Path) -> None:
    """The variables that its pod's template sets by the downward API, on the wire."""
    builder = Builder("n0", a_process(tmp_path, **NAMED))
    ref = builder.rank(RankProcess("train", 3, 8, 0, 7, 1))
    (rank,) = wire.AgentMessage.FromString(builder.pack().definitions[ref]).definitions.ranks
    assert rank.pod == POD


@pytest.mark.parametrize(
    ("children", "found"), [("", None), ("11", 11), ("11 12", None)], ids=["none yet", "its only one", "several"]
)
def test_the_process_that_works_is_below_the_shell_that_started_it(
    tmp_path: Path, children: str, found: int | None
) -> None:
    """A script may end in anything: of several programs none is taken for the job."""
    process(tmp_path, 10, "", argv="bash\0run.sh\0")
    process(tmp_path, 11, "", parent=10, argv="./solver\0-n\0")
    process(tmp_path, 12, "", parent=10)
    (tmp_path / "10/task/10").mkdir(parents=True)
    (tmp_path / "10/task/10/children").write_text(children)
    known = at_work(tmp_path, "j", 10)
    assert (known and known.pid) == found
    assert at_work(tmp_path, "j", 11) == RankProcess("j", -1, 1, 0, 11, 555, command="./solver -n")


def test_a_command_is_sampled_until_a_rank_makes_itself_known(tmp_path: Path) -> None:
    """A program that no probe knows has CPUs and files like any; ranks that come later have series of their own."""
    host = Host(proc=tmp_path / "proc")
    process(host.proc, 10, "", argv="./solver\0")
    agent = Agent("n", NS, host, Runner({}, host, NS), Rings(host, [tmp_path / "rings"]), None)
    agent.follow("j", 10)
    assert [(rank.pid, rank.rank) for rank in host.ranks] == [(10, -1)]
    assert host.ranks.numbered() == []
    writer = ring.Writer.create(tmp_path / "rings", Identity("j", 1, 2, 1, "n", "torch", "t.py"), "py", 64)
    agent.tick(10 * NS)
    writer.close()
    assert 10 not in [rank.pid for rank in host.ranks]


def test_a_pid_that_was_a_commands_is_not_followed_to_another_program(tmp_path: Path) -> None:
    """Once the command has ended, its pid may be a process of another user."""
    host = Host(proc=tmp_path / "proc")
    process(host.proc, 10, "", argv="./solver\0")
    agent = Agent("n", NS, host, Runner({}, host, NS), Rings(host, [tmp_path / "rings"]), None)
    agent.follow("j", 10)
    process(host.proc, 10, "", argv="/usr/sbin/other\0", start=99999)
    agent.finish(5 * NS)
    assert len(host.ranks) == 0
