"""Segments as files: Parquet, each of one table and one day.

A segment's name is ``DAY-FLUSH-0.parquet`` (UTC day, flush number of its writer), one made of several
``DAY-FIRST-LAST-1.parquet``. Names sort by time, and a day can be read or dropped by a glob. For a moment a reader
may see a merged segment together with its sources: its name says that it stands for them.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hindmost.errors import HindmostError

from hindmost_collector.store import schema
from hindmost_collector.store.meta import is_other
from hindmost_collector.store.parquet.journal import TEMPORARY

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
    valid: list[Segment] = []
    for one in ordered:
        if not (valid and valid[-1].level and valid[-1].day == one.day and one.last <= valid[-1].last):
            valid.append(one)
    return valid


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


#: What pyarrow raises of a torn segment. A damaged name of a column is no text.
TEARS = (OSError, pa.ArrowException, UnicodeDecodeError)


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A segment's rows. Raises one of ``TEARS`` when torn, HindmostError when newer than this program."""
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
    """Raises HindmostError when a segment is newer than this program, one of ``TEARS`` when it is torn."""
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
    except TEARS as error:
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
        plain = [part.replace_schema_metadata(None) for part in parts]  # it may differ between versions
        return pa.concat_tables(plain, promote_options="default"), torn
    raise HindmostError(f"{directory} keeps changing while it is read: try again")


def _whole(path: Path, reader: Callable[[Path], pa.Table]) -> pa.Table | None:
    """A segment's rows, None when it is torn or no file. Raises FileNotFoundError when it was compacted away,
    PermissionError."""
    if is_other(path):
        return None
    try:
        return reader(path)
    except FileNotFoundError:
        raise
    except PermissionError as error:  # a reader can have that changed, and must not get less without it
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from error
    except TEARS:
        return None
