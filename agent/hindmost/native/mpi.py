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

#: Names of the library itself, by kind: Open MPI's, and those of MPICH and its kin.
NAMES = {"openmpi": ("libmpi.so.40", "libmpi.so.20", "libmpi.so.80"), "mpich": ("libmpi.so.12", "libmpich.so.12")}

#: Where libraries lie, seen from the folder of mpirun.
PLACES = ("../lib", "../lib64", "../lib/release", "../lib/x86_64-linux-gnu", "../lib/aarch64-linux-gnu")


def features(launcher: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The flags with which the shim is built for the MPI that ``launcher`` (an mpirun) belongs to; () when unknown."""
    found = library(launcher, environ)
    return tuple(flag for flag, symbol in FEATURES.items() if found and _contains(found, symbol))


def library(launcher: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The MPI library that belongs to ``launcher``, or to the mpirun on PATH; None when none is found."""
    launcher = launcher or _on_path(environ)
    if launcher is None:
        return None
    names = NAMES[kind(launcher, environ)]
    return next((path for folder in _folders(launcher, environ) for path in _named(folder, names)), None)


def kind(launcher: Path, environ: Mapping[str, str] = os.environ) -> str:
    """``openmpi`` or ``mpich``, by what ``mpirun --version`` says of itself."""
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
        return "mpich"
    return "openmpi" if "Open MPI" in done.stdout or "OpenRTE" in done.stdout else "mpich"


def _on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("mpirun", path=environ.get("PATH")) or shutil.which("mpiexec", path=environ.get("PATH"))
    return Path(found) if found else None


def _folders(launcher: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Folders to look in, the most telling first: the launcher's own installation, then the loader's."""
    for folder in dict.fromkeys((launcher.absolute().parent, launcher.resolve().parent)):
        yield from (folder / place for place in PLACES)
    yield from (Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    yield from Path("/usr/lib").glob("*-linux-gnu*")


def _named(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    return (folder / name for name in (*names, "libmpi.so") if (folder / name).is_file())


def _contains(path: Path, text: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0
    except (OSError, ValueError):
        return False
