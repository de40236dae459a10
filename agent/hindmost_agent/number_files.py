"""Base of samplers whose every value is a small file of its own, as in sysfs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from hindmost_agent.files import File
from hindmost_agent.sampler import NAN, Absent, Host, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hindmost_agent.metric import Series

#: Devices come and go: they are looked for again after this many readings.
RESCAN = 120


class NumberFile(NamedTuple):
    """A file that holds one number, the series that it is, and what one of its units is in the series' unit."""

    series: Series
    path: Path
    unit: float = 1.0


class NumberFiles(Sampler):
    """Reads the files that ``scan`` names; they stay open. One that cannot be read, or holds no number, is missing."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._open: dict[Path, File] = {}
        self._read: list[tuple[File, float]] = []
        self._until_scan = 0

    @abstractmethod
    def scan(self) -> Iterable[NumberFile]:
        """The files there are, in a stable order; none at all makes the sampler absent."""

    def sample(self) -> list[float]:
        if self._until_scan == 0:
            self._rescan()
            self._until_scan = RESCAN
        self._until_scan -= 1
        return [_number(file) * unit for file, unit in self._read]

    def _rescan(self) -> None:
        before, self._open = self._open, {}
        found, self._read = [], []
        for item in self.scan():
            file = before.get(item.path) or _opened(item.path)
            if file is not None:
                self._open[item.path] = file
                self._read.append((file, item.unit))
                found.append(item.series)
        if not found:
            raise Absent(f"nothing to read for {self.name}")
        if tuple(found) != self.series:
            self.series = tuple(found)


def _opened(path: Path) -> File | None:
    try:
        return File(path)
    except OSError:
        return None


def _number(file: File) -> float:
    try:
        return file.integer()
    except (OSError, ValueError):
        return NAN
