"""Which of the newer MPI functions the MPI in use has.

mpi4py asks by weak symbols whether a function exists. A shim that defined one which the library lacks would make it
call what is not there, so the shim defines persistent collectives and large counts only where they are seen to exist.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Compiler flag to the function whose presence calls for it.
FEATURES = {"-DHM_PERSISTENT": b"\0PMPI_Allreduce_init\0", "-DHM_LARGE": b"\0PMPI_Allreduce_c\0"}

#: The sets of flags for which a wheel has a shim: MPI up to 3, Open MPI 5 (MPI 4 without large counts), MPI 4.
VARIANTS = ((), ("-DHM_PERSISTENT",), ("-DHM_PERSISTENT", "-DHM_LARGE"))

#: Names of the library itself, by kind: Open MPI's, and those of MPICH and its kin.
NAMES = {"openmpi": ("libmpi.so.40", "libmpi.so.20", "libmpi.so.80"), "mpich": ("libmpi.so.12", "libmpich.so.12")}

#: What ``mpirun --version`` says, by kind.
SAYS = {"openmpi": ("Open MPI", "OpenRTE"), "mpich": ("HYDRA", "MPICH", "Intel(R) MPI", "MVAPICH")}

#: Where libraries lie, seen from the folder of mpirun.
PLACES = ("../lib", "../lib64", "../lib/release", "../lib/x86_64-linux-gnu", "../lib/aarch64-linux-gnu")


def features(launcher: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The flags with which the shim is built for the MPI that ``launcher`` (an mpirun) belongs to; () when unknown."""
    found = library(launcher, environ)
    return tuple(flag for flag, symbol in FEATURES.items() if found and _contains(found, symbol))


def library(launcher: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The MPI library that belongs to ``launcher``; to the mpirun on PATH where that is no MPI's own; or None.

    What srun, python or horovodrun start may use any MPI of the machine: that of the mpirun at hand is the best guess.
    """
    for program in filter(None, (launcher, _on_path(environ))):
        its = kind(program, environ)
        if its is not None:
            return next((path for folder in _folders(program, environ) for path in _named(folder, its)), None)
    return None


def named(flags: tuple[str, ...]) -> str:
    """What a shim with these flags is called, for those who choose among several that were built.

    One with more than the job's MPI has would fail its calls; ``basic`` fits every MPI.
    """
    return "_".join(flag.removeprefix("-DHM_").lower() for flag in flags) or "basic"


def kind(launcher: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """``openmpi`` or ``mpich``, by what ``mpirun --version`` says of itself; None for what is no MPI's launcher."""
    quiet = {name: value for name, value in environ.items() if name != "LD_PRELOAD"}
    try:
        done = subprocess.run(
            [launcher, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            env=quiet,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next((its for its, words in SAYS.items() if any(word in done.stdout for word in words)), None)


def _on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("mpirun", path=environ.get("PATH")) or shutil.which("mpiexec", path=environ.get("PATH"))
    return Path(found) if found else None


def _folders(launcher: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders to look in, the most telling first: the launcher's own installation, then the loader's."""
    for folder in dict.fromkeys((launcher.absolute().parent, launcher.resolve().parent)):
        yield from (folder / place for place in PLACES)
    yield from (Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    yield from Path("/usr/lib").glob("*-linux-gnu*")


def _named(folder: Path, its: str) -> Iterator[Path]:
    """The libraries in ``folder`` of this kind; a bare libmpi.so may be any MPI's and has to show whose it is."""
    yield from (folder / name for name in NAMES[its] if (folder / name).is_file())
    bare = folder / "libmpi.so"
    if bare.is_file() and _contains(bare, b"\0ompi_mpi_comm_world\0") == (its == "openmpi"):
        yield bare


def _contains(path: Path, text: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0
    except (OSError, ValueError):
        return False
