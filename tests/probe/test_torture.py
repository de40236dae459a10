"""The job comes first: however a training process ends or is mistreated, it ends as it would have without hindmost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost.native import build
from hindmost_cli.run import environment

#: A loop that marks its steps where hindmost is there, and trains all the same where it is not.
LOOP = """
import contextlib, glob, os, signal, sys, threading
try:
    from hindmost import phase, step
except ImportError:
    step = phase = contextlib.nullcontext
def train(steps):
    for _ in range(steps):
        with step(), phase("forward"):
            pass
train(50)
"""
ENDINGS = {
    "os._exit": "os._exit(9)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "an exception inside a step": "with step(), phase('forward'): raise ValueError('mine')",
    "sys.exit inside a step": "with step(): sys.exit(5)",
    "an exception in another thread": "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); print('on')",
    "100 threads": (
        "ts = [threading.Thread(target=train, args=(200,)) for _ in range(100)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; train(50); print('all done')"
    ),
    "the ring removed under it": (
        "[os.unlink(f) for f in glob.glob(os.environ['RINGS'] + '/*')]; train(50); print('on')"
    ),
    "a child that goes on": (
        "pid = os.fork()\n"
        "if pid == 0: train(50); sys.exit(4)\n"
        "train(50); print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "a step left open at exit": "kept = step(); kept.__enter__(); print('bye')",
    "a step at interpreter shutdown": (
        "import atexit\natexit.register(train, 10)\n"
        "class Late:\n    def __del__(self): train(10); print('late')\nkept = Late()"
    ),
}


@pytest.fixture(params=["Python", pytest.param("C", marks=pytest.mark.needs("cc"))])
def native(request: pytest.FixtureRequest) -> dict[str, Path]:
    """What ``hindmost run`` has built for the job: nothing, or the shim and the extension."""
    if request.param == "Python":
        return {}
    return {kind: build.library(kind) for kind in ("pmpi", "ring")}


def run(script: str, rings: Path, native: dict[str, Path] | None) -> tuple[int, str, str]:
    """Exit code, stdout and the last line of stderr of a rank that runs the script; unobserved without ``native``."""
    environ = {"PATH": os.environ["PATH"], "RINGS": str(rings), "RANK": "0", "WORLD_SIZE": "2"}
    if native is not None:
        environ |= environment.variables(
            environ, job="job", rings=rings, collector="", launcher="torchrun", native=native
        )
    command = [sys.executable, "-c", LOOP + script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("script", ENDINGS.values(), ids=ENDINGS)
def test_the_job_ends_as_without_hindmost(script: str, tmp_path: Path, native: dict[str, Path]) -> None:
    """Exit code, output and the error's last line are those of the same script unobserved."""
    expected = run(script, tmp_path / "none", None)
    assert run(script, tmp_path / "rings", native) == expected
    assert (tmp_path / "rings").is_dir(), "the second run was not observed"
