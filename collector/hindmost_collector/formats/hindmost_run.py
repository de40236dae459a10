"""A run directory that ``hindmost run`` or a collector wrote."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hindmost_judge.verdict import missing_ranks

from hindmost_collector.store import meta
from hindmost_collector.store.parquet.run_directory import read_run, read_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hindmost_judge.model import Run

NAME = "hindmost runs"


def find(folder: Path) -> Path | None:
    """The run directory that ``folder`` is, or holds as its only folder (as an archive does); None where it is none."""
    if not folder.is_dir():
        return None
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    candidates = [folder, *inside] if len(inside) == 1 and inside[0].is_dir() else [folder]
    return next((path for path in candidates if is_run(path)), None)


#: A collector writes every few seconds while a job goes on: after so long without a file there is none any more.
_ABANDONED_S = 600.0


def load(folder: Path, now: Callable[[], float] = time.time) -> Run:
    """What the run directory recorded."""
    run = missing_ranks.with_missing(read_run(folder))
    written = max((path.stat().st_mtime for path in folder.glob("segments/*")), default=0.0)
    return replace(run, job=replace(run.job, abandoned=run.job.ended_ns is None and now() - written > _ABANDONED_S))


def load_together(folders: Sequence[Path]) -> Run:
    """What the run directories of one job recorded, each written by another collector."""
    return missing_ranks.with_missing(read_together(folders))


def is_run(folder: Path) -> bool:
    """Whether this folder itself is a run directory."""
    if (folder / "segments").is_dir():
        return True
    return meta.is_ours(folder)
