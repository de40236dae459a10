"""The shim's view of Horovod's own thread, with a library that naps and reads the clock as Horovod does."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost.native import build

pytestmark = [pytest.mark.needs("cc"), pytest.mark.timeout(120)]

#: In a process with the shim: run cycles, and say what the library knows of them and what the probe reads.
PROGRAM = """
import ctypes, json, sys
from types import SimpleNamespace
from hindmost.probes import horovod_cycles
library = ctypes.CDLL(sys.argv[1])
frontend = SimpleNamespace(mpi_ops=SimpleNamespace(_basics=SimpleNamespace(MPI_LIB_CTYPES=library)))
cycles = horovod_cycles.watch(frontend)
if cycles is None:
    sys.exit("no shim")
library.run_cycles(20)
number = ctypes.c_int.in_dll(library, "cycles").value
begun = list((ctypes.c_int64 * 64).in_dll(library, "begun"))[:number]
words = cycles._words
print(json.dumps({"begun": begun, "count": words[horovod_cycles.CYCLES], "yielded": words[horovod_cycles.YIELDED],
                  "parts": [cycles.negotiation(begun[7], begun[n] + 50_000) for n in (9, 10, 12)]}))
"""


@pytest.fixture
def library(compiled: Callable[..., Path]) -> Path:
    """The stand-in, which leaves the clock to libstdc++ as Horovod does: to the shim, here."""
    return compiled("horovod_thread.c", "-shared", "-fPIC")


def run(library: Path, environ: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    python = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PROGRAM, str(library)]
    return subprocess.run(command, env=environ | python | more, capture_output=True, text=True, timeout=60, check=False)


def test_cycles_are_seen_from_the_first_nap_on(library: Path, observed: dict[str, str]) -> None:
    """The one before the first nap is not; those too long for a nap afterwards are, each at the time it began."""
    done = run(library, observed, LD_PRELOAD=str(build.library("pmpi")))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["count"] == len(told["begun"]) - 1
    expected = [told["begun"][n] - told["begun"][7] for n in (9, 10, 12)]
    assert told["parts"] == expected
    assert told["begun"][1] < told["yielded"] <= told["begun"][-1] + 50_000_000


def test_without_the_shim_nothing_is_measured(library: Path, observed: dict[str, str]) -> None:
    """The probe says so before it asks for anything."""
    unresolved = {"LD_PRELOAD": "libstdc++.so.6"}  # the stand-in's clock
    assert run(library, observed, **unresolved).stderr.strip() == "no shim"
