"""Files that a faulty rank really waits for: read past the cache, written until they are on the disk, mapped."""

import mmap
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

CHUNK = 1 << 18
SIZE = 256 << 20


class NoStorageError(Exception):
    """Files that take no time, since no disk is behind them."""


class Scratch:
    """A large file on a disk, in the job's room or, where that is in memory, in another folder."""

    def __init__(self, room: Path) -> None:
        self.path = self.folder(room) / "data"
        block = os.urandom(1 << 20)
        with self.path.open("wb") as file:
            for _ in range(SIZE // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.buffer = mmap.mmap(-1, CHUNK)  # on a page's border, as reading past the cache must have it
        self.direct = self._open_direct()
        self.log = os.open(self.path.with_name("log"), os.O_WRONLY | os.O_CREAT)
        self.data = mmap.mmap(os.open(self.path, os.O_RDWR), SIZE)
        self.random = random.Random(0)  # noqa: S311, the same in every run
        self.read_on = 0

    @staticmethod
    def folder(room: Path) -> Path:
        """Where large files go, apart from what is kept of a job."""
        found = room / "scratch"
        found.mkdir(exist_ok=True)
        return found

    def _open_direct(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        except OSError:  # a file system that has no such thing: what was read is let go instead
            return os.open(self.path, os.O_RDONLY)

    def read(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            os.preadv(self.direct, [self.buffer], self.read_on)
            os.posix_fadvise(self.direct, self.read_on, CHUNK, os.POSIX_FADV_DONTNEED)
            self.read_on = (self.read_on + CHUNK) % SIZE

    def write(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            os.pwrite(self.log, self.buffer, 0)
            os.fsync(self.log)

    def touch(self, seconds: float) -> None:
        """Read and change bytes of the mapped file, here and there."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            at = self.random.randrange(SIZE)
            self.data[at] = (self.data[at] + 1) % 256

    def check_reads(self) -> None:
        self._check(lambda: self.read(0.05), "read_bytes")

    def check_writes(self) -> None:
        self._check(lambda: self.write(0.05), "write_bytes")

    def _check(self, act: Callable[[], None], counter: str) -> None:
        """Raises NoStorageError where the kernel counts no bytes to or from a disk."""
        before = _counted(counter)
        act()
        if _counted(counter) - before < CHUNK:
            raise NoStorageError(f"{self.path} is on no disk: set TMPDIR to a folder on one")


def _counted(counter: str) -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines[counter])
