"""Build the C libraries with the machine's compiler at first use, and keep them in the user's cache.

What is built needs no header of Python, MPI, CUDA or NCCL, only a compiler. The cache is keyed by the
sources, the compiler and the flags; two builders at once do the work twice and agree, because a library appears under
its name by rename only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import HindmostError
from hindmost.native import mpi
from hindmost.ring.native import ABI

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES = Path(__file__).parent

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
    "ring": ("_ring.c", "_hook*.c", "_stamp.c", "recognise.c"),
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
    raise BuildError("there is no C compiler (cc) on PATH: install gcc or clang, or set CC")


def library(kind: str, environ: Mapping[str, str] = os.environ, launcher: Path | None = None) -> Path:
    """The path of the built library ``kind``, one of ``KINDS``; built now if it is not in the cache.

    ``launcher`` is the job's mpirun, where there is one: the PMPI shim fits its MPI (by default the one on PATH).
    Raises BuildError, one line with the remedy, when it cannot be built or kept.
    """
    flags = mpi.features(launcher, environ) if kind == "pmpi" else ()
    command = [*compiler(environ), *FLAGS, *flags]
    name = {"ring": f"ring-{ABI}", "pmpi": f"pmpi-{mpi.named(flags)}"}.get(kind, kind)
    target = cache_directory(environ) / f"{name}-{_key(kind, command)}.so"
    if not target.exists():
        _build(command, _files(kind), target, environ)
    return target


def _files(kind: str) -> list[Path]:
    return sorted(path for pattern in KINDS[kind] for path in SOURCES.glob(pattern))


def _key(kind: str, command: list[str]) -> str:
    """16 hex digits that change when the library would."""
    digest = hashlib.sha256(repr((command, platform.machine(), platform.libc_ver())).encode())
    for path in [*_files(kind), *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(command: list[str], files: list[Path], target: Path, environ: Mapping[str, str]) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as directory:
            made = Path(directory, target.name)
            _compile([*command, "-o", str(made), *map(str, files), "-ldl"], environ)
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
