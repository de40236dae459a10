"""What is wrong around a job costs one clear line, never the job."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import run_directory

from tests.cluster.jobs import HINDMOST, OF_TWO, TRAIN_MPI, environ, job_of, mounted, observe, wait_until_gone

pytestmark = [pytest.mark.cluster, pytest.mark.uses("cc", "unshare")]

JOB = (sys.executable, "-c", "print('trained'); raise SystemExit(5)")


FILL = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
"""


def test_a_port_in_use(out: Path) -> None:
    """A port in use by another process is named; the job runs and keeps its exit code."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = observe(out, *JOB, options=("--listen", f"127.0.0.1:{port}"))
    assert (run.returncode, run.stdout) == (5, "trained\n")
    assert len(run.own_lines) == 1
    assert str(port) in run.own_lines[0]
    assert "in use" in run.own_lines[0]


def test_a_read_only_directory(tmp_path: Path) -> None:
    """A directory that cannot be written is named; the run is kept elsewhere and still reported."""
    with mounted(tmp_path / "ro", "ro") as where:
        run = observe(where / "run", *JOB, TMPDIR=str(tmp_path))
    assert (run.returncode, run.stdout) == (5, "trained\n")
    assert f"{where / 'run'}: Read-only file system; recording into " in run.own_lines[0]
    assert any(tmp_path.glob("hindmost-*/report.json"))


def test_a_full_directory(tmp_path: Path) -> None:
    """A file system without room is named before the job starts; the run is kept elsewhere and still reported."""
    with mounted(tmp_path / "full", "size=256k") as where:
        run = observe(where / "run", *JOB, TMPDIR=str(tmp_path))
    assert (run.returncode, run.stdout) == (5, "trained\n")
    assert "No space left on device" in run.own_lines[0]
    assert any(tmp_path.glob("hindmost-*/report.json"))


@pytest.mark.needs("mpirun")
def test_a_directory_that_fills_up(tmp_path: Path) -> None:
    """When the disk fills while the job runs, the job goes on; a verdict from memory follows."""
    with mounted(tmp_path / "small", "size=2m") as where:
        job = f'{sys.executable} -c "$FILL" {where}/filler; exec {" ".join(OF_TWO)} {TRAIN_MPI} --steps 120'
        run = observe(where / "run", "bash", "-c", job, FILL=FILL)
        assert run.returncode == 0
        assert "step   100  loss" in run.stdout
        assert "ms per step" in run.stderr, run.stderr
        assert "rank" in run.stderr


@pytest.mark.needs("the right to mount")
@pytest.mark.parametrize(
    ("options", "says"), [("size=64k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_shared_memory_that_is_full_or_read_only(out: Path, options: str, says: str) -> None:
    """Ranks have no place for their rings: that is said, and the job prints and ends as ever."""
    inside = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} none /dev/shm && exec "$@"', "sh"]
    command = [*inside, *HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--", *JOB]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "trained\n")
    own = [line for line in done.stderr.splitlines() if line.startswith("hindmost:")]
    assert any(says in line for line in own), own
    assert wait_until_gone(job_of(out)) == {}


def test_a_job_without_a_rank(out: Path) -> None:
    """A command in which no rank was seen is said to be that."""
    run = observe(out, "sh", "-c", "exit 3")
    assert run.returncode == 3
    assert [verdict["kind"] for verdict in run.report["verdicts"]] == ["insufficient_data"]


def test_a_python_that_does_not_train_is_said_to_be_that(out: Path) -> None:
    """Where the probe was in, nothing is said of environments or options that would have kept it out."""
    busy = "import time\nwhile time.process_time() < 2.5: pass"
    run = observe(out, "sh", "-c", f"{sys.executable} -c '{busy}'; exit 0")
    (verdict,) = run.report["verdicts"]
    assert "without a step or a collective" in verdict["evidence"][0]
    (used,) = run.report["sections"]["hosts"]["ranks"]
    assert used["memory"] > 0, "what it used is said all the same"


def test_hindmost_that_cannot_start(out: Path, tmp_path: Path) -> None:
    """Where the collector cannot start, one line says why, the job runs, and its secret is removed."""
    (tmp_path / "grpc.py").write_text("raise ImportError('grpc is broken here')")
    run = observe(out, *JOB, PYTHONPATH=f"{tmp_path}:{environ()['PYTHONPATH']}")
    assert (run.returncode, run.stdout) == (5, "trained\n")
    assert len(run.own_lines) == 1
    assert "the job runs unobserved" in run.own_lines[0]
    assert not (out / "credentials").exists()


def test_two_runs_do_not_mix(out: Path) -> None:
    """A directory that holds a run is not written into again; the second run is kept elsewhere, and says where."""
    run_directory([simulate(Scenario(2, 12)).run], out)
    run = observe(out, *JOB, TMPDIR=str(out.parent))
    assert run.returncode == 5
    assert "contains a run; recording into " in run.own_lines[0]
    assert any(out.parent.glob("hindmost-*/report.json"))
