"""However a job ends, its exit code is its own, what was recorded is reported, and nothing is left running."""

import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.jobs import HINDMOST, OF_TWO, TRAIN_MPI, environ, job_of, observe, wait_until_gone

pytestmark = [pytest.mark.cluster, pytest.mark.needs("mpirun")]

STEPS = """
import glob, os, signal, sys, time
from mpi4py import MPI
import numpy as np
comm, ones, total = MPI.COMM_WORLD, np.ones(1000), np.zeros(1000)

def watched(by="/proc/[0-9]*/fdinfo/*"):
    for path in glob.glob(by):
        try:
            with open(path) as text:
                if f"Pid:\\t{{os.getpid()}}\\n" in text.read():
                    return True
        except OSError:
            pass
    return "HINDMOST_RING_DIR" not in os.environ

for step in range(1000):
    if step == 3:
        {fault}
    time.sleep(0.01)
    comm.Allreduce(ones, total)
"""


def script(tmp_path: Path, fault: str) -> str:
    """A job of 1,000 steps to which ``fault`` happens at step 3."""
    path = tmp_path / "job.py"
    path.write_text(STEPS.format(fault=fault))
    return str(path)


def test_a_job_that_raises_at_step_3(out: Path, tmp_path: Path) -> None:
    """An exception's exit code is kept, its traceback shown, and the run reported."""
    run = observe(out, *OF_TWO, script(tmp_path, "if comm.rank == 1: comm.Abort(41)"))
    assert run.returncode == 41
    assert run.report["schema"] == "hindmost.report/2"
    assert {row["part"] for row in run.report["sections"]["wall_clock"]["parts"]} >= {"set-up", "all"}


def test_a_rank_that_dies_at_step_3(out: Path, tmp_path: Path) -> None:
    """It takes the job with it, as without us. The agent, which watches each rank, names the first that died."""
    job = script(tmp_path, "while comm.rank == 1 and not (watched() and os.kill(os.getpid(), signal.SIGKILL)): pass")
    alone = subprocess.run([*OF_TWO, job], env=environ(), capture_output=True, check=False)
    run = observe(out, *OF_TWO, job)
    assert run.returncode == alone.returncode != 0
    assert re.search(r"rank 1 on \S+ died first", run.report["job"]["ended"])
    assert "(SIGKILL)" in run.report["job"]["ended"]


def test_kill_9_of_hindmost_leaves_nothing(out: Path) -> None:
    """Killing hindmost ends the job, the agent and the collector, and no ring stays in shared memory."""
    job = job_of(out)
    argv = [*HINDMOST, "run", "--out", str(out), "--job-id", job, "--", *OF_TWO, TRAIN_MPI, "--steps", "100000"]
    with subprocess.Popen(argv, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"step" in process.stdout.readline()
        process.kill()
    assert wait_until_gone(job) == {}
    assert not (Path("/dev/shm") / f"hindmost-{os.getuid()}" / job).exists()
    assert (out / "meta.json").exists()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_reaches_the_job_first(out: Path, presses: int) -> None:
    """Ctrl-C in a terminal ends the job as it does alone; once or twice, the summary still comes, and nothing stays."""
    job, command = job_of(out), [*OF_TWO, TRAIN_MPI, "--steps", "100000"]
    alone = _interrupted(command, presses)
    assert alone != 0
    assert _interrupted([*HINDMOST, "run", "--out", str(out), "--job-id", job, "--", *command], presses) == alone
    assert (out / "report.json").exists()
    assert wait_until_gone(job) == {}


def test_sigterm_to_hindmost_ends_the_job(out: Path) -> None:
    """A batch system's SIGTERM goes to the job, whose ending is then reported."""
    job = job_of(out)
    argv = [*HINDMOST, "run", "--out", str(out), "--job-id", job, "--", *OF_TWO, TRAIN_MPI, "--steps", "100000"]
    with subprocess.Popen(argv, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "step" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1]
    assert process.returncode != 0
    assert (out / "report.json").exists(), said
    assert wait_until_gone(job) == {}


def _interrupted(command: list[str], presses: int) -> int:
    """How ``command`` ends when, once it trains, Ctrl-C is pressed in its terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environ())  # noqa: S606 - this is the child, about to become the command
    _read_until(terminal, b"step ")
    for _ in range(presses):
        os.write(terminal, b"\x03")
        time.sleep(0.2)  # a person's fingers
    _read_until(terminal, None)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _read_until(terminal: int, wanted: bytes | None) -> bytes:
    """What the terminal shows until ``wanted`` appears, or until its end."""
    shown = b""
    while wanted is None or wanted not in shown:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            return shown
        if not block:
            return shown
        shown += block
    return shown
