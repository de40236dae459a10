"""Base of samplers whose every value is a small file of its own, as in sysfs."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from hindmost_agent.files import File
from hindmost_agent.sampler import NAN, Absent, Host, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hindmost_agent.metric import Series

log = logging.getLogger(__name__)

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


class Fixed:
    """A number that was read, in the place of its file."""

    def __init__(self, value: int) -> None:
        self._value = value

    def integer(self) -> int:
        """The number."""
        return self._value


class NumberFiles(Sampler):
    """Reads the files that ``scan`` names; they stay open. One that cannot be read, or holds no number, is missing."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._open: dict[Path, File | Fixed] = {}
        self._read: list[tuple[File | Fixed, NumberFile]] = []
        self._until_scan = 0
        self._said: set[str] = set()

    @abstractmethod
    def scan(self) -> Iterable[NumberFile]:
        """The files there are, in a stable order, none twice; with no file the sampler is off."""

    def beside(self) -> Iterable[Series]:
        """Series that a sampler of its own reading adds after those of the files, as they are since the last scan."""
        return ()

    def sample(self) -> list[float]:
        if self._until_scan == 0:
            self._rescan()
            self._until_scan = RESCAN
        self._until_scan -= 1
        return [self._number(file, item) for file, item in self._read]

    def _rescan(self) -> None:
        before, self._open = self._open, {}
        found: list[Series] = []
        self._read = []
        for item in self.scan():
            file = before.get(item.path) or self._opened(item)
            if file is not None:
                self._open[item.path] = file
                self._read.append((file, item))
                found.append(item.series)
        found += self.beside()
        if not found:
            raise Absent(f"nothing to read for {self.name}")
        if tuple(found) != self.series:
            self.series = tuple(found)

    def _opened(self, item: NumberFile) -> File | Fixed | None:
        try:
            file = File(item.path)
            return Fixed(file.integer()) if item.fixed else file
        except FileNotFoundError:  # not every device has every file
            return None
        except (OSError, ValueError) as error:
            self._say(item, error)
            return None

    def _number(self, file: File | Fixed, item: NumberFile) -> float:
        try:
            value = file.integer()
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
