"""The C libraries: prebuilt ones from the wheel; else built with the machine's compiler and kept in the user's cache.

Neither needs a header of Python, MPI, CUDA or NCCL. A library's file name carries a hash of its sources and flags (in
the cache of the compiler too), so one that was built from other sources is never loaded. Two builders at once do the
work twice and agree, because a library appears under its name by rename only.

The MPI shim has those of the newer functions that the MPI in use has. mpi4py asks by weak symbols whether a function
exists. A shim that defined one which the library lacks would make it call what is not there, so the shim defines
persistent collectives and large counts only where they are seen to exist.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import HindmostError
from hindmost.ring.native import ABI

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
    found = mpi_library(launcher, environ)
    return tuple(flag for flag, symbol in FEATURES.items() if found and _contains(found, symbol))


def mpi_library(launcher: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
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


SOURCES = Path(__file__).parent

#: Where a wheel has its prebuilt libraries; an editable or pure-Python installation has no such folder.
PREBUILT = SOURCES / "prebuilt"

#: The libraries and what they are made of, by file name pattern.
KINDS: Mapping[str, tuple[str, ...]] = {
    "pmpi": (
        "pmpi*.c",
        "horovod_cycles.c",
        "tensorflow_calls.c",
        "mpi_library.c",
        "ring_create.c",
        "identity_env.c",
        "agent_start.c",
        "python_entry.c",
    ),
    "nccl": ("nccl_*.c", "ring_create.c", "identity_env.c"),
    "ring": ("_ring.c", "_hook*.c", "_stamp.c", "torch_steps.c"),
}

FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread")
TIMEOUT_S = 120


class BuildError(HindmostError):
    """A library could not be built: one line that says why and what to do."""


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where built libraries are kept: ``$XDG_CACHE_HOME/hindmost`` or ``~/.cache/hindmost``."""
    home = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(home, "hindmost")


def compiler(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The C compiler's command, from ``$CC``, or cc, gcc or clang on PATH. Raises BuildError when there is none."""
    wanted = environ.get("CC", "").split()
    for command in (wanted, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0], path=environ.get("PATH")):
            return command
    raise BuildError("there is no C compiler (cc) on PATH: install gcc, set CC, or install a wheel of hindmost")


def library(kind: str, environ: Mapping[str, str] = os.environ, launcher: Path | None = None) -> Path:
    """The path of the library ``kind``, one of ``KINDS``: the prebuilt one, else one from the cache, else built now.

    ``launcher`` is the job's mpirun, where there is one: the PMPI shim fits its MPI (by default the one on PATH).
    Raises BuildError, one line with the remedy, when it cannot be built or kept.
    """
    flags = features(launcher, environ) if kind == "pmpi" else ()
    shipped = PREBUILT / prebuilt_name(kind, flags, platform.machine())
    if shipped.exists():
        return _preloadable(shipped, environ)
    command = [*compiler(environ), *FLAGS, *flags]
    key = _key(kind, [*command, platform.machine(), *platform.libc_ver()])
    target = cache_directory(environ) / f"{_stem(kind, flags)}-{key}.so"
    if not target.exists():
        with _atomic_write(target) as made:
            compile_library(kind, command, made, environ)
    return target


def is_prebuilt(path: Path) -> bool:
    """Whether a library came with the wheel, rather than from this machine's compiler."""
    return (PREBUILT / path.name).exists()


def wheel_has_all() -> bool:
    """Whether every library is prebuilt for this machine, so that no compiler is needed."""
    names = (prebuilt_name(kind, flags, platform.machine()) for kind, flags in variants())
    return all((PREBUILT / name).exists() for name in names)


def variants() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each library that a wheel holds, and its flags: the shim for every set of functions that an MPI has."""
    for kind in KINDS:
        for flags in VARIANTS if kind == "pmpi" else ((),):
            yield kind, flags


def prebuilt_name(kind: str, flags: tuple[str, ...], machine: str) -> str:
    """The file name in a wheel for ``machine`` (``x86_64``, ``aarch64``) of a library that is made of these sources."""
    return f"{_stem(kind, flags)}-{_key(kind, [*FLAGS, *flags, machine])}.so"


def compile_library(kind: str, command: list[str], target: Path, environ: Mapping[str, str]) -> None:
    """Compile ``kind`` into ``target`` with this compiler and its flags. Raises BuildError."""
    _compile([*command, "-o", str(target), *map(str, _files(kind)), "-ldl"], environ)


def _stem(kind: str, flags: tuple[str, ...]) -> str:
    return {"ring": f"ring-{ABI}", "pmpi": f"pmpi-{named(flags)}"}.get(kind, kind)


def _files(kind: str) -> list[Path]:
    return sorted(path for pattern in KINDS[kind] for path in SOURCES.glob(pattern))


def _key(kind: str, made_by: list[str]) -> str:
    """16 hex digits that change when the library would."""
    digest = hashlib.sha256(repr(made_by).encode())
    for path in [*_files(kind), *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _preloadable(shipped: Path, environ: Mapping[str, str]) -> Path:
    """A path that LD_PRELOAD can name: at a space or a colon it would end, so from there the library is copied."""
    if not any(mark in str(shipped) for mark in " :"):
        return shipped
    target = cache_directory(environ) / shipped.name
    if not target.exists():
        with _atomic_write(target) as made:
            shutil.copyfile(shipped, made)
    return target


@contextmanager
def _atomic_write(target: Path) -> Iterator[Path]:
    """A path to write a library to, which then appears as ``target`` in the cache, whole."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as directory:
            made = Path(directory, target.name)
            yield made
            made.replace(target)
    except OSError as error:
        raise BuildError(f"{target.parent}: cannot keep built libraries here: {error.strerror}") from error


def _compile(command: list[str], environ: Mapping[str, str]) -> None:
    without_preload = {name: value for name, value in environ.items() if name != "LD_PRELOAD"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env=without_preload,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {TIMEOUT_S} s to build {command[-2]}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise BuildError(f"{command[0]} failed ({done.returncode}): {lines[0].strip()}")
