"""Real jobs under a real ``hindmost run``: what the tests here start them with, and how they look for leftovers."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.needs import need
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
TRAIN_MPI = str(ROOT / "examples" / "train_mpi.py")
HINDMOST = [sys.executable, "-m", "hindmost"]
MPIRUN = ["mpirun", "--bind-to", "none", "-np", "4", sys.executable]
#: Where two ranks show as much: four wait on as many cores as there are.
OF_TWO = ["mpirun", "--bind-to", "none", "-np", "2", sys.executable]


#: Ranks share the cores of whatever machine this is; waiting ones give way. Root is allowed: CI containers are root.
MPI_ENVIRON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


#: A stop is reported after 2 s instead of 5: ranks that wait in MPI keep the cores busy meanwhile.
SOON = {"HINDMOST_JUDGE_HANG_SECONDS": "2"}


#: Where the MPI runs of this process keep their sockets: of several at a time in one folder, one in thousands does not
#: start ("The PMIx server's listener thread failed to start").
_TMP = tempfile.TemporaryDirectory(prefix="hindmost-tests-")
Path(_TMP.name).chmod(0o1777)


def environ(**more: str) -> dict[str, str]:
    """The environment of a user who works in this checkout."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    packages = ":".join(str(ROOT / package) for package in ("agent", "collector", "proto"))
    return {**os.environ, **MPI_ENVIRON, "TMPDIR": _TMP.name, "PATH": path, "PYTHONPATH": packages, **more}


@dataclass(frozen=True)
class Observed:
    """A ``hindmost run`` that has ended."""

    returncode: int
    stdout: str
    stderr: str
    out: Path

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "report.json").read_text())
        return found

    @property
    def own_lines(self) -> list[str]:
        """What hindmost itself said while the job ran."""
        return [line for line in self.stderr.splitlines() if line.startswith("hindmost:")]


def observe(out: Path, *command: str, options: tuple[str, ...] = (), **more: str) -> Observed:
    """``hindmost run --out OUT OPTIONS -- COMMAND`` to its end; nothing of it may be running afterwards."""
    argv = [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), *options, "--", *command]
    done = subprocess.run(
        argv, env=environ(**more), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert not wait_until_gone(job_of(out))
    return Observed(done.returncode, done.stdout, done.stderr, out)


@contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    """A small file system of our own, where this user may mount one."""
    need("root", "the right to mount")
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def job_of(out: Path) -> str:
    """A job id that no other test uses: what is left of a job is found by it."""
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{out.parent.name}-{out.name}-{os.getpid()}").strip("-")[-60:].lstrip("-")


def wait_until_gone(job: str, seconds: float = PATIENCE_S) -> dict[int, str]:
    """The processes that belong to this job, by its id in their environment or arguments, once none should be left.

    An agent that starts when its node's ranks have ended, on a busy machine, stays for a minute.
    """
    deadline = time.monotonic() + seconds
    while (left := _processes(job)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _processes(job: str) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if int(entry.name) != os.getpid() and job.encode() in command + environment:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found
