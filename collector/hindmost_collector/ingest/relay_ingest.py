"""The upper end of a relay: one stream that carries many agents, each served as if it had its own."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hindmost.errors import HindmostError
from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hindmost_collector.ingest.session import Agent, Outbox

    Write = Callable[[wire.CollectorMessage], Awaitable[None]]

#: Messages that wait for a relay that does not read, at most.
_WAITING = 4096
#: Messages, and bytes of them, that an agent may send before it is greeted; one that waits for its Welcome sends none.
_EARLY, _EARLY_BYTES = 64, 1 << 20


class Agents(Protocol):
    """What serves one agent: a relay's stream has many."""

    counts: Counter[str]

    def refused(self, hello: wire.Hello) -> str:
        """Why an agent is not served; empty when it is."""

    async def greet(self, hello: wire.Hello, *, direct: bool = True) -> tuple[Agent, Outbox]:
        """The agent that greets, and what to send it on this stream."""

    async def handle(self, agent: Agent, outbox: Outbox, message: wire.AgentMessage) -> bool:
        """Take one message of a stream; False after the last."""

    def part(self, agent: Agent, outbox: Outbox) -> None:
        """A stream has ended."""


class _Carried(NamedTuple):
    """One agent's stream within the relay's."""

    agent: Agent
    outbox: Outbox
    pump: asyncio.Task[None]


class RelayStream:
    """Serves a relay until it breaks off."""

    def __init__(self, ingest: Agents, write: Write) -> None:
        self._ingest, self._write = ingest, write
        self._carried: dict[int, _Carried] = {}
        self._out: list[wire.ToAgent] = []
        self._wake = asyncio.Event()
        self._greeting: dict[int, deque[wire.AgentMessage]] = {}  # what came of streams whose agent is not greeted yet
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, first: wire.AgentMessage, requests: AsyncIterator[wire.AgentMessage]) -> None:
        """Take all messages in and answer all agents. All agents' streams end with this one."""
        self._ingest.counts["relay_streams"] += 1
        await self._write(wire.CollectorMessage(returned=wire.Returned()))
        sender = asyncio.create_task(self._send())
        try:
            await self._take(first.relayed)
            async for message in requests:
                await self._take(message.relayed)
        finally:
            self._greeting.clear()
            for number in list(self._carried):
                self._drop(number)
            for task in (sender, *self._tasks):
                task.cancel()
            await asyncio.gather(sender, *self._tasks, return_exceptions=True)

    async def _take(self, relayed: wire.Relayed) -> None:
        for one in relayed.messages:
            carried = self._carried.get(one.stream)
            if one.ended:
                self._drop(one.stream)
            elif one.stream in self._greeting:
                self._early(one.stream, one.message)
            elif carried is None:
                self._open(one.stream, one.message)
            else:
                await self._handle(carried, one.message)

    async def _handle(self, carried: _Carried, message: wire.AgentMessage) -> None:
        if carried.outbox.closed:
            return
        if message.WhichOneof("body") == "goodbye":  # waits for what is durable: not here, where all pass
            self._spawn(self._farewell(carried, message))
        else:
            await self._ingest.handle(carried.agent, carried.outbox, message)

    def _open(self, number: int, message: wire.AgentMessage) -> None:
        if message.WhichOneof("body") != "hello":
            return  # of a stream that has ended here, sent before the relay knew
        refusal = self._ingest.refused(message.hello)
        if refusal:
            self._end(number, refusal)
            return
        early = self._greeting[number] = deque()
        self._spawn(self._greet(number, message.hello, early))

    def _early(self, number: int, message: wire.AgentMessage) -> None:
        early = self._greeting[number]
        early.append(message)
        if len(early) > _EARLY or sum(one.ByteSize() for one in early) > _EARLY_BYTES:
            self._drop(number)
            self._end(number, "too many messages before the Welcome")

    async def _greet(self, number: int, hello: wire.Hello, early: deque[wire.AgentMessage]) -> None:
        """Greet one agent while the others' messages pass; what it sent meanwhile is taken first."""
        try:
            agent, outbox = await self._ingest.greet(hello, direct=False)
        except HindmostError as error:
            if self._greeting.get(number) is early:
                del self._greeting[number]
                self._end(number, str(error))
            return
        if self._greeting.get(number) is not early:  # it broke off meanwhile
            self._ingest.part(agent, outbox)
            return
        carried = self._carried[number] = _Carried(agent, outbox, asyncio.create_task(self._pump(number, outbox)))
        while early and self._greeting.get(number) is early:
            await self._handle(carried, early.popleft())
        if self._greeting.get(number) is early:
            del self._greeting[number]

    async def _pump(self, number: int, outbox: Outbox) -> None:
        async def write(message: wire.CollectorMessage) -> None:
            while len(self._out) > _WAITING:
                await asyncio.sleep(0.05)
            self._out.append(wire.ToAgent(stream=number, message=message))
            self._wake.set()

        await outbox.pump(write)
        self._end(number, outbox.reason or "")
        carried = self._carried.pop(number, None)
        if carried:
            self._ingest.part(carried.agent, outbox)

    async def _farewell(self, carried: _Carried, message: wire.AgentMessage) -> None:
        await self._ingest.handle(carried.agent, carried.outbox, message)
        await asyncio.wait({carried.pump})

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, number: int, reason: str) -> None:
        self._out.append(wire.ToAgent(stream=number, end=wire.End(reason=reason)))
        self._wake.set()

    def _drop(self, number: int) -> None:
        """An agent broke off, or the relay did."""
        self._greeting.pop(number, None)
        carried = self._carried.pop(number, None)
        if carried is None:
            return
        carried.pump.cancel()
        self._ingest.part(carried.agent, carried.outbox)

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # an ack to one agent is an ack to many: let all of them into one message
            self._wake.clear()
            out, self._out = self._out, []
            await self._write(wire.CollectorMessage(returned=wire.Returned(messages=out)))
