"""A simulated job straight into a running collector: one stream a node, a few steps at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import grpc
from hindmost.errors import HindmostError
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.simulate.wire import Job

if TYPE_CHECKING:
    from hindmost_collector.simulate.scenario import Scenario

METHOD = "/hindmost.v1.Telemetry/Stream"
#: How often agents of a job that stands still say so, where it is not sent at once.
LOOK_S = 2.0
#: How long the collector may take to say hello, and to make the last batch durable.
WELCOME_S = 10.0
DURABLE_S = 120.0
#: What grpc raises where a stream is ended by its other end, as asyncio's own errors where it notices that late.
_GONE = (grpc.aio.AioRpcError, grpc.aio.UsageError, TimeoutError, asyncio.InvalidStateError)


def send(scenario: Scenario, address: str, speed: float = 0.0) -> int:
    """Send a job to the collector at ``address``; ``speed`` seconds of it a second, 0: as fast as it is taken.

    Returns the count of batches, all acknowledged: durable where the collector records. Raises
    :class:`HindmostError` where the collector does not answer. A job that stops stands still for a minute of its time.
    """
    return asyncio.run(_send(Job.of(scenario, time.time_ns()), address, speed))


async def _send(job: Job, address: str, speed: float) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), WELCOME_S)
        except asyncio.TimeoutError:  # another class than TimeoutError in Python 3.10
            raise HindmostError(f"no collector answers at {address}: start one with `hindmost collector`") from None
        streams: list[_Stream] = []
        try:
            for node in job.nodes:  # one after the other: of two thousand at once some are cancelled unasked
                streams.append(_Stream(channel))
                await streams[-1].open(job.opening(node))
            await _batches(job, streams, speed)
            await asyncio.wait_for(asyncio.gather(*(one.close() for one in streams)), DURABLE_S)
        except (*_GONE, _LeftError) as error:
            raise HindmostError(
                f"the collector at {address} left before it had all of the job ({await _reason(error, streams)}):"
                " see its log, start it again by `hindmost collector`, and send the job again"
            ) from None
        finally:
            for stream in streams:
                stream.cancel()
    return sum(job.sequence.values())


async def _batches(job: Job, streams: list[_Stream], speed: float) -> None:
    began = time.monotonic()
    for node, ends, message in job.batches(LOOK_S) if speed > 0 else job.batches():
        if speed > 0:
            await asyncio.sleep(max(began + ends / speed - time.monotonic(), 0.0))
        await streams[node].write(message)


class _LeftError(Exception):
    """A stream ended before all of it was durable."""


async def _reason(error: Exception, streams: list[_Stream]) -> str:
    """What the connection or the collector said of its end, in words."""
    if isinstance(error, TimeoutError):
        return f"no answer for {DURABLE_S:.0f} s"
    told = [await one.details() for one in streams if one.over]
    return next(filter(None, told), "it gave no reason")


def open_stream(channel: grpc.aio.Channel, **options: Any) -> Any:
    """An agent's call on ``channel``; ``options`` are those of a grpc call, such as ``wait_for_ready``."""
    types = (wire.AgentMessage.SerializeToString, wire.CollectorMessage.FromString)
    return channel.stream_stream(METHOD, *types)(**options)


class _Stream:
    """One node's stream, and what of it is durable."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = open_stream(channel)
        self._sent = self._durable = 0
        self._moved = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def open(self, messages: list[wire.AgentMessage]) -> None:
        for message in messages:
            await self._call.write(message)
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(lambda _: self._moved.set())

    @property
    def ended(self) -> bool:
        """Whether the collector says no more."""
        return self._reader is not None and self._reader.done()

    @property
    def over(self) -> bool:
        """Whether the whole call is over, and has its details."""
        return bool(self._call.done())

    async def details(self) -> str:
        """The collector's reason for the stream's end; nothing where grpc met the end before it arrived."""
        met = await self._call.code() is grpc.StatusCode.INTERNAL
        return "" if met else str(await self._call.details() or "")

    async def write(self, message: wire.AgentMessage) -> None:
        if self.ended:
            raise _LeftError
        self._sent = message.batch.sequence
        await self._call.write(message)

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):  # how it ended is read from the call
            while (message := await self._call.read()) is not grpc.aio.EOF:
                if message.HasField("ack"):
                    self._durable = max(self._durable, message.ack.durable_sequence)
                    self._moved.set()

    async def close(self) -> None:
        """Wait until all is durable, then say goodbye."""
        while self._durable < self._sent:
            if self.ended:
                raise _LeftError
            self._moved.clear()
            await self._moved.wait()
        await self._call.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="the simulation is over")))
        await self._call.done_writing()

    def cancel(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        self._call.cancel()
