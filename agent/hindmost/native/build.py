"""The C libraries: prebuilt ones from the wheel; else built with the machine's compiler and kept in the user's cache.

Neither needs a header of Python, MPI, CUDA or NCCL. A library's file name carries a hash of its sources and flags (in
the cache of the compiler too), so one that was built from other sources is never loaded. Two builders at once do the
work twice and agree, because a library appears under its name by rename only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import HindmostError
from hindmost.native import mpi
from hindmost.ring.native import ABI

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    flags = mpi.features(launcher, environ) if kind == "pmpi" else ()
    shipped = PREBUILT / prebuilt_name(kind, flags, platform.machine())
    if shipped.exists():
        return _preloadable(shipped, environ)
    command = [*compiler(environ), *FLAGS, *flags]
    key = _key(kind, [*command, platform.machine(), *platform.libc_ver()])
    target = cache_directory(environ) / f"{_stem(kind, flags)}-{key}.so"
    if not target.exists():
        with _kept(target) as made:
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
        for flags in mpi.VARIANTS if kind == "pmpi" else ((),):
            yield kind, flags


def prebuilt_name(kind: str, flags: tuple[str, ...], machine: str) -> str:
    """The file name in a wheel for ``machine`` (``x86_64``, ``aarch64``) of a library that is made of these sources."""
    return f"{_stem(kind, flags)}-{_key(kind, [*FLAGS, *flags, machine])}.so"


def compile_library(kind: str, command: list[str], target: Path, environ: Mapping[str, str]) -> None:
    """Compile ``kind`` into ``target`` with this compiler and its flags. Raises BuildError."""
    _compile([*command, "-o", str(target), *map(str, _files(kind)), "-ldl"], environ)


def _stem(kind: str, flags: tuple[str, ...]) -> str:
    return {"ring": f"ring-{ABI}", "pmpi": f"pmpi-{mpi.named(flags)}"}.get(kind, kind)


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
        with _kept(target) as made:
            shutil.copyfile(shipped, made)
    return target


@contextmanager
def _kept(target: Path) -> Iterator[Path]:
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
