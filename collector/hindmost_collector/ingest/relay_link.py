"""The lower end of a relay: one stream to a collector, into which the messages of many agents go unopened."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Protocol

from hindmost_proto import retry
from hindmost_proto.call import connect, watching

from hindmost_collector.ingest.varint import varint
from hindmost_collector.options import address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hindmost_proto.call import Call

log = logging.getLogger(__name__)

#: A collector that is gone without a word is noticed within this.
SILENCE_S = 20.0
#: Batches wait for others this long, so that one message carries many; everything else goes at once.
GATHER_S = 0.1
#: One message upwards, at most; and what may wait for it before agents are no longer read.
MESSAGE_BYTES, WAITING_BYTES = 2 << 20, 16 << 20
#: The collector's own limit of a message, less room for what goes around one agent's.
AGENT_BYTES = (16 << 20) - 1024
LONGEST_PAUSE_S = 10.0
#: The first byte of an AgentMessage that is a batch: field 3, length-delimited.
BATCH = b"\x1a"


class Carried(Protocol):
    """An agent's stream, as the link sees it."""

    def tell(self, message: bytes) -> None:
        """Send to the agent."""

    def end(self, reason: str, *, away: bool = False) -> None:
        """Close the agent's stream: as it should be, for a reason, or because the collector is ``away``."""


def relayed(messages: Iterable[tuple[int, bytes | None]]) -> bytes:
    """An AgentMessage with ``(stream, its AgentMessage, None where it ended)`` in it, without taking any apart."""
    parts = []
    for stream, message in messages:
        told = b"\x18\x01" if message is None else b"\x12" + varint(len(message)) + message
        one = b"\x08" + varint(stream) + told
        parts.append(b"\x0a" + varint(len(one)) + one)
    content = b"".join(parts)
    return b"\x32" + varint(len(content)) + content


class Link:
    """Keeps one stream to one collector open. All agents' streams in it end when it breaks: they replay."""

    def __init__(self, target: str, jitter: Callable[[], float] = random.random) -> None:
        self.target = target
        self.connected = False
        self.messages = self.bytes = self.connects = 0
        self._jitter = jitter
        self._streams: dict[int, Carried] = {}
        self._number = 0
        self._waiting: list[tuple[int, bytes | None]] = []
        self._waiting_bytes = 0
        self._wake, self._urgent, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._said = False

    @property
    def agents(self) -> int:
        """How many agents' streams it carries."""
        return len(self._streams)

    def open(self, carried: Carried) -> int:
        """A number for a new agent's stream. Only while ``connected``."""
        self._number += 1
        self._streams[self._number] = carried
        return self._number

    async def send(self, number: int, message: bytes) -> None:
        """Pass an agent's message on. Waits while too much waits already."""
        await self._room.wait()
        if number in self._streams:
            self._add(number, message, urgent=not message.startswith(BATCH))

    def close(self, number: int) -> None:
        """An agent broke off."""
        if self._streams.pop(number, None):
            self._add(number, None, urgent=True)

    def _add(self, number: int, message: bytes | None, *, urgent: bool) -> None:
        self._waiting.append((number, message))
        self._waiting_bytes += len(message or b"")
        self._wake.set()
        if urgent or self._waiting_bytes > MESSAGE_BYTES // 4:
            self._urgent.set()
        if self._waiting_bytes > WAITING_BYTES:
            self._room.clear()

    async def run(self) -> None:
        """Connect, carry, reconnect; until cancelled."""
        attempt = 0
        while True:
            before = self.connects
            try:
                await self._stream()
            except (OSError, asyncio.TimeoutError) as error:
                self._say(error)
            finally:
                self._break()
            attempt = 0 if self.connects > before else attempt + 1
            await asyncio.sleep(retry.pause_s(attempt, LONGEST_PAUSE_S, self._jitter()))

    async def _stream(self) -> None:
        host, port = address(self.target, "--relay-to")
        async with connect(host, port, SILENCE_S, watching(SILENCE_S / 2)) as call:
            await call.write(relayed([]))
            first = await asyncio.wait_for(call.read(), SILENCE_S)
            if first is None or first.WhichOneof("body") != "returned":
                raise ConnectionError("it does not answer as a collector that takes relays")
            self.connected, self.connects, self._said = True, self.connects + 1, False
            log.info("relaying agents to %s", self.target)
            await retry.together(self._receive(call), self._send(call))

    async def _receive(self, call: Call) -> None:
        while (message := await call.read()) is not None:
            for one in message.returned.messages:
                carried = self._streams.get(one.stream)
                if carried is None:
                    continue
                if one.HasField("end"):
                    del self._streams[one.stream]
                    carried.end(one.end.reason)
                else:
                    carried.tell(one.message.SerializeToString())
        raise ConnectionError("it ended the stream")

    async def _send(self, call: Call) -> None:
        while True:
            await self._wake.wait()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), GATHER_S)
            self._wake.clear()
            self._urgent.clear()
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._room.set()
            for part in _portions(waiting):
                content = relayed(part)
                self.messages += len(part)
                self.bytes += len(content)
                await call.write(content)

    def _break(self) -> None:
        self.connected = False
        self._waiting, self._waiting_bytes = [], 0
        self._room.set()
        streams, self._streams = self._streams, {}
        for carried in streams.values():
            carried.end(f"collector {self.target} is out of reach", away=True)

    def _say(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            what = retry.reason(error)
            log.warning("collector %s cannot be reached (%s): agents wait and keep their data", self.target, what)


def _portions(waiting: list[tuple[int, bytes | None]]) -> Iterable[list[tuple[int, bytes | None]]]:
    """In order, each of about MESSAGE_BYTES at most; a larger message is sent alone."""
    portion: list[tuple[int, bytes | None]] = []
    held = 0
    for one in waiting:
        size = len(one[1] or b"")
        if portion and held + size > MESSAGE_BYTES:
            yield portion
            portion, held = [], 0
        portion.append(one)
        held += size
    if portion:
        yield portion
