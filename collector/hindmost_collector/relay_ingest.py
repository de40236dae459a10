"""The upper end of a relay: one stream that carries many agents, each served as if it had come by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hindmost_collector.ingest import Ingest
    from hindmost_collector.session import Agent, Outbox

    Write = Callable[[wire.CollectorMessage], Awaitable[None]]

#: Messages that wait for a relay that does not read, at most.
_WAITING = 4096


class _Carried(NamedTuple):
    """One agent's stream within the relay's."""

    agent: Agent
    outbox: Outbox
    pump: asyncio.Task[None]


class RelayStream:
    """Serves a relay until it breaks off."""

    def __init__(self, ingest: Ingest, write: Write) -> None:
        self._ingest, self._write = ingest, write
        self._carried: dict[int, _Carried] = {}
        self._out: list[wire.ToAgent] = []
        self._wake = asyncio.Event()
        self._farewells: set[asyncio.Task[None]] = set()

    async def serve(self, first: wire.AgentMessage, requests: AsyncIterator[wire.AgentMessage]) -> None:
        """Take everything in, answer everybody. All agents' streams end with this one."""
        self._ingest.counts["relay_streams"] += 1
        await self._write(wire.CollectorMessage(returned=wire.Returned()))
        sender = asyncio.create_task(self._send())
        try:
            await self._take(first.relayed)
            async for message in requests:
                await self._take(message.relayed)
        finally:
            for number in list(self._carried):
                self._drop(number)
            for task in (sender, *self._farewells):
                task.cancel()
            await asyncio.gather(sender, *self._farewells, return_exceptions=True)

    async def _take(self, relayed: wire.Relayed) -> None:
        for one in relayed.messages:
            carried = self._carried.get(one.stream)
            if one.ended:
                self._drop(one.stream)
            elif carried is None:
                self._open(one.stream, one.message)
            elif carried.outbox.closed:
                continue
            elif one.message.WhichOneof("body") == "goodbye":  # waits for what is durable: not here, where all pass
                self._spawn(self._farewell(carried, one.message))
            else:
                await self._ingest.handle(carried.agent, carried.outbox, one.message)

    def _open(self, number: int, message: wire.AgentMessage) -> None:
        if message.WhichOneof("body") != "hello":
            return  # of a stream that has ended here, sent before the relay knew
        refusal = self._ingest.refused(message.hello)
        if refusal:
            self._end(number, refusal)
            return
        agent, outbox = self._ingest.greet(message.hello)
        pump = asyncio.create_task(self._pump(number, outbox))
        self._carried[number] = _Carried(agent, outbox, pump)

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
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    def _end(self, number: int, reason: str) -> None:
        self._out.append(wire.ToAgent(stream=number, end=wire.End(reason=reason)))
        self._wake.set()

    def _drop(self, number: int) -> None:
        """An agent broke off, or the relay did."""
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
