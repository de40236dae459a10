"""Folders that hold several recordings: which they are, where one format has nothing but jobs of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hindmost_collector.formats import hindmost_run, straggler_analysis
from hindmost_collector.formats.files import UNREAD, is_archive, sample

if TYPE_CHECKING:
    from collections.abc import Sequence


def recordings(path: Path | str) -> list[Path | str]:
    """What to load, one after the other: the path itself, but each trace of a folder of the straggler study's."""
    if not isinstance(path, Path) or not path.is_dir():
        return [path]
    found = [one for one in _inside(path) if one.is_file() and straggler_analysis.recognises(sample(one))]
    return [*found] if len(found) > 1 else [path]


def runs(folder: Path) -> str | None:
    """That a folder holds run directories, and how to name one; ``None`` where it holds none."""
    return _told(folder, "runs", [one for one in _inside(folder) if one.is_dir() and hindmost_run.is_run(one)])


def archives(folder: Path, files: Sequence[Path]) -> str | None:
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
