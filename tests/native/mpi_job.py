"""Jobs of four MPI ranks, with the PMPI shim and without: how they are started, and what their rings hold."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from hindmost import ring
from hindmost.native import build

HERE = Path(__file__).parent

#: CI runs as root, which Open MPI asks about.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Mpi(NamedTuple):
    """One MPI installation."""

    launcher: Path
    compiler: Path
    python: Path
    shim: Path
    persistent: bool

    def line(self, environ: dict[str, str], *command: str) -> list[str]:
        """mpirun with four ranks on few cores, the shim preloaded into the ranks."""
        if build.kind(self.launcher) == "mpich":
            return [str(self.launcher), "-np", "4", "-genv", "LD_PRELOAD", environ["PRELOAD"], *command]
        crowded = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        carried = [word for name in environ if name.startswith("HINDMOST_") for word in ("-x", name)]
        return [str(self.launcher), *crowded, *carried, "-x", f"LD_PRELOAD={environ['PRELOAD']}", "-np", "4", *command]


class Ran(NamedTuple):
    """A job that has ended, and what its ranks left behind, by rank."""

    code: int
    output: str
    errors: str
    events: list[list[ring.Event]]
    readers: list[ring.Reader]


def launch(installed: Mpi, environ: dict[str, str], *command: str, preload: bool = True) -> Ran:
    """Run four ranks, observed or not."""
    environ = environ | AS_ROOT | {"PRELOAD": str(installed.shim) if preload else ""}
    line = installed.line(environ, *command)
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=400, check=False)
    paths = list(Path(environ["HINDMOST_RING_DIR"]).glob("*.mpi.*.ring"))  # an installed probe makes rings of its own
    readers = sorted((ring.Reader(path) for path in paths), key=lambda reader: reader.header.rank)
    return Ran(done.returncode, done.stdout, done.stderr, [reader.poll() for reader in readers], readers)


def of(events: list[ring.Event], kind: int, *names: str) -> list[ring.Event]:
    """The events of a kind, of these names if any are given."""
    return [e for e in events if e.kind == kind and (not names or e.name in names)]


def needs_mpi4py(installed: Mpi) -> None:
    """Skip where this MPI has no python that can use it."""
    probe = [str(installed.python), "-c", "import mpi4py, numpy"]
    if not installed.python.exists() or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"needs mpi4py: no python next to {installed.launcher} has it and numpy")
