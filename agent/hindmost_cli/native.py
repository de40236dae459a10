"""``hindmost native build``: build the C libraries that a wheel did not bring, now rather than at first use."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import HindmostError, UsageError
from hindmost.native import build

if TYPE_CHECKING:
    import argparse

WHAT = {
    "pmpi": "times MPI calls (LD_PRELOAD)",
    "nccl": "times NCCL operations (NCCL_PROFILER_PLUGIN)",
    "ring": "writes events and hooks torch, in any CPython that has the GIL (HINDMOST_RING_MODULE)",
}


EPILOG = """\
examples:
  hindmost native build
  hindmost native build pmpi --mpirun /opt/openmpi/bin/mpirun"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``hindmost native``."""
    parser.epilog = EPILOG
    parser.add_argument(
        "action", choices=["build"], help="build the libraries that are neither prebuilt nor in the cache"
    )
    parser.add_argument("kind", nargs="*", default=[], metavar="KIND", help=f"one of {', '.join(WHAT)} (default: all)")
    parser.add_argument("--mpirun", metavar="PATH", help="build for the MPI of this mpirun (default: mpirun on PATH)")


def run(args: argparse.Namespace) -> int:
    """Build each library and print where it lies; exit code 1 when one could not be built."""
    launcher = _launcher(args.mpirun)
    failed = [kind for kind in _kinds(args.kind) if not _built(kind, launcher)]
    if failed:
        raise HindmostError(f"not built: {', '.join(failed)}; jobs run without them")
    return 0


def _kinds(asked: list[str]) -> list[str]:
    unknown = [kind for kind in asked if kind not in WHAT]
    if unknown:
        raise UsageError(f"{unknown[0]}: no such library; there are {', '.join(WHAT)}")
    return asked or list(WHAT)


def _launcher(asked: str | None) -> Path | None:
    if asked is None:
        return None
    found = shutil.which(asked)
    if found is None:
        raise UsageError(f"--mpirun {asked}: no such program; give its path")
    return Path(found)


def _built(kind: str, launcher: Path | None) -> bool:
    try:
        path = build.library(kind, launcher=launcher)
    except build.BuildError as error:
        print(f"{kind:<5} {WHAT[kind]}: {error}")
        return False
    print(f"{kind:<5} {WHAT[kind]}, {'prebuilt' if build.is_prebuilt(path) else 'built here'}: {path}")
    if kind == "pmpi":
        print(f"{'':<5} {_fits(launcher)}")
    return True


def _fits(launcher: Path | None) -> str:
    """Which MPI the shim fits, in words."""
    found = build.mpi_library(launcher)
    if found is None:
        return "no MPI library found next to mpirun: only the calls that every MPI has are timed; set --mpirun PATH"
    flags = build.features(launcher)
    more = [text for flag, text in (("-DHM_PERSISTENT", "persistent"), ("-DHM_LARGE", "large-count")) if flag in flags]
    return f"for {found}" + (f", with its {' and '.join(more)} collectives" if more else "")
