"""One bidirectional gRPC call on one TCP connection: as much of HTTP/2 (RFC 9113) and of gRPC's framing as that takes.

The gRPC library keeps a pool of threads that wake a dozen times a second each, and there are more of them the more
cores there are: more CPU time than everything else the agent does together. One call with no neighbours needs no pool,
no multiplexing, no header compression (each header is sent as a literal) and no look at the headers that come back.

    frame    length u24 │ type u8 │ flags u8 │ stream u32 │ payload          big-endian
    message  compressed u8 = 0 │ length u32 │ bytes                          in DATA frames, split anywhere
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import cast

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
CONNECTION, STREAM = 0, 1
HEADER = struct.Struct(">IBI")  # the first u32 is length << 8 | type
#: What a peer may send before it hears how much was taken in, and how much is taken in before it is told.
WINDOW, TELL_AFTER = 65535, 16384
LARGEST_MESSAGE = 4 << 20


class GrpcStream(asyncio.Protocol):
    """A call that sends and receives serialized messages. Every failure is a ``ConnectionError``."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._raw = bytearray()
        self._data = bytearray()
        self._messages: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error: ConnectionError | None = None
        self._paused = False
        self._windows = {CONNECTION: WINDOW, STREAM: WINDOW}
        self._initial_window = WINDOW
        self._largest_frame = 16384
        self._taken_in = 0

    @classmethod
    async def open(cls, host: str, port: int, path: str, timeout_s: float) -> GrpcStream:
        """Connect and start the call of the method at ``path``. Raises ``ConnectionError``."""
        loop = asyncio.get_running_loop()
        try:
            _, protocol = await asyncio.wait_for(loop.create_connection(cls, host, port), timeout_s)
        except asyncio.TimeoutError as error:
            raise ConnectionError(f"no answer within {timeout_s:.0f} s") from error
        except OSError as error:
            raise ConnectionError(error.strerror or str(error)) from error
        protocol._start(path, f"{host}:{port}")
        return protocol

    async def write(self, message: bytes) -> None:
        """Send one message; waits while the peer, or the network, takes no more."""
        rest = memoryview(b"\0" + len(message).to_bytes(4, "big") + message)
        while rest:
            room = min(self._windows[CONNECTION], self._windows[STREAM], self._largest_frame)
            if room <= 0 or self._paused:
                await self._change()
                continue
            self._spend(min(room, len(rest)))
            self._send(DATA, 0, STREAM, bytes(rest[:room]))
            rest = rest[room:]

    async def read(self) -> bytes | None:
        """The next message; ``None`` when the peer has ended the call."""
        while not self._messages:
            if self._ended:
                return None
            await self._change()
        return self._messages.popleft()

    def done_writing(self) -> None:
        """Say that no message follows."""
        self._send(DATA, END_STREAM, STREAM, b"")

    def close(self) -> None:
        """Drop the connection; safe at any time."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Before anything else: a server may speak first, and an answer to that must not come before the preface.
        self._transport.write(PREFACE)
        self._send(SETTINGS, 0, CONNECTION, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was lost" if exc is None else str(exc))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        self._raw += data
        while len(self._raw) >= 9:
            head, flags, stream = HEADER.unpack_from(self._raw)
            length, kind = head >> 8, head & 0xFF
            if len(self._raw) < 9 + length:
                break
            payload = bytes(self._raw[9 : 9 + length])
            del self._raw[: 9 + length]
            self._frame(kind, flags, stream & 0x7FFFFFFF, payload)

    def _start(self, path: str, authority: str) -> None:
        fields = [
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "hindmost-agent"),
        ]
        # 0x83 and 0x86 are ":method: POST" and ":scheme: http" in HPACK's static table.
        block = b"\x83\x86" + b"".join(_literal(name) + _literal(value, b"") for name, value in fields)
        self._send(HEADERS, END_HEADERS, STREAM, block)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._take_in(flags, payload)
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING and not flags & ACK:
            self._send(PING, ACK, CONNECTION, payload)
        elif kind == WINDOW_UPDATE and stream in self._windows and len(payload) == 4:
            self._windows[stream] += int.from_bytes(payload, "big") & 0x7FFFFFFF
            self._changed.set()
        elif kind == RST_STREAM:
            self._fail(f"the call was refused or cancelled (HTTP/2 error {int.from_bytes(payload, 'big')})")
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self._ended = True
            self._changed.set()

    def _take_in(self, flags: int, payload: bytes) -> None:
        self._taken_in += len(payload)
        if self._taken_in >= TELL_AFTER:
            for stream in (CONNECTION, STREAM):
                self._send(WINDOW_UPDATE, 0, stream, self._taken_in.to_bytes(4, "big"))
            self._taken_in = 0
        self._data += payload[1 : len(payload) - payload[0]] if flags & PADDED and payload else payload
        while len(self._data) >= 5:
            length = int.from_bytes(self._data[1:5], "big")
            if self._data[0] or length > LARGEST_MESSAGE:
                self._fail("the answer is no plain gRPC message")
                return
            if len(self._data) < 5 + length:
                return
            self._messages.append(bytes(self._data[5 : 5 + length]))
            del self._data[: 5 + length]
            self._changed.set()

    def _settings(self, payload: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", payload[: len(payload) // 6 * 6]):
            if number == INITIAL_WINDOW_SIZE:  # applies to the open stream too, by the difference
                self._windows[STREAM] += value - self._initial_window
                self._initial_window = value
            elif number == MAX_FRAME_SIZE:
                self._largest_frame = value
        self._send(SETTINGS, ACK, CONNECTION, b"")
        self._changed.set()

    def _spend(self, size: int) -> None:
        for stream in self._windows:
            self._windows[stream] -= size

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload)

    async def _change(self) -> None:
        """Wait until something has arrived. Raises ``ConnectionError`` when nothing will any more."""
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()

    def _fail(self, why: str) -> None:
        if self._error is None:
            self._error = ConnectionError(why)
        self._changed.set()
        self.close()


def _literal(text: str, head: bytes = b"\0") -> bytes:
    """A header's name (with the mark of a literal that is not remembered) or value, uncompressed (RFC 7541, 6.2.2)."""
    data = text.encode("ascii")
    if len(data) < 127:
        return head + bytes([len(data)]) + data
    rest, size = len(data) - 127, bytearray(b"\x7f")
    while rest >= 128:
        size.append(rest & 0x7F | 0x80)
        rest >>= 7
    return head + bytes(size) + bytes([rest]) + data
