"""Runs training scripts on real ranks under the probe, and reads what their rings hold."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import hindmost
import pytest
from hindmost import ring
from hindmost.native import build

from tests.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable

WITH_SLURM = Path(__file__).parents[1] / "with-slurm"
INJECT = Path(hindmost.__file__).parent / "inject"
#: For a job of a few seconds: the machine may be busy with much else.
PATIENCE_S = 240.0
MPIRUN = ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1")


class Trace:
    """What one rank recorded."""

    def __init__(self, path: Path) -> None:
        reader = ring.Reader(path)
        self.header, self.events, self.closed = reader.header, reader.poll(), reader.closed
        self.open = reader.open_records()
        reader.close()

    def count(self, kind: int) -> Counter[str]:
        """Events of a kind by name."""
        return Counter(event.name for event in self.events if event.kind == kind)

    def of(self, kind: int, name: str) -> list[ring.Event]:
        """Events of a kind and name, in order."""
        return [event for event in self.events if (event.kind, event.name) == (kind, name)]

    def total_ms(self, kind: int, name: str) -> float:
        """What such events took together, without the first three: the warm-up."""
        return sum(event.duration_ns for event in self.of(kind, name)[3:]) / 1e6


def launcher(name: str, ranks: int, folder: Path, python: str = sys.executable) -> list[str]:
    """The command that goes before the script; ``folder`` is for a Slurm's files."""
    if name == "torchrun":
        return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    if name == "python":
        return [python]
    if name == "srun":
        need("slurmd", "root")
    need(name)
    program = str(shutil.which(name))
    if name == "srun":
        return [str(WITH_SLURM), str(folder), "127.0.0.1", "--", program, "-n", str(ranks), "--overcommit", python]
    return [program, *(MPIRUN if name == "mpirun" else ("--gloo",)), "-np", str(ranks), python]


@cache
def _warm() -> subprocess.Popen[str]:
    """The server of warm.py, which ends with this process; one for all tests, as it imports torch."""
    line = [sys.executable, str(Path(__file__).with_name("warm.py"))]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, env=environ, start_new_session=True, **pipes)  # type: ignore[call-overload, no-any-return]


def forked(folder: Path, argv: list[str], environs: list[dict[str, str]]) -> list[subprocess.CompletedProcess[str]]:
    """Run a script in each of these environments at once, in processes that have torch already."""
    said = [
        {name: str(folder / f"{name}.{number}") for name in ("stdout", "stderr")} for number in range(len(environs))
    ]
    processes = [{"argv": argv, "environ": environ} | files for environ, files in zip(environs, said, strict=True)]
    server = _warm()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(processes) + "\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], PATIENCE_S)[0]:
        os.killpg(server.pid, signal.SIGKILL)
        _warm.cache_clear()
        raise subprocess.TimeoutExpired(argv, PATIENCE_S)
    ended = json.loads(server.stdout.readline())
    texts = [[Path(one[name]).read_text() for name in ("stdout", "stderr")] for one in said]
    return [subprocess.CompletedProcess(argv, code, *text) for code, text in zip(ended, texts, strict=True)]


def _forked_ranks(
    ranks: int, folder: Path, environ: dict[str, str], argv: list[str]
) -> subprocess.CompletedProcess[str]:
    """A script as plain Python, or as ranks in the environment that torchrun gives its workers."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port()), "WORLD_SIZE": str(ranks)}
    job["TORCHELASTIC_RUN_ID"] = "none"
    places = [{}] if ranks == 1 else [job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    all_done = forked(folder, argv, [environ | place for place in places])
    code = next((done.returncode for done in all_done if done.returncode), 0)
    out, err = "".join(done.stdout for done in all_done), "".join(done.stderr for done in all_done)
    return subprocess.CompletedProcess(argv, code, out, err)


def _port() -> int:
    """One that no system gives to a program that asks for any: it is free until rank 0 listens, seconds later."""
    for port in itertools.count(20_000 + os.getpid() % 10_000):
        with suppress(OSError), socket.create_server(("", port)):
            return port
    raise AssertionError


def ring_module() -> str:
    """The C ring and hooks, as `hindmost run` gives them to a job; empty without a compiler."""
    try:
        return str(build.library("ring"))
    except build.BuildError:
        return ""


def run(
    folder: Path,
    script: Path | str,
    *argv: str,
    ranks: int = 2,
    by: str = "forked",
    native: bool = True,
    shim: bool = False,
    ends: int = 0,
    python: str = sys.executable,
) -> dict[int, Trace]:
    """Each rank's trace of a script, whose files are in ``folder``; its stderr is free of us.

    ``by``: who starts it; ``forked`` is a Python that has imported torch already, and is soonest done.
    ``native``: with the hooks in C, as far as they can be built; ``shim``: with the library that ``hindmost run`` loads
    into ranks. ``ends``: how the script's process does. ``python``: the interpreter that trains.
    """
    if isinstance(script, str):
        path = folder / "script.py"
        path.write_text(textwrap.dedent(script))
        script = path
    environ = {
        **os.environ,
        "PYTHONPATH": str(INJECT),
        "HINDMOST_JOB_ID": "job",
        "HINDMOST_RING_DIR": str(folder / "rings"),
        "HINDMOST_LAUNCHER": by if by != "forked" else "torchrun" if ranks > 1 else "python",
        "HINDMOST_RING_MODULE": ring_module() if native else "",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if shim:
        environ["LD_PRELOAD"] = str(build.library("pmpi"))
    if by == "forked":
        done = _forked_ranks(ranks, folder, environ, [str(script), *argv])
    else:
        command = [*launcher(by, ranks, folder, python), str(script), *argv]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == ends, done.stderr + done.stdout
    assert "hindmost:" not in done.stderr
    traces = [Trace(path) for path in (folder / "rings").glob("*.ring")]
    assert len(traces) == ranks
    return {trace.header.rank: trace for trace in traces}


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., dict[int, Trace]]:
    """``train(script, *argv, ranks=2, by="forked")``: as :func:`run`, in a folder of the test's own."""
    return partial(run, tmp_path)
