"""An agent that serves a node finds jobs by itself: by their rings, and by what launchers tell their processes."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent.agent import Agent
from hindmost_agent.jobs import PERIOD_NS, Jobs, job_id, ring_folders, sweep
from hindmost_agent.rings import Rings
from hindmost_agent.runner import NS, Runner
from hindmost_agent.sampler import Host

if TYPE_CHECKING:
    from pathlib import Path


def process(proc: Path, pid: int, environ: str, *, parent: int = 1, argv: str = "python\0train.py\0") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "environ").write_text(environ.replace(" ", "\0") + "\0")
    (folder / "cmdline").write_text(argv)
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_77/step_0/user\n")
    (folder / "stat").write_text(f"{pid} (python) S {parent} " + "0 " * 17 + "555 0 0 0\n")


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


def test_workers_shells_and_plain_processes_are_no_ranks(host: Host) -> None:
    """A DataLoader's worker inherits its rank's environment; a shell only carries it; a batch script has none."""
    rank = "PMI_RANK=0 PMI_SIZE=2 SLURM_JOB_ID=99"
    process(host.proc, 100, rank, argv="/bin/bash\0run.sh\0")
    process(host.proc, 101, rank, parent=100)
    process(host.proc, 102, rank, parent=101)
    process(host.proc, 103, "SLURM_JOB_ID=99")
    Jobs(host).look(0)
    assert [one.pid for one in host.ranks] == [101]


def test_a_rank_that_ended_is_left(host: Host) -> None:
    """Its pid may be another's by the next look."""
    process(host.proc, 101, "PMI_RANK=0 PMI_SIZE=2 SLURM_JOB_ID=99")
    jobs = Jobs(host)
    jobs.look(0)
    for path in (host.proc / "101").iterdir():
        path.unlink()
    (host.proc / "101").rmdir()
    jobs.look(PERIOD_NS)
    assert len(host.ranks) == 0


def test_kubernetes_pods_are_jobs() -> None:
    """Where no scheduler says more, the pod is the job."""
    assert job_id({}, "0::/kubepods/burstable/pod1234-abcd/55aa") == "1234-abcd"
    assert job_id({}, "0::/user.slice") == ""


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
    assert host.own.ring_events == 1
    assert [(one.job_id, one.rank) for one in host.ranks] == [("job", 1)]


def test_rings_that_nobody_will_read_are_swept(host: Host, tmp_path: Path) -> None:
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
