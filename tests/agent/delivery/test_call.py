"""The stream's client against grpcio's server, and against peers that are no collector."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from hindmost_agent.delivery.stream import CallError, connect
from hindmost_proto.telemetry_pb2 import Ack, AgentMessage, CollectorMessage, Goodbye

from tests.collecting import serving


def ack(number: int) -> bytes:
    return CollectorMessage(ack=Ack(durable_sequence=number)).SerializeToString()


async def lengths(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield ack(len(message))


async def refusal(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield ack(len(message))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today: é, 100 %")


async def end(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield ack(len(message))
        return


async def nonsense(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for _message in messages:
        yield b"\xff\xff\xff"


@pytest.mark.parametrize("sizes", [[0, 1, 5], [4 << 20] * 3, [7] * 1000])
async def test_messages_arrive_whole_and_in_order_and_both_sides_end(sizes: list[int]) -> None:
    """Smaller and larger than frames and windows, while answers come."""
    async with serving(lengths) as port, connect("127.0.0.1", port, 5.0) as call:

        async def send() -> None:
            for size in sizes:
                await call.write(bytes(size))
            await call.done_writing()

        sender = asyncio.create_task(send())
        answers = [await call.read() for _ in sizes]
        assert [answer.ack.durable_sequence for answer in answers if answer] == sizes
        assert await call.read() is None
        await sender


async def test_a_refusal_is_reported_in_the_collector_s_words() -> None:
    """What was said before it is still read."""
    with pytest.raises(CallError, match="not today: é, 100 %"):  # noqa: PT012 - the call is over inside of its block
        async with serving(refusal) as port, connect("127.0.0.1", port, 5.0) as call:
            await call.write(b"please")
            answer = await call.read()
            assert answer is not None
            assert answer.ack.durable_sequence == len(b"please")
            await call.read()


async def test_a_collector_that_ends_the_call_while_the_agent_writes_is_reported() -> None:
    """Not as a stream that was reset, and not by its number: nothing is wrong with the connection."""
    with pytest.raises(CallError) as caught:  # noqa: PT012 - as above
        async with serving(end) as port, connect("127.0.0.1", port, 5.0) as call:
            while True:
                await call.write(bytes(1 << 16))
                await asyncio.sleep(0)
    assert str(caught.value) == "it ended the stream"


async def test_a_message_that_cannot_be_read_is_a_reason() -> None:
    """Whatever its decoder raises."""
    with pytest.raises(CallError, match="cannot be read"):  # noqa: PT012 - as above
        async with serving(nonsense) as port, connect("127.0.0.1", port, 5.0) as call:
            await call.write(AgentMessage(goodbye=Goodbye()).SerializeToString())
            await call.read()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 9])
async def test_what_is_no_collector_is_an_error_of_the_connection(said: bytes) -> None:
    """Another program listens at that port: it hangs up, or says what is no HTTP/2."""

    async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    with pytest.raises(ConnectionError):
        async with connect("127.0.0.1", server.sockets[0].getsockname()[1], 5.0) as call:
            await call.read()
    server.close()
