"""The part of HTTP/2 (RFC 9113) and of its header blocks (RFC 7541) that a gRPC call needs. No I/O.

    frame ┬ u24 length of the payload
          ├ u8  kind
          ├ u8  flags
          ├ u32 stream, 0 for the connection
          └ payload

Header blocks are written without compression, and read without: a table of size 0 is asked for, which keeps a peer from
referring back. Text that a peer writes in Huffman's code all the same is not decoded: it is the reason of an end, and
without it there still is an end.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
#: Flags. The same bit says ACK of settings and pings, and END_STREAM of data and headers.
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4
CANCEL = 8
#: What a window is before anybody has said otherwise, and a frame at most unless it is said otherwise, which is never.
FIRST_WINDOW, LARGEST = 65535, 16384
#: Header blocks are a few lines; one without end must not take memory.
LARGEST_BLOCK = 1 << 16

_HEAD = struct.Struct(">BHBBI")
_SETTING = struct.Struct(">HI")
#: Of the static table: the values of ``:status``, by index.
_STATUS = dict(zip(range(8, 15), ("200", "204", "206", "304", "400", "404", "500"), strict=True))


class ProtocolError(ConnectionError):
    """The peer does not speak HTTP/2 as it must."""


class Frame(NamedTuple):
    """A frame without its padding and priority; ``size`` is the payload's with them, as windows count it."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    size: int


def encode(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """A frame as bytes."""
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def number(value: int) -> bytes:
    """The payload of a frame that holds one number."""
    return value.to_bytes(4, "big")


def settings(values: dict[int, int]) -> bytes:
    """The payload of a frame of settings."""
    return b"".join(_SETTING.pack(*item) for item in values.items())


def read_settings(payload: bytes) -> dict[int, int]:
    """What a frame of settings sets. Raises ``ProtocolError``."""
    if len(payload) % _SETTING.size:
        raise ProtocolError("it sent settings that are cut short")
    return dict(_SETTING.iter_unpack(payload))


class Frames:
    """Cuts what arrives into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole by now. Raises ``ProtocolError`` for what is none."""
        data = self._rest + data
        start = 0
        while len(data) - start >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, start)
            length = high << 16 | low
            if length > LARGEST:  # the first bytes of an answer in HTTP/1 read as a length, too
                raise ProtocolError("it does not speak HTTP/2")
            end = start + _HEAD.size + length
            if end > len(data):
                break
            payload = _bare(kind, flags, data[start + _HEAD.size : end])
            yield Frame(kind, flags, stream & 0x7FFFFFFF, payload, length)
            start = end
        self._rest = data[start:]


def _bare(kind: int, flags: int, payload: bytes) -> bytes:
    if kind not in (DATA, HEADERS) or not flags & (PADDED | PRIORITY):
        return payload
    padding = 0
    if flags & PADDED:
        if not payload or payload[0] >= len(payload):
            raise ProtocolError("it sent more padding than frame")
        padding, payload = payload[0], payload[1:]
    start = 5 if kind == HEADERS and flags & PRIORITY else 0
    return payload[start : len(payload) - padding]


def headers(lines: Iterable[tuple[str, str]]) -> bytes:
    """A header block, each line a literal that enters no table."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in lines)


def _string(text: str) -> bytes:
    data = text.encode()
    return _integer(len(data), 7) + data


def _integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    coded, value = bytearray([most]), value - most
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*coded, value])


def read_headers(block: bytes) -> dict[str, str]:
    """The lines of a header block whose names are written in it, and ``:status``. Raises ``ProtocolError``."""
    found: dict[str, str] = {}
    place = 0
    try:
        while place < len(block):
            first = block[place]
            if first & 0x80:  # a whole line by its number
                index, place = _read_integer(block, place, 7)
                if index in _STATUS:
                    found[":status"] = _STATUS[index]
            elif first & 0xE0 == 0x20:  # the size of the table, which is 0
                _, place = _read_integer(block, place, 5)
            else:  # a value, and a name or its number
                index, place = _read_integer(block, place, 6 if first & 0x40 else 4)
                name, place = (":status" if index in _STATUS else "", place) if index else _read_string(block, place)
                value, place = _read_string(block, place)
                found[name] = value
    except IndexError as error:
        raise ProtocolError("it sent headers that are cut short") from error
    found.pop("", None)
    return found


def _read_integer(block: bytes, place: int, bits: int) -> tuple[int, int]:
    """A number and the place after it. Raises ``IndexError`` at the block's end."""
    most = (1 << bits) - 1
    value = block[place] & most
    place += 1
    if value < most:
        return value, place
    for shift in range(0, 28, 7):
        byte = block[place]
        place += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ProtocolError("it sent a number without end")


def _read_string(block: bytes, place: int) -> tuple[str, int]:
    """A text and the place after it; empty when it is in Huffman's code. Raises ``IndexError`` at the block's end."""
    huffman = block[place] & 0x80
    length, place = _read_integer(block, place, 7)
    if place + length > len(block):
        raise IndexError
    text = "" if huffman else block[place : place + length].decode("utf-8", "replace")
    return text, place + length
