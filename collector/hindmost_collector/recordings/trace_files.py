"""Files of other tools: walked, sampled and unpacked; their lines and JSON are read in bounded memory."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

from hindmost.errors import HindmostError, UsageError

SAMPLE_BYTES = 64 * 1024
#: No line of any format understood here is longer: the longest seen is a stack in a Flight Recorder dump, 20 KiB.
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_FILES = 100_000
MAX_DEPTH = 6
#: What an archive may unpack to: a folder of an hour's profiler traces is about 5 GiB.
MAX_UNPACKED_BYTES = 16 * 1024**3
#: What a gzip or xz file may inflate to, in multiples of its size: traces reach 20 to 40, a bomb 1,000.
MAX_INFLATION = 200
#: … and below which size it is not checked.
SMALL_BYTES = 64 * 1024**2
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".zip")
#: What a damaged one, an encrypted one, or one whose names are folders and files at once raises.
_NO_ARCHIVE = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError),
    *(NotImplementedError, RuntimeError, NotADirectoryError, FileExistsError, IsADirectoryError),
)
#: A format is recognised by any of so many lines.
_FIRST_LINES = 50
#: Never opened: what says how a recording came about, a fault that was injected perhaps, is no measurement.
UNREAD = {"manifest.json"}
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\0"
_PIECE_BYTES = 1024 * 1024
#: What reading the first bytes of an xz file may take: its densest preset needs 65 MiB.
_XZ_MEMORY = 256 * 1024**2


@dataclass(frozen=True)
class Sample:
    """A file's first bytes, decompressed; what a format recognises its own by."""

    path: Path
    head: bytes
    size: int
    compressed: bool = False

    def first_line(self) -> bytes:
        """The first line that is not blank, without its end; all of the head where it has no end."""
        return next((line.strip() for line in self.head.split(b"\n") if line.strip()), b"")

    def objects(self) -> Iterator[dict[str, Any]]:
        """Those of the first lines that are JSON objects: one of them may be torn, or be another program's word."""
        return (one for line in self.head.split(b"\n")[:_FIRST_LINES] if (one := _object_in(line)) is not None)


def _object_in(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(line)
        if isinstance(value, dict):
            return value
    return None


def walk(root: Path) -> list[Path]:
    """The regular files of a folder, sorted by path; a file is a folder of itself."""
    if root.is_file():
        return [root]
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        if len(here.relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        read = (name for name in names if not name.startswith(".") and name not in UNREAD)
        found += [here / name for name in read if (here / name).is_file()]
        if len(found) > MAX_FILES:
            raise UsageError(f"{root}: more than {MAX_FILES:,} files; name the folder of one recording")
    return sorted(found)


def sample(path: Path) -> Sample:
    """The head of a file. A gzip or xz file that cannot be inflated has an empty one."""
    try:
        with path.open("rb") as raw:
            head = raw.read(SAMPLE_BYTES)
    except PermissionError:
        raise
    except OSError as error:
        raise DamagedError(path, f"cannot be read ({error.strerror})") from error
    compressed = head.startswith((_GZIP, _XZ))
    if compressed:
        begin, head = head, b""
        with contextlib.suppress(zlib.error, lzma.LZMAError):
            head = (
                zlib.decompressobj(wbits=31).decompress(begin, SAMPLE_BYTES)
                if begin.startswith(_GZIP)
                else lzma.LZMADecompressor(memlimit=_XZ_MEMORY).decompress(begin, SAMPLE_BYTES)
            )
    head = head.removeprefix(codecs.BOM_UTF8)
    return Sample(path, head, path.stat().st_size, compressed)


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than ``limit`` bytes: what a compressed file may inflate to."""

    def __init__(self, raw: gzip.GzipFile | lzma.LZMAFile, path: Path, limit: int) -> None:
        self._raw, self._path, self._left = raw, path, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._raw.read1(min(len(buffer), _PIECE_BYTES))
        except EOFError:  # cut off, as of a process that was killed: what is there counts
            return 0
        except (OSError, zlib.error, lzma.LZMAError) as error:
            raise DamagedError(self._path, f"damaged ({error}); copy it again") from error
        self._left -= len(data)
        if self._left < 0:
            raise UsageError(f"{self._path}: inflates to more than {MAX_INFLATION} times its size; not read")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()


def open_bytes(path: Path) -> IO[bytes]:
    """A file for reading, decompressed where it is gzip or xz, within :data:`MAX_INFLATION`."""
    raw = path.open("rb")
    begin = raw.read(len(_XZ))
    if not begin.startswith((_GZIP, _XZ)):
        raw.seek(0)
        return raw
    raw.close()
    limit = max(SMALL_BYTES, MAX_INFLATION * path.stat().st_size)
    opened = gzip.GzipFile if begin.startswith(_GZIP) else lzma.LZMAFile
    inflated = opened(path, "rb")
    return io.BufferedReader(_Bounded(inflated, path, limit), _PIECE_BYTES)


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file. A line longer than :data:`MAX_LINE_BYTES` is an error that names it, not memory."""
    with open_bytes(path) as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise DamagedError(path, f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB; not a recording")
            yield line


def is_archive(path: Path) -> bool:
    """Whether a path's name is that of a tar or zip archive."""
    return path.is_file() and path.name.endswith(ARCHIVES)


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A folder to read: the path itself, or a temporary one with the regular files of an archive in it."""
    if not is_archive(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="hindmost-") as folder:
        try:
            _unpack(path, Path(folder))
        except _NO_ARCHIVE as error:
            raise UsageError(f"{path}: damaged or cut short ({error}); copy it again") from error
        yield Path(folder)


def _unpack(path: Path, folder: Path) -> None:
    left = min(MAX_UNPACKED_BYTES, shutil.disk_usage(folder).free // 2)
    with contextlib.closing(_of_zip(path) if path.name.endswith(".zip") else _of_tar(path)) as members:
        for count, (member, size, content) in enumerate(members):
            left -= size
            if left < 0 or count > MAX_FILES:
                raise HindmostError(f"{path}: unpacks to too much for {folder.parent}; unpack it and name the folder")
            name = PurePosixPath(member)
            if content is None or name.is_absolute() or ".." in name.parts:
                continue  # links, devices and names that lead elsewhere are no part of a recording
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as out:  # of a name that an archive has twice, the last counts
                shutil.copyfileobj(content, out, _PIECE_BYTES)


#: A member's name, how much it unpacks to, and its content; None where it is no regular file.
_Member = tuple[str, int, "IO[bytes] | None"]


def _of_tar(path: Path) -> Generator[_Member, None, None]:
    with tarfile.open(path) as archive:
        for member in archive:
            yield member.name, member.size, archive.extractfile(member) if member.isfile() else None


def _of_zip(path: Path) -> Generator[_Member, None, None]:
    """Python reads no more of a member than the size it claims. Links are files with a name in them, and stay that."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            yield member.filename, member.file_size, None if member.is_dir() else archive.open(member)


Of = TypeVar("Of")
T = TypeVar("T")

#: Files that a note names.
_NAMED = 4


class DamagedError(UsageError):
    """A file that cannot be read, as a full disk or a killed process leaves it: no attack, and no reason to stop."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


def read_undamaged(files: Iterable[Of], read: Callable[[Of], T]) -> tuple[list[T], list[str]]:
    """What was read of each file, or kind of files, and a note on those that are damaged; raises where all are."""
    tried = [_tried(of, read) for of in files]
    damaged = [one for one in tried if isinstance(one, DamagedError)]
    found = [one for one in tried if not isinstance(one, DamagedError)]
    if damaged and not found:
        rest = [one.path.name for one in damaged[1:]]
        others = f"; so {'is' if len(rest) == 1 else 'are'} {', '.join(rest[:_NAMED])}" if rest else ""
        others += f" and {len(rest) - _NAMED} more" if len(rest) > _NAMED else ""
        raise DamagedError(damaged[0].path, f"{damaged[0].why}{others}")
    more = f"; and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    damage = "; ".join(f"{one.path.name}: {one.why}" for one in damaged[:_NAMED])
    return found, [f"Left out: {damage}{more}"] if damaged else []


def _tried(one: Of, read: Callable[[Of], T]) -> T | DamagedError:
    try:
        return read(one)
    except DamagedError as error:
        return error


_CHUNK = 1 << 20
#: No event, and nothing around the events, is longer.
MAX_VALUE_CHARACTERS = 8 << 20
_BLANK = " \t\r\n\ufeff"
#: What cannot be decoded this near to the end of what was read may be whole when more is.
_NEAR = 64
#: What every event has.
_EVENT = '"ph"'


#: Beyond this no clock counts us: some 300 years since 1970.
_LATEST_US = 1e16


def microseconds(value: Any) -> float | None:
    """A time or a duration of an event; ``None`` for what is no number, or none that can be true."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LATEST_US else None


def events(path: Path, rest: dict[str, Any], wanted: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The events of a Chrome trace: an object with ``traceEvents``, or an array.

    The object's other values that are ``wanted`` are put into ``rest`` as they are met. A trace that was cut off
    gives what it has, and ``rest["torn"]`` is true. Raises :class:`UsageError` for what is no trace.
    """
    with open_bytes(path) as stream:
        scanner = _Scanner(path, stream)
        if scanner.take() == "[":
            yield from _array(scanner, rest)
        else:
            yield from _object(scanner, rest, wanted)


def _object(scanner: _Scanner, rest: dict[str, Any], wanted: Collection[str]) -> Iterator[dict[str, Any]]:
    while scanner.peek() != "}":
        key = scanner.whole()
        if key is not None and scanner.peek() and scanner.take() != ":":
            raise scanner.error("is not JSON")
        if key == "traceEvents" and scanner.peek() == "[":
            scanner.take()
            yield from _array(scanner, rest)
        elif key is not None:
            value = scanner.whole()
            if key in wanted:
                rest[key] = value
        if not scanner.peek():
            rest["torn"] = True
            return
        if scanner.peek() == ",":
            scanner.take()


def _array(scanner: _Scanner, rest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while (mark := scanner.peek()) != "]":
        if mark == ",":
            scanner.take()
            continue
        value = scanner.event()
        if value is None:
            rest["torn"] = True
            return
        if isinstance(value, dict):
            yield value
    if scanner.skipped:
        rest["skipped"] = scanner.skipped
    scanner.take()


class _NoJsonError(UsageError):
    """A value that is torn, rather than made to do harm."""


class _Scanner:
    """A window on the text that moves on; :meth:`whole` decodes one JSON value at its front."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream
        self._text, self._at, self._ended = "", 0, False
        self._decoder = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.skipped = 0

    def error(self, what: str, kind: type[UsageError] = UsageError) -> UsageError:
        return kind(f"{self._path}: {what}; not a Chrome trace")

    def _more(self) -> bool:
        """Read on; false at the end of the file."""
        if self._ended:
            return False
        data = self._stream.read(_CHUNK)
        self._ended = not data
        self._text = self._text[self._at :] + self._utf8.decode(data, final=self._ended)
        self._at = 0
        return not self._ended

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        blanks = 0
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
                blanks += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if blanks > _CHUNK:
                raise self.error("holds nothing but blanks")
            if not self._more():
                return ""

    def take(self) -> str:
        mark = self.peek()
        self._at += 1
        return mark

    def whole(self) -> Any:
        """The next value; None where the file ends within it."""
        if not self.peek():
            return None
        try:
            return self._value()
        except UsageError:
            if self._ended and len(self._text) - self._at < MAX_VALUE_CHARACTERS:
                self._at = len(self._text)
                return None
            raise

    def event(self) -> Any:
        """The next event that can be read; None where there is none any more. Torn ones are counted and left out."""
        while True:
            try:
                return self._value()
            except _NoJsonError:  # noqa: PERF203 - costs nothing where none is torn
                if not self._next_event():
                    self._at = len(self._text)
                    return None
                self.skipped += 1

    def _next_event(self) -> bool:
        """Go on to where the next event seems to begin; false where none does."""
        first = self._text.find(_EVENT, self._at)
        following = self._text.find(_EVENT, first + 1) if first >= 0 else -1
        begin = self._text.rfind("{", self._at + 1, following) if following >= 0 else -1
        if begin < 0:
            return False
        self._at = begin
        return True

    def _value(self) -> Any:
        """Decode the next value, reading on until it is whole."""
        self.peek()
        while True:
            found = self._decode()
            if found is not None and (found[1] < len(self._text) or self._ended):
                self._at = found[1]
                return found[0]
            if found is None and len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                most = f"{MAX_VALUE_CHARACTERS >> 20} MiB"
                raise self.error(f"is not JSON, or holds one value of more than {most}")
            if not self._more() and found is None:
                raise self.error("is not JSON", _NoJsonError)

    def _decode(self) -> tuple[Any, int] | None:
        """The value at the front and where it ends; None where it is not whole. A number at the end may go on."""
        try:
            return self._decoder.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            if error.pos < len(self._text) - _NEAR and not error.msg.startswith("Unterminated string"):
                raise self.error("is not JSON", _NoJsonError) from error
            return None
        except (RecursionError, ValueError) as error:
            raise self.error("is nested too deeply or holds a number too long") from error
