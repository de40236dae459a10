"""The default store: immutable Parquet segments in plain directories, and one journal that commits them.

``ROOT/segments/TABLE/*.parquet`` for a single run, ``ROOT/JOB/segments/TABLE/*.parquet`` for a store of many jobs: a
job's directory in a store *is* a run directory, and can be copied away and reported on.
"""

import contextlib
import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from hindmost.errors import HindmostError
from hindmost_judge.model import Run

from hindmost_collector.store import meta
from hindmost_collector.store.arrow_tables import Clock, Files, Rows
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.journal import TEMPORARY, Journal, UnsettledError, write_durably, write_synced
from hindmost_collector.store.parquet.run_directory import read_run

log = logging.getLogger(__name__)

__all__ = ["ParquetStore", "read_run"]

#: The job that node metrics belong to where an agent serves a node rather than one job.
NODES = "_nodes"
#: Bytes that a directory's name may have, with room for what others append.
LONGEST = 200
#: Directories of which is remembered that they were made: of jobs that run, not of all that ever ran.
MOST_DIRECTORIES = 4096


def folder(job: str) -> str:
    """The name of a job's directory: the job's own where a file system takes it, never one that leads elsewhere."""
    name = quote(job or NODES, safe="@=+ ")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 17]}~{hashlib.sha256(job.encode()).hexdigest()[:16]}"
    return name


class ParquetStore:
    """Writes flushes; what ``write`` returned from survives kill -9 and a power cut.

    Args:
        root: created if missing. Raises HindmostError when it cannot be, or is in use.
        single: ``root`` is the run directory of one job, whatever its id.
    """

    def __init__(self, root: Path, *, single: bool) -> None:
        self.root, self.single = root, single
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._journal = Journal(root)
            found = segments.survey(root, self._journal.checked_ns)
            self._torn = sorted(one.path for one in found.aside)
            self._take_over(found)
            self._journal.checked()
        except OSError as error:
            raise HindmostError(f"cannot record into {root}: {error.strerror or error}") from error
        self._known_directories: set[Path] = set()
        self._writing = threading.Lock()  # flushes and upkeep commit from different threads
        self._preparing: set[Path] = set()  # directories of jobs that a flush is about to commit to
        self._news: dict[Path, int] = {}  # tables' directories, or of files, and the bytes that came to each

    @property
    def sequences(self) -> Mapping[str, int]:
        """Identity of an agent to the last batch sequence that is durable."""
        return self._journal.state.sequences

    @property
    def clock(self) -> dict[str, Any]:
        """What was given as ``clock`` to the last ``write`` that had it."""
        return self._journal.state.clock

    def job_directory(self, job: str) -> Path:
        return self.root if self.single else self.root / folder(job)

    def write(
        self, tables: Rows, sequences: Mapping[str, int], clock: Clock | None = None, files: Files | None = None
    ) -> tuple[int, int]:
        """Make rows of ``(job, table)``, files of ``(job, name)`` and agents' sequences durable; ``(rows, bytes)``.

        Raises:
            UnsettledError: they are durable, but the store needs one more write before they may be acknowledged.
            OSError: nothing has changed.
        """
        with self._writing:
            self._journal.finish()
            flush = self._journal.state.flush + 1
            self._preparing = {self.job_directory(job) for job, _ in (*tables, *(files or {}))}
        day = time.strftime("%Y%m%d", time.gmtime())
        renames: list[tuple[Path, Path]] = []
        rows = 0
        try:
            for (job, table), data in tables.items():
                final = self._directory(job, f"segments/{table}") / segments.file_name(day, flush)
                renames.append((final.with_name(f".{final.name}{TEMPORARY}"), final))
                rows += segments.write(table, data, renames[-1][0])
            for (job, name), content in (files or {}).items():
                final = self._directory(job, str(PurePosixPath(name).parent)) / PurePosixPath(name).name
                renames.append((final.with_name(f".{final.name}{TEMPORARY}"), final))
                write_synced(renames[-1][0], content)
            sizes = {final: temporary.stat().st_size for temporary, final in renames}
            named = [(str(old.relative_to(self.root)), str(new.relative_to(self.root))) for old, new in renames]
            with self._writing:
                before = self._journal.state
                try:
                    self._journal.commit(named, sequences=dict(sequences), clock=clock)
                finally:
                    if self._journal.state is not before:
                        self._note(sizes)
        except UnsettledError:
            raise
        except OSError:
            self._known_directories.clear()  # one may have been removed
            with contextlib.suppress(OSError):  # what cannot be removed now is swept at the next start
                for temporary, _ in renames:
                    temporary.unlink(missing_ok=True)
            raise
        finally:
            with self._writing:
                self._preparing = set()
        return rows, sum(sizes.values())

    def _note(self, sizes: Mapping[Path, int]) -> None:
        for path, size in sizes.items():
            if path.suffix == segments.SUFFIX:
                self._news[path.parent] = self._news.get(path.parent, 0) + size

    def news(self) -> dict[Path, int]:
        """The directories that flushes committed to, or files were written to, since this was last asked, and how many
        bytes."""
        with self._writing:
            news, self._news = self._news, {}
        return news

    def swap(self, made: Mapping[Path, Path], replaced: Iterable[Path]) -> None:
        """Put segments (temporary to final name) in the place of others, all in one commit. Raises OSError."""
        renames = [(str(old.relative_to(self.root)), str(new.relative_to(self.root))) for old, new in made.items()]
        present = set(made.values())
        deletions = [str(path.relative_to(self.root)) for path in replaced if path not in present]
        with self._writing:
            self._journal.commit(renames, deletions=deletions)

    def remove_empty(self, job: Path) -> bool:
        """Delete a job's directory if no segment is in it; False: unknown until a flush is through."""
        with self._writing:
            if job in self._preparing or self._journal.state.renames:
                return False
            if not any(job.glob(f"segments/*/*{segments.SUFFIX}")):
                shutil.rmtree(job, ignore_errors=True)
                self._known_directories = {
                    directory for directory in self._known_directories if job not in directory.parents
                }
            return True

    def _directory(self, job: str, inside: str) -> Path:
        directory = self.job_directory(job) / inside
        if directory not in self._known_directories:
            directory.mkdir(parents=True, exist_ok=True)
            if len(self._known_directories) >= MOST_DIRECTORIES:
                self._known_directories.clear()
            self._known_directories.add(directory)
        return directory

    def write_meta(self, job: str, facts: Mapping[str, Any]) -> None:
        """Merge ``facts`` into the job's ``meta.json``, what others wrote there kept. Raises OSError."""
        path = self.job_directory(job) / meta.NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = None
        write_durably(path, meta.merged(content, facts))

    def append_line(self, job: str, name: str, line: str) -> None:
        """Append one line to a text file of the run directory. Raises OSError."""
        directory = self.job_directory(job)
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / name).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def write_file(self, job: str, name: str, content: bytes) -> None:
        """Replace a file of the run directory (``report.json``, ``stacks/…``). Raises OSError."""
        path = self.job_directory(job) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.stat().st_size if path.exists() else 0
        write_durably(path, content)
        with self._writing:
            self._news[path.parent] = self._news.get(path.parent, 0) + len(content) - before

    def read_file(self, job: str, name: str) -> bytes | None:
        """The content of a file of the run directory; None where there is none of that name. Raises OSError."""
        try:
            return (self.job_directory(job) / name).read_bytes()
        except FileNotFoundError:
            return None

    def recent_jobs(self, most: int) -> list[tuple[str, int]]:
        """The jobs that were written to last, newest first, and when that was, ns. Raises OSError."""
        if self.single:
            return []
        found = [(path.stat().st_mtime_ns, path) for path in self.root.glob(f"*/{meta.NAME}")]
        newest = sorted(found, reverse=True)[:most]
        known = ((json.loads(path.read_bytes()).get("job_id"), at) for at, path in newest)
        return [(str(job), at) for job, at in known if job]

    def place(self, job: str) -> str:
        """Its directory, for `hindmost report`."""
        return str(self.job_directory(job).absolute())

    def read(self, job: str) -> Run:
        """Everything recorded of one job."""
        return read_run(self.job_directory(job))

    def set_aside(self, path: Path) -> bool:
        """Take a damaged segment out of every reader's way, and say so; False where that is not possible."""
        aside = segments.set_aside(path)
        if aside is None:
            return False
        self._torn = sorted({*self._torn, aside})
        log.error("a segment is torn: readers leave its rows out; it was set aside as %s", aside)
        return True

    @property
    def torn(self) -> list[str]:
        """The segments that lie aside as torn, their paths within the store."""
        return [str(path.relative_to(self.root)) for path in self._torn]

    def review_torn(self) -> None:
        """Forget those that a user repaired or removed, or that became too old."""
        self._torn = [path for path in self._torn if path.exists()]

    def _take_over(self, found: segments.Survey) -> None:
        """Number flushes after those that were found, and set aside what of them is torn."""
        self._journal.continue_after(max((one.last for one in (*found.aside, *found.changed)), default=0))
        for one in found.changed:
            if segments.is_torn(one.path):
                self.set_aside(one.path)

    def close(self) -> None:
        """Give the directory free for another writer."""
        self._journal.close()
