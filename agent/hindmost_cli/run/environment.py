"""What a training process finds in its environment. Nothing of the user's is overwritten: ours goes in front."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hindmost
from hindmost.native import build

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: What is lost without each of the C parts.
MISSING = {
    "pmpi": "MPI calls are timed from Python only",
    "nccl": "NCCL operations are not measured",
    "ring": "the probe's hooks run in Python, which slows steps more",
}

INJECT = Path(hindmost.__file__).parent / "inject"


def variables(
    environ: Mapping[str, str], *, job: str, rings: Path, collector: str, launcher: str, native: Mapping[str, Path]
) -> dict[str, str]:
    """The variables to set for the command, as docs/reference/environment.md lists them.

    ``native`` maps ``pmpi``, ``nccl`` and ``ring`` to built libraries; a missing one is not injected.
    """
    found = {
        "HINDMOST_JOB_ID": job,
        "HINDMOST_RING_DIR": str(rings),
        "HINDMOST_COLLECTOR": collector,
        "HINDMOST_PYTHON": sys.executable,
        "HINDMOST_LAUNCHER": launcher,
        "HINDMOST_INJECT": str(INJECT),
        "PYTHONPATH": in_front(str(INJECT), environ.get("PYTHONPATH", ""), ":"),
    }
    if "pmpi" in native:
        found["LD_PRELOAD"] = in_front(str(native["pmpi"]), environ.get("LD_PRELOAD", ""), ":")
    else:
        found["HINDMOST_MPI"] = "python"
    if "nccl" in native and not environ.get("NCCL_PROFILER_PLUGIN"):
        found["NCCL_PROFILER_PLUGIN"] = str(native["nccl"])
    if "ring" in native:
        found["HINDMOST_RING_MODULE"] = str(native["ring"])
    carried = ("HINDMOST_RING_CAPACITY", "HINDMOST_PROBE")
    return found | {name: environ[name] for name in carried if name in environ}


def in_front(ours: str, theirs: str, separator: str) -> str:
    """``ours``, then what the user had; nothing twice when ``hindmost run`` is nested."""
    rest = [part for part in theirs.split(separator) if part != ours] if theirs else []
    return separator.join([ours, *rest])


def native_libraries(
    kinds: Iterable[str], environ: Mapping[str, str], program: Path
) -> tuple[dict[str, Path], list[str]]:
    """The C parts that this job can use, built at first use; and a sentence for each reason why some are missing.

    ``program`` is the launcher: which MPI it belongs to decides what the shim wraps.
    """
    found: dict[str, Path] = {}
    lost: dict[str, list[str]] = {}
    for kind in kinds:
        try:
            found[kind] = build.library(kind, environ, program)
        except build.BuildError as error:  # noqa: PERF203 - three rounds
            lost.setdefault(str(error), []).append(MISSING[kind])
    notes = [f"{'; '.join(missing)}: {why}" for why, missing in lost.items()]
    theirs = environ.get("NCCL_PROFILER_PLUGIN")
    if "nccl" in found and theirs and theirs != str(found["nccl"]):
        notes.append(f"{MISSING['nccl']}: NCCL_PROFILER_PLUGIN={theirs} is already set; unset it to use hindmost's")
    return found, notes
