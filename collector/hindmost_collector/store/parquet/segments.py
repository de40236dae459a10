"""Segments as files, and the journal that commits many of them at once.

A segment's name is ``DAY-FLUSH-0.parquet`` (UTC day, flush number of its writer), one made of several
``DAY-FIRST-LAST-1.parquet``. Names sort by time, and a day can be read or dropped by a glob. For a moment a reader
may see a merged segment together with its sources: its name says that it stands for them.

A commit writes, under temporary names, every segment that a flush made; then the journal, which names the renames and
deletions to do and the batch sequence that each agent has got to; then does them. The journal's own rename is the
commit: before it, a crash leaves temporary files that are swept away and agents replay; after it, the next start
finishes what is left to do. Rows and sequence numbers can therefore never disagree, so nothing is lost or doubled.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hindmost.errors import HindmostError

from hindmost_collector.store import schema

SUFFIX = ".parquet"
TORN = ".torn"
#: Torn segments that a line names; it counts the others.
_NAMED = 3
#: Rows of a row group of a merged segment; and of a flush: a merge holds one of each of its segments, and each group
#: repeats the words that are in it.
_ROW_GROUP, FLUSH_GROUP = 1 << 19, 1 << 16
#: Rows that the Parquet writer looks at together.
_BATCH = 1 << 14


@dataclass(frozen=True)
class Segment:
    """One immutable file of one table."""

    path: Path
    day: str
    flush: int
    last: int
    level: int

    @property
    def bytes(self) -> int:
        """Size on disk; 0 when it is gone."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


def file_name(day: str, flush: int, last: int | None = None) -> str:
    """The name of a flush's segment, or of one that stands for all flushes from ``flush`` to ``last``."""
    return f"{day}-{flush:010d}-0{SUFFIX}" if last is None else f"{day}-{flush:010d}-{last:010d}-1{SUFFIX}"


def parse(path: Path) -> Segment | None:
    """The segment that ``path`` names, None for any other file."""
    parts = path.name.removesuffix(SUFFIX).split("-")
    if path.suffix != SUFFIX or len(parts) not in {3, 4} or not all(part.isdigit() for part in parts):
        return None
    return Segment(path, parts[0], int(parts[1]), int(parts[-2]), int(parts[-1]))


def tables(root: Path) -> list[Path]:
    """The directories of all tables of a store, or of one run."""
    jobs = [root, *(root / name for name in _names(root))]
    return [job / "segments" / name for job in jobs for name in _names(job / "segments")]


def _names(directory: Path) -> list[str]:
    """What is in a directory, in order; nothing where there is none: a tenth of the time of a glob."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - iterdir makes a path of each
    except OSError:
        return []


def aside(directory: Path) -> list[Segment]:
    """The segments of a table that were set aside, oldest first."""
    names = [name.removesuffix(TORN) for name in _names(directory) if name.endswith(f"{SUFFIX}{TORN}")]
    found = (parse(directory / name) for name in names)
    renamed = (replace(one, path=one.path.with_name(one.path.name + TORN)) for one in found if one)
    return sorted(renamed, key=lambda one: (one.day, one.flush))


def listed(directory: Path) -> list[Segment]:
    """The segments in a table's directory, oldest first; none where there is no directory."""
    return standing(parse(directory / name) for name in _names(directory) if name.endswith(SUFFIX))


def readable(directory: Path) -> list[Segment]:
    """As ``listed``; raises PermissionError where the directory may not be looked into: a glob takes it for empty."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.scandir(directory).close()
    return listed(directory)


def standing(found: Iterable[Segment | None]) -> list[Segment]:
    """Segments in order, those left out that another one stands for."""
    ordered = sorted((one for one in found if one), key=lambda one: (one.day, one.flush, -one.last, -one.level))
    kept: list[Segment] = []
    for one in ordered:
        if not (kept and kept[-1].level and kept[-1].day == one.day and one.last <= kept[-1].last):
            kept.append(one)
    return kept


class Writer:
    """A segment in the making, under a temporary name: ``add`` pieces, then ``finish``; or ``discard`` it."""

    def __init__(self, table: str, path: Path, *, passing: bool = False) -> None:
        """``passing``: it is to be merged soon, so what counts is how fast it is written. Raises OSError."""
        dictionary, plain = schema.encodings(table, passing=passing)
        codecs, levels = schema.compression(table, passing=passing)
        self.rows, self._group = 0, FLUSH_GROUP if passing else _ROW_GROUP
        self._path = path
        self._file = path.open("wb")
        self._writer = pq.ParquetWriter(
            self._file,
            schema.arrow_schema(table),
            compression=codecs,
            compression_level=levels,
            use_dictionary=dictionary,
            column_encoding=plain,
            write_statistics=schema.noted(table, passing=passing),
            write_batch_size=_BATCH,
            write_page_checksum=True,
        )

    def add(self, piece: pa.Table) -> None:
        """Append rows. Raises OSError."""
        try:
            groups = max(1, round(piece.num_rows / self._group))  # of one size, and no small one at the end
            self._writer.write_table(piece, row_group_size=max(1, -(-piece.num_rows // groups)))
        except pa.ArrowException as error:
            raise OSError(str(error)) from error
        self.rows += piece.num_rows

    def finish(self) -> int:
        """Sync it; how many rows. Raises OSError."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self.rows

    def discard(self) -> None:
        """Leave nothing behind; never raises."""
        with contextlib.suppress(OSError, pa.ArrowException):  # the disk may be the reason why we are here
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
            self._path.unlink()


def write(table: str, pieces: Iterable[pa.Table], path: Path) -> int:
    """Write ``pieces`` to ``path`` and sync it; how many rows. Raises OSError, leaving nothing behind."""
    writer = Writer(table, path, passing=True)
    try:
        for piece in pieces:
            writer.add(piece)
        return writer.finish()
    except OSError:
        writer.discard()
        raise


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A segment's rows. Raises OSError or pa.ArrowException when torn, HindmostError when newer than this program."""
    with opened(path) as file:
        return file.read(columns=list(columns) if columns else None)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """A segment to be read by row groups. Raises as ``read`` does."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        _check_version(path, file)
        yield file


def read_group(file: pq.ParquetFile, number: int, columns: Sequence[str] | None = None) -> pa.Table:
    """A row group, read in this thread alone: merging takes one core, and counts it. Raises as ``read``."""
    wanted = list(columns) if columns else None
    return file.read_row_group(number, columns=wanted, use_threads=False).replace_schema_metadata(None)


def check_version(path: Path) -> None:
    """Raises HindmostError when a segment is newer than this program, OSError or pa.ArrowException when it is torn."""
    with pq.ParquetFile(path) as file:
        _check_version(path, file)


def _check_version(path: Path, file: pq.ParquetFile) -> None:
    version = int((file.schema_arrow.metadata or {}).get(schema.VERSION_KEY, b"1"))
    if version > schema.VERSION:
        raise HindmostError(f"{path} was written by a newer hindmost (schema {version}): upgrade this one to read it")


def set_aside(path: Path) -> Path | None:
    """Rename a torn segment so that no reader meets it again; where it lies now, None where that is not possible."""
    try:
        return path.rename(path.with_name(path.name + TORN))
    except OSError:  # a read-only recording: then it is skipped at each reading
        return None


def left_out(torn: Sequence[Path]) -> list[str]:
    """What to tell people of torn segments, in one line: how many, where in their run they lie, and what that means."""
    if not torn:
        return []
    first = ", ".join(f"{path.parent.name}/{path.name}" for path in torn[:_NAMED])
    if len(torn) == 1:
        return [f"segment {first} is torn and was left out"]
    more = f" and {len(torn) - _NAMED:,} more" if len(torn) > _NAMED else ""
    return [f"{len(torn):,} segments are torn and were left out: {first}{more}"]


class Survey(NamedTuple):
    """What a walk through a store found: the segments that were set aside, and those that are new since a time, or
    changed."""

    aside: list[Segment]
    changed: list[Segment]


def survey(root: Path, since_ns: int) -> Survey:
    """Walk through a store, delete what a crash left half-written, and find what is new since ``since_ns``, by the file
    system's clock. Raises OSError."""
    found = Survey([], [])
    for directory, _, names in os.walk(root):
        for name in names:
            if name.startswith(".") and name.endswith(TEMPORARY):
                (Path(directory) / name).unlink()
        if Path(directory).parent.name == "segments":
            found.aside.extend(aside(Path(directory)))
            new = {name for name in names if name.endswith(SUFFIX) and _changed_ns(f"{directory}/{name}") >= since_ns}
            found.changed.extend(one for one in (listed(Path(directory)) if new else ()) if one.path.name in new)
    return found


def _changed_ns(path: str) -> int:
    return os.stat(path).st_ctime_ns  # noqa: PTH116 - of each segment, in a third of a Path's time


def is_torn(path: Path, *, whole: bool = False) -> bool:
    """Whether a segment's footer is missing or damaged, or, with ``whole``, any of its rows.

    A segment that is gone, or that cannot be opened because descriptors, memory or permission are missing, is not
    torn.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups if whole else 0):
                file.read_row_group(number).validate(full=True)
    except pa.ArrowMemoryError:
        return False
    except (OSError, pa.ArrowException) as error:
        return getattr(error, "errno", None) in {None, errno.EIO}
    return False


def read_table(
    directory: Path, table: str, segments: Sequence[Segment] | None = None, reader: Callable[[Path], pa.Table] = read
) -> tuple[pa.Table, list[Path]]:
    """``(all rows of a table, torn segments)``; segments compacted away meanwhile are looked up again.

    ``reader`` may give some of a segment's rows only.
    """
    for _ in range(5):
        parts, torn = [], [one.path for one in aside(directory)]
        try:
            for segment in readable(directory) if segments is None else segments:
                part = _whole(segment.path, reader)
                if part is None:
                    torn.append(segment.path)
                else:
                    parts.append(part)
        except FileNotFoundError:
            segments = None
            continue
        if not parts:
            return schema.arrow_schema(table).empty_table(), torn
        return pa.concat_tables([_plain(part) for part in parts], promote_options="default"), torn
    raise HindmostError(f"{directory} keeps changing while it is read: try again")


def _whole(path: Path, reader: Callable[[Path], pa.Table]) -> pa.Table | None:
    """A segment's rows, None when it is torn. Raises FileNotFoundError when it was compacted away, PermissionError."""
    try:
        return reader(path)
    except FileNotFoundError:
        raise
    except PermissionError as error:  # a reader can have that changed, and must not get less without it
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from error
    except (OSError, pa.ArrowException):
        return None


def _plain(data: pa.Table) -> pa.Table:
    """Without metadata, which may differ between versions."""
    return data.replace_schema_metadata(None)


NAME = ".journal.json"
_BASE = ".sequences-"
LOCK = ".lock"
TEMPORARY = ".tmp"
#: An agent whose batches are older than this sends none of them again; its numbers are dropped when there are many.
FORGOTTEN_S = 30 * 86400
#: The journal has so many sequences, and as many as its base, before it gets a new base.
LEAST_KEPT = 1024


def _packed(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def sync_directory(directory: Path) -> None:
    """Make renames and deletions in ``directory`` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """Write and sync a new file. Raises OSError, leaving nothing behind."""
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):  # the disk may be the reason why we are here
            path.unlink()
        raise


def replace_files(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives kill -9. Raises OSError, ``path`` being what it was."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    write_synced(temporary, content)
    temporary.replace(path)


def write_durably(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives a power cut: file and directory are synced. Raises OSError."""
    replace_files(path, content)
    sync_directory(path.parent)


class UnsettledError(OSError):
    """Committed, but not all is synced and renamed yet: ``finish`` will, and nothing is written again."""


@dataclass
class State:
    """What the journal holds. Paths are relative to the store's root.

    Its file has those sequences that moved since ``base`` was written, a file that has all others: a commit writes as
    much as has changed, however many agents there ever were.
    """

    flush: int = 0
    sequences: dict[str, int] = field(default_factory=dict)
    renames: list[tuple[str, str]] = field(default_factory=list)
    deletions: list[str] = field(default_factory=list)
    clock: dict[str, Any] = field(default_factory=dict)
    #: Identity to when its sequence last moved, Unix s.
    moved: dict[str, int] = field(default_factory=dict)
    #: The name of that file; none while few have moved.
    base: str = ""


def is_locked(root: Path) -> bool | None:
    """Whether a collector writes here; ``None`` where it is not known, as of a job of a store, or of a copy."""
    try:
        lock = os.open(root / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(lock)
    return False


class Journal:
    """The store's commit log of one entry, and its lock: one writer a store."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        """Open the journal in ``root``, finish what a crash left. Raises HindmostError when another writes here."""
        self.root, self._now = root, now
        self._path = root / NAME
        self._moved: set[str] = set()  # whose sequence moved since the base was written
        self._in_base = 0
        self._old_bases: list[str] = []  # that no journal names any more once this one's commit is synced
        self._lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            message = f"{root} is being written by another collector: give this one a directory of its own"
            raise HindmostError(message) from error
        #: When this store's segments were last looked into; 0: unknown.
        self.checked_ns = os.fstat(self._lock).st_mtime_ns if self._path.exists() else 0
        self.state = self._load()
        self._old_bases = [name for name in _names(root) if name.startswith(_BASE) and name != self.state.base]
        self._synced = False
        self.finish()

    def _load(self) -> State:
        try:
            stored = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return State()
        except ValueError as error:
            raise HindmostError(f"{self._path} is damaged: {error}; move it away to start afresh") from error
        stored["renames"] = [(str(old), str(new)) for old, new in stored["renames"]]
        state = State(**{one.name: stored[one.name] for one in fields(State) if one.name in stored})
        self._moved = set(state.sequences)
        if state.base:
            based = self._based(state.base)
            self._in_base = len(based["sequences"])
            state.sequences, state.moved = ({**based[name], **stored[name]} for name in ("sequences", "moved"))
        state.moved = {**dict.fromkeys(state.sequences, int(self._now())), **state.moved}
        return state

    def _based(self, name: str) -> dict[str, dict[str, int]]:
        try:
            found: dict[str, dict[str, int]] = json.loads((self.root / name).read_bytes())
        except (OSError, ValueError) as error:
            message = f"{self.root / name} is damaged: {error}; move {self._path} away to start afresh"
            raise HindmostError(message) from error
        return found

    def checked(self) -> None:
        """Note that all segments that there are have been looked into. Raises OSError."""
        os.utime(self.root / LOCK)

    def continue_after(self, flush: int) -> None:
        """Number no flush as one that has been, even where an earlier journal was moved away."""
        self.state.flush = max(self.state.flush, flush)

    def commit(
        self,
        renames: list[tuple[str, str]],
        deletions: list[str] | None = None,
        sequences: dict[str, int] | None = None,
        clock: dict[str, Any] | None = None,
    ) -> None:
        """Make ``renames`` (already synced temporary file, final name) and the rest true together.

        Raises:
            UnsettledError: it is committed, and ``finish`` has yet to succeed.
            OSError: nothing has changed.
        """
        self.finish()
        if len(self._moved) > max(LEAST_KEPT, self._in_base):
            self._write_base()
        new, now = sequences or {}, int(self._now())
        state = replace(self.state, flush=self.state.flush + 1, renames=renames, deletions=deletions or [])
        state.clock = clock or state.clock
        moved = self._moved | new.keys()
        changed = {
            "sequences": {one: new[one] if one in new else state.sequences[one] for one in moved},
            "moved": {one: now if one in new else state.moved[one] for one in moved},
        }
        replace_files(self._path, _packed({**state.__dict__, **changed}))
        state.sequences.update(new)
        state.moved.update(dict.fromkeys(new, now))
        self._moved = moved
        self.state, self._synced = state, False  # from here on a crash finds the new journal
        try:
            self.finish()
        except OSError as error:
            raise UnsettledError(error.errno, error.strerror) from error

    def _write_base(self) -> None:
        """Write all sequences into a file of their own, those of agents that were not heard of for long left out.

        It counts from the next commit on. Raises OSError, nothing having changed.
        """
        state, now = self.state, int(self._now())
        known = {one: last for one, last in state.sequences.items() if now - state.moved[one] < FORGOTTEN_S}
        moved, name = {one: state.moved[one] for one in known}, f"{_BASE}{state.flush}.json"
        write_synced(self.root / name, _packed({"sequences": known, "moved": moved}))
        sync_directory(self.root)  # before a journal names it
        self._old_bases += [state.base] if state.base else []
        self.state = replace(state, base=name, sequences=known, moved=moved)
        self._moved, self._in_base = set(), len(known)

    def finish(self) -> None:
        """Sync the last commit, and do those of its renames and deletions that are not done yet. Raises OSError."""
        if not self._synced:
            sync_directory(self.root)
            self._synced = True
            for name in self._old_bases:
                (self.root / name).unlink(missing_ok=True)
            self._old_bases.clear()
        if not (self.state.renames or self.state.deletions):
            return
        touched: set[Path] = set()
        for old, new in self.state.renames:
            with contextlib.suppress(FileNotFoundError):  # done before the crash
                (self.root / old).replace(self.root / new)
            touched.add((self.root / new).parent)
        for name in self.state.deletions:
            (self.root / name).unlink(missing_ok=True)
        for directory in touched:
            sync_directory(directory)
        self.state.renames, self.state.deletions = [], []

    def close(self) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            os.close(self._lock)
