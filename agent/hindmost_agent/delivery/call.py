"""One bidirectional call of the Telemetry service: grpclib, on asyncio alone.

grpcio, the collector's server, keeps seven threads for one stream of a client, which wake a dozen times a second though
a message goes every other second; grpclib has none.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from grpclib.client import Channel, StreamStreamMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.exceptions import H2Error, StreamClosedError
from hindmost_proto import METHOD
from hindmost_proto.telemetry_pb2 import CollectorMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from grpclib.client import Stream


class CallError(ConnectionError):
    """The call is over, and not because both sides said so."""


class Coded(CodecBase):
    """Messages are written as the bytes that they are coded in already."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: type[bytes]) -> bytes:  # noqa: ARG002 - grpclib's own names
        """Leave it as it is."""
        return message

    def decode(self, data: bytes, message_type: type[CollectorMessage]) -> CollectorMessage:
        """Raises ``CallError`` when it is no such message."""
        try:
            return message_type.FromString(data)
        except Exception as error:  # whatever its decoder raises
            raise CallError("it sent a message that cannot be read") from error


class Call:
    """Made by ``connect``."""

    def __init__(self, stream: Stream[bytes, CollectorMessage]) -> None:
        self._stream = stream
        self._done = False

    async def write(self, message: bytes) -> None:
        """Send a coded AgentMessage; waits while the collector takes no more."""
        await self._stream.send_message(message)

    async def read(self) -> CollectorMessage | None:
        """The next message; ``None`` when the collector has ended the call in order."""
        message: CollectorMessage | None = await self._stream.recv_message()
        if message is None:
            await self.done_writing()
            await self._stream.recv_trailing_metadata()
        return message

    async def done_writing(self) -> None:
        """Say that nothing more comes; safe to call twice."""
        if not self._done:
            self._done = True
            await self._stream.end()


@asynccontextmanager
async def connect(host: str, port: int, within_s: float) -> AsyncIterator[Call]:
    """A call, which is over when the block is left.

    Raises ``OSError`` where no server listens, ``asyncio.TimeoutError`` after ``within_s`` without a connection, and
    ``CallError``, out of the block too, when the call ended otherwise than in order.
    """
    async with Channel(host, port, codec=Coded()) as channel:
        try:
            async with StreamStreamMethod(channel, METHOD, bytes, CollectorMessage).open() as stream:
                await asyncio.wait_for(stream.send_request(), within_s)
                yield Call(stream)
        except GRPCError as error:
            raise CallError(error.message or f"it ended the call with {error.status.name}") from error
        except (StreamTerminatedError, ProtocolError, H2Error) as error:
            raise CallError(_told(error)) from error


def _told(error: Exception) -> str:
    """Why the call is over; a stream that was ended while something was written is no fault of the connection."""
    said = str(error)
    if isinstance(error, StreamClosedError) or said.endswith("reset by remote party, error_code: 0"):
        return "it ended the stream"
    return said or "it broke the call off"
