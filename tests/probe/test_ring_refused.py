"""What is no ring, or is one no more, is refused in one line that names it."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hindmost import ring
from hindmost.ring import layout


@pytest.fixture(autouse=True)
def implementation(written_in: str) -> str:
    """Rings are written by the pure Python writer and by the C one, where it can be built."""
    return written_in


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "is truncated"),
        (lambda data: data[:-40], "is truncated"),
        (lambda data: bytes(8) + data[8:], "is not a ring"),
        (lambda data: b"garbage!" * 20000, "is not a ring"),
        (lambda data: data[:8] + b"\x09" + data[9:], "layout 9"),
        (lambda data: data[:16] + b"\x03" + data[17:], "damaged header"),
    ],
)
def test_damaged_file_is_named(writer: ring.Writer, damage: object, message: str) -> None:
    """A file that is torn, foreign or of another version is refused in one line that names it."""
    data = Path(writer.path).read_bytes()
    broken = Path(writer.path).with_suffix(".broken")
    broken.write_bytes(damage(data))  # type: ignore[operator]
    with pytest.raises(ring.RingError, match=message) as error:
        ring.Reader(broken)
    assert str(broken) in str(error.value)
    assert "\n" not in str(error.value)


def named(path: Path) -> None:
    """A socket of this name; it stays when it is closed."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, named])
def test_what_is_no_file_is_no_ring(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A FIFO does not block until its writer comes; it, a folder and a socket are refused in one line."""
    make(path := tmp_path / "0.py.1.ring")
    with pytest.raises(ring.RingError, match=r"not a regular file|cannot be opened") as error:
        ring.Reader(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(writer: ring.Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may fail under a file that is open."""
    reader = ring.Reader(writer.path)
    monkeypatch.setattr(os, "pread", Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(ring.RingError, match=r"\.ring: cannot be read: Input/output error"):
        reader.poll()


def test_file_that_is_cut_or_removed_under_a_reader(writer: ring.Writer) -> None:
    """A removed ring is read to its end; a ring cut short is an error, not a signal."""
    writer.event(ring.MARK, 0, 1, 0)
    reader = ring.Reader(writer.path)
    copy = os.open(writer.path, os.O_RDWR)
    Path(writer.path).unlink()
    writer.event(ring.MARK, 0, 2, 0)
    assert [e.start_ns for e in reader.poll()] == [1, 2]
    with pytest.raises(ring.RingError, match="cannot be opened"):
        ring.Reader(writer.path)
    os.ftruncate(copy, 1000)
    with pytest.raises(ring.RingError, match="is truncated"):
        reader.poll()
    os.ftruncate(copy, layout.RECORDS_OFFSET + 64 * 40)  # before the writer touches it again
    os.close(copy)
