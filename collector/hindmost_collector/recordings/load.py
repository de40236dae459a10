"""Recordings of any format: :func:`load` finds out which it is, and joins what several files say."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import UsageError
from hindmost_judge.verdict import missing_ranks

from hindmost_collector.formats import registry, steps_jsonl, straggler_analysis
from hindmost_collector.recordings.combine import combine
from hindmost_collector.recordings.trace_files import UNREAD, Sample, is_archive, read_undamaged, sample, unpacked, walk
from hindmost_collector.store import meta
from hindmost_collector.store.clickhouse.client import is_url
from hindmost_collector.store.parquet.run_directory import read_run, read_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hindmost_judge.model import Run

#: The common name of run directories.
RUN_DIRECTORIES = "hindmost runs"
#: A collector writes every few seconds while a job goes on: after so long without a file there is none any more.
_ABANDONED_S = 600.0


def load(path: Path | str) -> Run:
    """A recorded run: a run directory, a folder of foreign files, one such file, an archive of them, or the URL of a
    ClickHouse database.

    Files of several formats in one folder are taken as the same run seen several ways and combined. Raises
    :class:`UsageError` naming what was found where nothing is understood.
    """
    if is_url(path):
        from hindmost_collector.store.clickhouse.reading import ClickHouseRecording  # noqa: PLC0415 - where used

        return ClickHouseRecording(str(path)).run()
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; give a run directory or a folder of traces")
    with unpacked(path) as folder:
        return _load(path, folder)


def _load(path: Path, folder: Path) -> Run:
    own = find_run_directory(folder)
    if own is not None:
        return load_run_directory(own)
    if (runs := several_runs(folder)) is not None:
        raise UsageError(runs)
    files = walk(folder)
    formats = registry()
    found: dict[str, list[Path]] = {form.NAME: [] for form in formats}
    strangers: list[Sample] = []
    for file in files:
        head = sample(file)
        owner = next((form.NAME for form in formats if form.recognises(head)), None)
        if owner is None:
            strangers.append(head)
        else:
            found[owner].append(file)
    if len(strangers) == len(files):
        if (only := only_archive(files)) is not None:
            return load(only)
        raise UsageError(several_archives(path, files) or _nothing_understood(path, strangers))
    met = [form for form in formats if found[form.NAME]]
    views, damage = read_undamaged(met, lambda form: form.load(found[form.NAME]))
    run = combine(path, views)
    odd = _left_out(strangers, [file for held in found.values() for file in held])
    return replace(run, notes=(*run.notes, *damage, *odd))


def find_run_directory(folder: Path) -> Path | None:
    """The run directory that ``folder`` is, or holds as its only folder (as an archive does); None where it is none."""
    if not folder.is_dir():
        return None
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    candidates = [folder, *inside] if len(inside) == 1 and inside[0].is_dir() else [folder]
    return next((path for path in candidates if is_run(path)), None)


def load_run_directory(folder: Path, now: Callable[[], float] = time.time) -> Run:
    """What the run directory recorded."""
    run = missing_ranks.with_missing(read_run(folder))
    written = max((path.stat().st_mtime for path in folder.glob("segments/*")), default=0.0)
    return replace(run, job=replace(run.job, abandoned=run.job.ended_ns is None and now() - written > _ABANDONED_S))


def load_run_directories(folders: Sequence[Path]) -> Run:
    """What the run directories of one job recorded, each written by another collector."""
    return missing_ranks.with_missing(read_together(folders))


def is_run(folder: Path) -> bool:
    """Whether this folder itself is a run directory."""
    if (folder / "segments").is_dir():
        return True
    return meta.is_ours(folder)


def _left_out(strangers: Sequence[Sample], understood: Sequence[Path]) -> list[str]:
    """A note on files that are named as those that were understood, and hold something else or nothing."""
    shapes = {_shape(file.name) for file in understood}
    odd = sorted(head.path.name for head in strangers if _shape(head.path.name) in shapes)
    if not odd:
        return []
    which = f"{', '.join(odd[:4])}{f' and {len(odd) - 4} more' if len(odd) > 4 else ''}"
    return [f"{which}: left out; not the format of the other files of that name."]


def _shape(name: str) -> str:
    """A file's name but for its numbers."""
    return re.sub(r"\d+", "0", name)


def _nothing_understood(path: Path, strangers: list[Sample]) -> str:
    for one in strangers:
        if (lacking := steps_jsonl.lacks(one)) is not None:
            return f"{path if path.name == one.path.name else path / one.path.name}: {lacking}"
    understood = ", ".join([RUN_DIRECTORIES, *(form.NAME for form in registry())])
    if not strangers and not path.is_dir() and not is_archive(path):
        return f"{path}: neither a file nor a folder; hindmost reads {understood}"
    if not strangers and path.is_dir() and not any(path.iterdir()):
        return f"{path}: an empty folder; hindmost reads {understood}"
    if not strangers:
        return f"{path}: no file in it that could be read; hindmost reads {understood}"
    if all(head.size == 0 for head in strangers):
        return f"{path}: {len(strangers)} file{'s' * (len(strangers) > 1)}, all empty; hindmost reads {understood}"
    endings = Counter("".join(head.path.suffixes[-1:]) or "no suffix" for head in strangers).most_common(3)
    kinds = ", ".join(f"{count} of {ending}" for ending, count in endings)
    first = next(head for head in strangers if head.size)
    start = ascii(first.first_line()[:40].decode(errors="replace"))
    return f"{path}: found {kinds}; {first.path.name} starts with {start}; hindmost reads {understood}"


def recordings_in(path: Path | str) -> list[Path | str]:
    """What to load, one after the other: the path itself, but each trace of a folder of the straggler study's."""
    if not isinstance(path, Path) or not path.is_dir():
        return [path]
    found = [one for one in _inside(path) if one.is_file() and straggler_analysis.recognises(sample(one))]
    return [*found] if len(found) > 1 else [path]


def several_runs(folder: Path) -> str | None:
    """That a folder holds run directories, and how to name one; ``None`` where it holds none."""
    return _told(folder, "runs", [one for one in _inside(folder) if one.is_dir() and is_run(one)])


def several_archives(folder: Path, files: Sequence[Path]) -> str | None:
    """That the ``files`` of a folder, at whatever depth, hold archives, and how to name one; ``None``: they do not."""
    return _told(folder, "archives", [one for one in files if is_archive(one)])


def only_archive(files: Sequence[Path]) -> Path | None:
    """The one archive among files; ``None`` where there are none or several."""
    found = [one for one in files if is_archive(one)]
    return found[0] if len(found) == 1 else None


def _told(folder: Path, what: str, found: list[Path]) -> str | None:
    if not found:
        return None
    newest = max(found, key=lambda one: one.stat().st_mtime_ns)
    return f"{folder}: holds {len(found)} {what}, each a recording; name one, such as {newest}"


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(one for one in folder.iterdir() if not one.name.startswith(".") and one.name not in UNREAD)
