"""Reading small kernel files again and again at little cost, and the samplers that do nothing else.

A :class:`File` keeps its descriptor open, and ``pread`` starts at 0.
"""

import logging
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hindmost_agent.sampler import NAN, Absent, Host, Sampler, Series

log = logging.getLogger(__name__)

#: Kernel files that are sequences of records come in pieces of up to a page, so a short piece is the last one.
SURELY_WHOLE = 1024
PIECE = 1 << 16
#: No file that is read here is larger; a fuzzed or broken one must not take the agent's memory.
LIMIT = 4 << 20


class File:
    """A file that is read whole each time. Raises ``OSError`` when it cannot be opened or read."""

    __slots__ = ("_fd", "_surely_whole", "path")

    def __init__(self, path: Path | str, *, one_record: bool = False) -> None:
        """With ``one_record`` the kernel writes the file as one, which comes in one piece however long it is.

        Asking whether there is more makes it write all of it again.
        """
        self._fd = -1
        self._surely_whole = PIECE if one_record else SURELY_WHOLE
        self.path = str(path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def read(self, limit: int = LIMIT) -> bytes:
        """Everything in the file, at most ``limit`` bytes."""
        data = os.pread(self._fd, min(PIECE, limit), 0)
        if len(data) < self._surely_whole:
            return data
        pieces, size = [data], len(data)
        while size < limit and (data := os.pread(self._fd, min(PIECE, limit - size), size)):
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)

    def integer(self) -> int:
        """The file's only number. Raises ``ValueError`` when it holds something else."""
        return int(os.pread(self._fd, 64, 0))

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def read_once(path: Path | str, limit: int = LIMIT) -> bytes:
    """The first ``limit`` bytes of a file that is not worth a kept descriptor."""
    file = File(path)
    try:
        return file.read(limit)
    finally:
        file.close()


def numbers(folder: Path | str) -> list[int]:
    """Names in a folder of /proc that are numbers: processes or threads, in order. Raises ``OSError``."""
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit())  # noqa: PTH208 - thousands: no paths


def text(path: Path | str) -> str:
    """A one-line file as text without the newline; empty when it cannot be read."""
    try:
        return read_once(path, PIECE).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def mount_text(word: bytes) -> str:
    """A word of a list of mounts as text: blanks, tabs and the like stand there in octal, as ``\\040``."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda octal: bytes([int(octal[1], 8)]), word).decode("utf-8", "replace")


class Lines:
    """Chosen lines of a file of a name and a number each. Where they stand is found once, and again when it changes."""

    def __init__(self, file: File, keys: tuple[bytes, ...]) -> None:
        self._file = file
        self._keys = keys
        #: Names that the file has, as they are written there, and the place of each among all its words.
        self._names: list[bytes] = []
        self._places: list[int] = []
        #: For each key the place of its number among all words, -1 where the file has none.
        self._numbers: list[int] = []

    def read(self) -> list[float]:
        """A value for each key, missing where the file has none, or one that is no number."""
        words = self._file.read().split()
        if not self._hold(words):
            self._find(words)
        try:
            return [NAN if place < 0 else float(words[place]) for place in self._numbers]
        except (ValueError, IndexError):  # torn: what else the file says is still true
            return [_number_at(words, place) for place in self._numbers]

    def _hold(self, words: list[bytes]) -> bool:
        """Whether every name still stands where it was found."""
        places = self._places
        return bool(places) and places[-1] < len(words) and [words[place] for place in places] == self._names

    def _find(self, words: list[bytes]) -> None:
        wanted = set(self._keys)
        found: dict[bytes, int] = {}
        for place, word in enumerate(words):
            if (key := word.removesuffix(b":")) in wanted:
                found.setdefault(key, place)
        self._places = sorted(found.values())
        self._names = [words[place] for place in self._places]
        self._numbers = [found[key] + 1 if key in found else -1 for key in self._keys]


def _number_at(words: list[bytes], place: int) -> float:
    try:
        return float(words[place]) if 0 <= place < len(words) else NAN
    except ValueError:
        return NAN


#: Devices come and go: they are looked for again after this many readings.
RESCAN = 120


class NumberFile(NamedTuple):
    """A file that holds one number, the series that it is, and what one of its units is in the series' unit."""

    series: Series
    path: Path
    unit: float = 1.0
    #: Whether a number below 0 says that it is not known.
    unsigned: bool = False
    #: Whether the number never changes: it is read once, and no descriptor is kept for it.
    fixed: bool = False
    #: Where a counter stops, if it does: from then on it says nothing.
    full: int | None = None


class NumberFiles(Sampler):
    """Base of samplers whose every value is a small file of its own, as in sysfs: ``scan`` names them.

    They stay open. One that cannot be read, or holds no number, is missing.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        #: By file what reads its number.
        self._open: dict[Path, Callable[[], int]] = {}
        self._read: list[tuple[Callable[[], int], NumberFile]] = []
        self._until_scan = 0
        self._said: set[str] = set()

    @abstractmethod
    def scan(self) -> Iterable[NumberFile]:
        """The files there are, in a stable order, none twice; with no file the sampler is off."""

    def further(self) -> Iterable[Series]:
        """Series that a sampler of its own reading adds after those of the files, as they are since the last scan."""
        return ()

    def sample(self) -> list[float]:
        if self._until_scan == 0:
            self._rescan()
            self._until_scan = RESCAN
        self._until_scan -= 1
        return [self._number(integer, item) for integer, item in self._read]

    def _rescan(self) -> None:
        before, self._open = self._open, {}
        found: list[Series] = []
        self._read = []
        for item in self.scan():
            integer = before.get(item.path) or self._opened(item)
            if integer is not None:
                self._open[item.path] = integer
                self._read.append((integer, item))
                found.append(item.series)
        found += self.further()
        if not found:
            raise Absent(f"nothing to read for {self.name}")
        self.series = tuple(found)

    def _opened(self, item: NumberFile) -> Callable[[], int] | None:
        try:
            file = File(item.path)
            return partial(int, file.integer()) if item.fixed else file.integer
        except FileNotFoundError:  # not every device has every file
            return None
        except (OSError, ValueError) as error:
            self._say(item, error)
            return None

    def _number(self, integer: Callable[[], int], item: NumberFile) -> float:
        try:
            value = integer()
        except (OSError, ValueError) as error:
            self._say(item, error)
            return NAN
        return NAN if (item.unsigned and value < 0) or value == item.full else value * item.unit

    def _say(self, item: NumberFile, error: Exception) -> None:
        """One line for each metric, not one for each device and reading."""
        name = item.series.metric.name
        if name not in self._said:
            self._said.add(name)
            why = error.strerror if isinstance(error, OSError) else error
            log.info("sampler %s: %s is missing: %s: %s (logged once)", self.name, name, item.path, why)
