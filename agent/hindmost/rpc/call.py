"""One bidirectional gRPC call on a connection of its own, on asyncio.

grpcio keeps seven threads for one stream, which wake a dozen times a second though a message goes every other second;
they, and its 13 MiB, are a third of what an agent costs. This is one callback when something arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar, cast
from urllib.parse import unquote

from hindmost.rpc import frames
from hindmost.rpc.frames import Frame, ProtocolError, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_Answer = TypeVar("_Answer")

#: The one stream of the connection.
STREAM = 1
#: How much the peer may send before it is read.
WINDOW = 5 << 20
#: A message that is longer ends the call, unless another limit is given.
LARGEST_MESSAGE = 4 << 20
#: In front of each message: whether it is compressed, which is never asked for, and its length.
PREFIX = 5
#: Read from the socket at once.
PIECE = 1 << 16
#: A window cannot be larger.
MOST = (1 << 31) - 1


class CallError(ConnectionError):
    """The call is over, and not because its server said that all was well."""


class Call(asyncio.BufferedProtocol, Generic[_Answer]):
    """Made by ``connect``. Messages are written as bytes, and read as ``decode`` makes them."""

    def __init__(self, authority: str, method: str, decode: Callable[[bytes], _Answer], largest: int) -> None:
        self._authority, self._method = authority, method
        self._decode, self._largest = decode, largest
        self._transport: asyncio.Transport | None = None
        #: What asyncio reads into: without, it asks the system for 256 KiB each time, and gives them back.
        self._buffer = bytearray(PIECE)
        self._frames = frames.Frames()
        self._block: bytes | None = None
        self._block_ends = False
        self._status = ""
        self._data = bytearray()
        self._messages: deque[bytes] = deque()
        self._arrived, self._writable = asyncio.Event(), asyncio.Event()
        self._over: str | None = None
        self._paused = self._heard = False
        self._unreturned = 0
        #: What may be sent, on the connection and on the stream.
        self._rooms = [frames.FIRST_WINDOW, frames.FIRST_WINDOW]
        self._first_window = frames.FIRST_WINDOW

    async def write(self, message: bytes) -> None:
        """Send a message; waits while the peer takes no more. Raises ``CallError``."""
        await self._write(memoryview(b"\0" + len(message).to_bytes(4, "big") + message))

    async def read(self) -> _Answer | None:
        """The next message; ``None`` when the server has ended the call in order. Raises ``CallError``."""
        while not self._messages:
            if self._over == "":
                return None
            if self._over is not None:
                self._raise()
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._return_room()
        try:
            return self._decode(message)
        except Exception as error:  # whatever its decoder raises
            raise CallError("it sent a message that cannot be read") from error

    def done_writing(self) -> None:
        """Say that nothing more comes."""
        self._send(frames.DATA, frames.END_STREAM, STREAM)

    def close(self) -> None:
        """Leave, whatever is on the way; safe to call twice."""
        if self._over is None:
            self._send(frames.RST_STREAM, 0, STREAM, frames.number(frames.CANCEL))
        self._end("it was left")

    async def watch(self, period_s: float) -> NoReturn:
        """Ask the server every so often whether it is there. Raises ``CallError`` when it does not answer in time."""
        while True:
            self._heard = False
            self._send(frames.PING, 0, 0, bytes(8))
            await asyncio.sleep(period_s)
            if not self._heard:
                self._end(f"no answer for {period_s:.0f} s")
                self._raise()

    async def _write(self, rest: memoryview) -> None:
        while rest:
            if self._over is not None:
                self._raise()
            room = min(self._rooms)
            if room <= 0 or self._paused:
                self._writable.clear()
                await self._writable.wait()
                continue
            portion, rest = rest[:room], rest[room:]
            self._rooms = [room - len(portion) for room in self._rooms]
            pieces = (portion[start : start + frames.LARGEST] for start in range(0, len(portion), frames.LARGEST))
            self._put(b"".join(encode(frames.DATA, 0, STREAM, piece) for piece in pieces))

    def _raise(self) -> NoReturn:
        raise CallError(self._over or "it ended the call")

    def _send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self._put(encode(kind, flags, stream, payload))

    def _put(self, data: bytes) -> None:
        if self._transport is not None and self._over is None:
            self._transport.write(data)

    def _end(self, why: str) -> None:
        """The first reason counts; it is empty when all is well."""
        if self._over is None:
            self._over = why
        self._arrived.set()
        self._writable.set()
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():  # to whom takes nothing, that would wait for ever
            self._transport.abort()
        else:
            self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who calls what."""
        self._transport = cast("asyncio.Transport", transport)
        wanted = {frames.HEADER_TABLE_SIZE: 0, frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: WINDOW}
        lines = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", self._method),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-python-hindmost"),
        )
        self._put(
            frames.PREFACE
            + encode(frames.SETTINGS, 0, 0, frames.settings(wanted))
            + encode(frames.WINDOW_UPDATE, 0, 0, frames.number(WINDOW - frames.FIRST_WINDOW))
            + encode(frames.HEADERS, frames.END_HEADERS, STREAM, frames.headers(lines))
        )

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's own name
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take in whatever part of whatever frames has arrived."""
        self._heard = True
        try:
            for frame in self._frames.feed(bytes(self._buffer[:nbytes])):
                if self._over is None:
                    self._take(frame)
        except ProtocolError as error:
            self._end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The call cannot outlive its connection."""
        self._end(f"the connection broke: {getattr(exc, 'strerror', None) or exc}" if exc else "it hung up")

    def pause_writing(self) -> None:
        """Its socket takes no more for now."""
        self._paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self._paused = False
        self._writable.set()

    # What each frame means.

    def _take(self, frame: Frame) -> None:
        kind, flags, stream, payload, size = frame
        if kind == frames.DATA and stream == STREAM:
            self._take_data(flags, payload, size)
        elif kind == frames.WINDOW_UPDATE:
            self._widen(stream, payload)
        elif kind == frames.HEADERS and stream == STREAM:
            self._block, self._block_ends = b"", bool(flags & frames.END_STREAM)
            self._take_block(flags, payload)
        elif kind == frames.CONTINUATION and stream == STREAM:
            self._take_block(flags, payload)
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._set(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self._send(frames.PING, frames.ACK, 0, payload)
        elif kind == frames.RST_STREAM and stream == STREAM:
            self._end(f"it broke the call off, error {int.from_bytes(payload, 'big')} of HTTP/2")
        elif kind == frames.GOAWAY and int.from_bytes(payload[:4], "big") < STREAM:
            self._end(f"it takes no calls, error {int.from_bytes(payload[4:8], 'big')} of HTTP/2")

    def _take_data(self, flags: int, payload: bytes, size: int) -> None:
        self._unreturned += size
        self._data += payload
        while len(self._data) >= PREFIX:
            length = int.from_bytes(self._data[1:PREFIX], "big")
            if self._data[0] or length > self._largest:
                raise ProtocolError("it sent a message that is compressed, or too long")
            end = PREFIX + length
            if len(self._data) < end:
                break
            self._messages.append(bytes(self._data[PREFIX:end]))
            del self._data[:end]
            self._arrived.set()
        self._return_room()
        if flags & frames.END_STREAM:
            self._end("it ended the call without saying why")

    def _return_room(self) -> None:
        """Let the peer send more once all that it sent has been read."""
        if self._unreturned > WINDOW // 8 and not self._messages:
            room, self._unreturned = frames.number(self._unreturned), 0
            for stream in (0, STREAM):
                self._send(frames.WINDOW_UPDATE, 0, stream, room)

    def _take_block(self, flags: int, payload: bytes) -> None:
        self._block = (self._block or b"") + payload
        if len(self._block) > frames.LARGEST_BLOCK:
            raise ProtocolError("it sent headers without end")
        if not flags & frames.END_HEADERS:
            return
        lines, self._block = frames.read_headers(self._block), None
        self._status = lines.get(":status", self._status)
        if self._status not in ("", "200"):
            self._end(f"it answers {self._status} of HTTP")
        elif self._block_ends:
            status = lines.get("grpc-status", "of no number")
            said = unquote(lines.get("grpc-message", ""))
            self._end("" if status == "0" else said or f"it ended the call with gRPC's status {status}")

    def _set(self, payload: bytes) -> None:
        found = frames.read_settings(payload)
        window = found.get(frames.INITIAL_WINDOW_SIZE, self._first_window)
        self._rooms[1] += window - self._first_window
        self._first_window = window
        self._send(frames.SETTINGS, frames.ACK, 0)
        self._writable.set()

    def _widen(self, stream: int, payload: bytes) -> None:
        place = 1 if stream else 0
        self._rooms[place] += int.from_bytes(payload, "big") & MOST
        self._writable.set()


async def connect(
    host: str, port: int, method: str, decode: Callable[[bytes], _Answer], largest: int = LARGEST_MESSAGE
) -> Call[_Answer]:
    """Start a call that takes messages of up to ``largest`` bytes.

    Raises ``OSError`` where nobody listens; what the server thinks of the call comes with ``read``.
    """
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    _, call = await asyncio.get_running_loop().create_connection(
        lambda: Call(authority, method, decode, largest), host, port
    )
    return call
