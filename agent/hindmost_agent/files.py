"""Reading small kernel files again and again at little cost: the descriptor stays open, ``pread`` starts at 0."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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

    def read(self) -> bytes:
        """Everything in the file, at most ``LIMIT`` bytes."""
        data = os.pread(self._fd, PIECE, 0)
        if len(data) < self._surely_whole:
            return data
        pieces, size = [data], len(data)
        while size < LIMIT and (data := os.pread(self._fd, PIECE, size)):
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
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = os.pread(fd, min(PIECE, limit), 0)
        if len(data) < SURELY_WHOLE:
            return data
        pieces, size = [data], len(data)
        while size < limit and (data := os.pread(fd, min(PIECE, limit - size), size)):
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)
    finally:
        os.close(fd)


def numbers(folder: Path | str) -> list[int]:
    """Names in a folder of /proc that are numbers: processes or threads, in order. Raises ``OSError``."""
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit())  # noqa: PTH208 - thousands: no paths


def text(path: Path | str) -> str:
    """A one-line file as text without the newline; empty when it cannot be read."""
    try:
        return read_once(path, 256).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def mount_text(word: bytes) -> str:
    """A word of a list of mounts as text: blanks, tabs and the like stand there in octal, as ``\\040``."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda octal: bytes([int(octal[1], 8)]), word).decode("utf-8", "replace")
