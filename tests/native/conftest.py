"""What the native tests share: a compiler, and rings read back."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.native import build

from tests.native.mpi_job import Mpi

HERE = Path(__file__).parent

#: Other MPIs than the one on PATH to test with: the folders of their mpirun, mpicc and (for mpi4py) python.
ASKED = os.environ.get("HINDMOST_TEST_MPI", "")
OTHERS = [Path(folder) for folder in ASKED.split(":") if folder]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a C program of this folder, once; ``compiled("nccl_host.c", *flags)``.

    In ``HINDMOST_TEST_PROGRAMS`` it may lie compiled already: without a compiler prebuilt libraries are tested so.
    """
    folder = Path(os.environ.get("HINDMOST_TEST_PROGRAMS") or tmp_path_factory.mktemp("programs"))

    def compile_program(source: str, *flags: str) -> Path:
        target = folder / source.partition(".")[0]
        if not target.exists():
            line = [*build.compiler(), *flags, "-O2", "-I", str(build.SOURCES), str(HERE / source), "-o", str(target)]
            subprocess.run([*line, "-ldl", "-pthread"], check=True)
        return target

    return compile_program


@pytest.fixture
def observed(tmp_path: Path) -> dict[str, str]:
    """The environment of a rank under observation, without a launcher's variables; rings go to ``tmp_path/rings``."""
    launchers = ("OMPI_", "PMI", "PMIX_", "SLURM_", "HINDMOST_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "HOROVOD_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    kept = {name: value for name, value in os.environ.items() if name.startswith("OMPI_ALLOW_RUN_AS_ROOT")}
    rings = tmp_path / "rings"
    return clean | kept | {"HINDMOST_JOB_ID": "job-1", "HINDMOST_RING_DIR": str(rings)}


@pytest.fixture
def rings(tmp_path: Path) -> Callable[[], list[ring.Reader]]:
    """A reader for every ring that was made, by rank."""

    def read() -> list[ring.Reader]:
        readers = [ring.Reader(path) for path in (tmp_path / "rings").glob("*.ring")]
        return sorted(readers, key=lambda reader: reader.header.rank)

    return read


@pytest.fixture(scope="module", params=[None, *OTHERS], ids=lambda path: path.parent.name if path else "default")
def installed(request: pytest.FixtureRequest) -> Mpi:
    """The MPI on PATH, and those of ``HINDMOST_TEST_MPI``."""
    folder: Path | None = request.param
    launcher = folder / "mpirun" if folder else Path(shutil.which("mpirun") or "")
    if not launcher.is_file():
        pytest.skip("needs mpirun")
    python = launcher.parent / "python" if folder else Path(sys.executable)
    return Mpi(
        launcher,
        launcher.parent / "mpicc",
        python,
        build.library("pmpi", launcher=launcher),
        "-DHM_PERSISTENT" in build.features(launcher),
    )


@pytest.fixture(scope="module")
def program(installed: Mpi, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mpi_program.c, compiled with this MPI's own compiler."""
    target = tmp_path_factory.mktemp("program") / "mpi_program"
    flags = ["-DHM_PERSISTENT"] if installed.persistent else []
    source = str(HERE / "mpi_program.c")
    subprocess.run([str(installed.compiler), "-O1", *flags, source, "-o", str(target)], check=True)
    return target
