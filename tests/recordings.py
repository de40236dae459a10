"""Recordings of real training that tests read: those of the repository, and of sets that may lie next to it. The whole
set is sought in ``HINDMOST_CORPUS``, the published traces in ``HINDMOST_STRAGGLER_ANALYSIS``."""

import fcntl
import os
import pickle
import tarfile
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Report

T = TypeVar("T")

OURS = Path(__file__).resolve().parent / "fixtures/recordings"
_NEXT_TO_THE_TREE = Path(__file__).resolve().parents[2] / "shared"
CORPUS = Path(os.environ.get("HINDMOST_CORPUS", _NEXT_TO_THE_TREE / "corpus"))
STUDY = Path(os.environ.get("HINDMOST_STRAGGLER_ANALYSIS", _NEXT_TO_THE_TREE / "straggler-analysis"))


def here(name: str) -> Path | None:
    """Its file, of the whole set where that is here."""
    paths = (folder / f"{name}.tar.xz" for folder in (CORPUS, OURS))
    return next((path for path in paths if path.exists()), None)


def recording(name: str) -> Path:
    """Its file; where it is not here the test is skipped."""
    path = here(name)
    if path is None:
        pytest.skip(f"needs recordings outside this repository: {name} in HINDMOST_CORPUS ({CORPUS})")
    return path


def unpacked(name: str, to: Path, kept: Callable[[str], bool] = bool) -> Path:
    """The folder in ``to`` with those files of one of our recordings whose names are ``kept``."""
    with tarfile.open(OURS / f"{name}.tar.xz") as archive:
        members = [one for one in archive.getmembers() if one.isfile() and kept(Path(one.name).name)]
        archive.extractall(to, members, filter="data")
    return to / name


#: Where the workers of this run of the tests keep reports for each other: conftest.py names a folder of the run's own.
shared: list[Path] = []


@cache
def judged(path: Path) -> Report:
    """Its report, which several tests may read."""
    return judged_once(f"{path.parent.name}-{path.name}", lambda: recorded(path))


def judged_once(name: str, make: Callable[[], Run]) -> Report:
    """The report on the run of this name: made by the first worker of these tests that asks for it."""
    return _made_once(f"{name}.report", lambda: judge(make()))


@lru_cache(maxsize=1)
def recorded(path: Path) -> Run:
    """It itself, read by the first worker that asks for it. Tests of one recording stand together."""
    return _made_once(f"{path.parent.name}-{path.name}.run", lambda: load(path))


def _made_once(name: str, make: Callable[[], T]) -> T:
    with (shared[0] / name).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not file.read(1):
            pickle.dump(make(), file)
        file.seek(0)
        one: T = pickle.load(file)  # noqa: S301 - written above, by us
    return one
