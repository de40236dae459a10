"""A wheel from `dist` in fresh environments, on a PATH without any compiler."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import programs

ROOT = Path(__file__).parents[2]

#: What Open MPI wants of ranks that share cores, and of root.
OPEN_MPI = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


class Installed(NamedTuple):
    """An environment with hindmost in it."""

    bin: Path
    environ: dict[str, str]

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.bin / "python")

    def run(self, *command: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            command, cwd=cwd, env=self.environ | environ, capture_output=True, text=True, timeout=200, check=False
        )


def interpreter(version: str) -> Path | None:
    """A CPython of this version, from PATH, pyenv or `make python-newer`."""
    named = [shutil.which(f"python{version}"), str(ROOT / f".cache/python{version}/bin/python{version}")]
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for program in filter(None, [*named, *map(str, pyenv)]):
        if Path(program).exists():
            said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
            if re.fullmatch(rf"Python {re.escape(version)}\.\d+\s*", said):
                return Path(program)
    return None


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel for this machine."""
    found = list((ROOT / "dist").glob(f"hindmost-*_{platform.machine()}.whl"))
    assert len(found) == 1, "run `make wheel` first"
    return found[0]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without a compiler, an MPI, a Python, or anything of this shell's."""
    folder = tmp_path_factory.mktemp("bare")
    programs.hide(folder / "bin")
    for program in (folder / "bin").iterdir():
        if re.match(r"mpi|or(te|ted)|prte|python|uv|pip|hindmost|.*-(gcc|g\+\+|cpp)", program.name):
            program.unlink()
    (folder / "home").mkdir()
    return {"PATH": str(folder / "bin"), "HOME": str(folder / "home"), **OPEN_MPI}


@pytest.fixture(scope="session")
def install(wheel: Path, bare: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Installed]:
    """Install the wheel for a Python version; further packages by name. The environment has no MPI compiler either."""
    made: dict[str, Installed] = {}

    def make(version: str, *packages: str) -> Installed:
        if version not in made:
            base = interpreter(version)
            if base is None:
                pytest.skip(f"needs python{version}")
            folder = tmp_path_factory.mktemp(f"python{version}") / "venv"
            uv = [str(Path(sys.executable).parent / "uv")]
            subprocess.run([*uv, "venv", "-q", "--python", str(base), str(folder)], check=True)
            line = [*uv, "pip", "install", "-q", "--python", str(folder / "bin/python"), f"{wheel}[all]", *packages]
            subprocess.run(line, check=True)
            for program in (folder / "bin").glob("mpi[cCf]*"):
                program.unlink()
            made[version] = Installed(folder / "bin", bare | {"PATH": f"{folder / 'bin'}:{bare['PATH']}"})
        return made[version]

    return make


@pytest.fixture(scope="session")
def from_source(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """This tree's own environment, whose hindmost has to compile."""
    folder = Path(sys.executable).parent
    home = tmp_path_factory.mktemp("from-source")
    return Installed(folder, {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(home), **OPEN_MPI})
