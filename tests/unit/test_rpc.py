"""The gRPC client of one call, against grpcio's server, and against peers that do what that one never does."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from hindmost.rpc import frames
from hindmost.rpc.call import LARGEST_MESSAGE, Call, CallError, connect
from hindmost.rpc.frames import ACK, DATA, END_HEADERS, END_STREAM, PADDED, Frames, ProtocolError, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

METHOD = "/test.Test/Talk"
OK = frames.headers([("grpc-status", "0")])


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20.0))


async def grpc_server(talk: Callable[..., AsyncIterator[bytes]]) -> tuple[grpc.aio.Server, int]:
    """grpcio's server with one method that takes and gives bytes."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    handlers = {"Talk": grpc.stream_stream_rpc_method_handler(talk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def echo(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


async def refuse(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today: é, 100 %")


@pytest.mark.parametrize("sizes", [[0, 1, 5], [LARGEST_MESSAGE] * 5, [7] * 3000, [frames.LARGEST - 5, frames.LARGEST]])
def test_messages_come_back_whole_and_in_order(sizes: list[int]) -> None:
    """Smaller and larger than frames and windows, in both directions at once; then both sides end in order."""

    async def work() -> None:
        server, port = await grpc_server(echo)
        call = await connect("127.0.0.1", port, METHOD, bytes)
        sent = [bytes([place & 0xFF]) * size for place, size in enumerate(sizes)]

        async def send() -> None:
            for message in sent:
                await call.write(message)
            call.done_writing()

        sender = asyncio.create_task(send())
        assert [await call.read() for _ in sent] == sent
        assert await call.read() is None
        await sender
        call.close()
        await server.stop(0)

    run(work())


def test_a_refusal_is_told_in_the_server_s_words() -> None:
    """What was said before it is still read; from then on reading and writing raise the reason."""

    async def work() -> None:
        server, port = await grpc_server(refuse)
        call = await connect("127.0.0.1", port, METHOD, bytes)
        await call.write(b"please")
        assert await call.read() == b"please"
        for _ in range(2):
            with pytest.raises(CallError, match="not today: é, 100 %"):
                await call.read()
        with pytest.raises(CallError, match="not today"):
            await call.write(b"please")
        await server.stop(0)

    run(work())


def test_a_method_that_is_not_there_is_no_silence() -> None:
    """Another gRPC service answers at that port."""

    async def work() -> None:
        server, port = await grpc_server(echo)
        call = await connect("127.0.0.1", port, "/other.Service/Talk", bytes)
        with pytest.raises(CallError, match=r"[Mm]ethod not found"):
            await call.read()
        await server.stop(0)

    run(work())


def test_a_server_that_goes_is_noticed() -> None:
    """Whoever waits for a message is told."""

    async def work() -> None:
        server, port = await grpc_server(echo)
        call = await connect("127.0.0.1", port, METHOD, bytes)
        await call.write(b"there?")
        await call.read()
        reading = asyncio.create_task(call.read())
        await server.stop(0)
        with pytest.raises(ConnectionError):
            await reading

    run(work())


class Peer:
    """A server of a few lines: hears everything, says what it is told to say."""

    def __init__(self, said: bytes) -> None:
        self.said = said
        self.heard: list[frames.Frame] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(frames.PREFACE)) == frames.PREFACE
        writer.write(self.said)
        cut = Frames()
        while data := await reader.read(65536):
            self.heard += cut.feed(data)
        writer.close()


def talk(said: bytes, work: Callable[[Call[bytes], Peer], Awaitable[None]]) -> None:
    async def both() -> None:
        peer = Peer(said)
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        call = await connect("127.0.0.1", server.sockets[0].getsockname()[1], METHOD, bytes)
        await work(call, peer)
        call.close()
        server.close()

    run(both())


def told(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def test_frames_that_grpcio_never_sends_are_understood() -> None:
    """Padding, priorities, header blocks in pieces, kinds of frames that nobody knows, and messages across frames."""
    block = b"\x20" + frames.headers([(":status", "200"), ("content-type", "application/grpc")])
    said = b"".join(
        [
            encode(frames.SETTINGS, 0, 0, frames.settings({5: 1 << 20, 99: 1})),
            encode(frames.HEADERS, frames.PRIORITY, 1, bytes(5) + block[:3]),
            encode(frames.CONTINUATION, END_HEADERS, 1, block[3:]),
            encode(0xAB, 0xFF, 1, b"what?"),
            encode(DATA, PADDED, 1, b"\x03" + told(b"first")[:4] + b"pad"),
            encode(DATA, 0, 1, told(b"first")[4:] + told(b"second")),
            encode(frames.GOAWAY, 0, 0, frames.number(1) + frames.number(0)),
            encode(frames.HEADERS, END_HEADERS | END_STREAM, 1, OK),
        ]
    )

    async def work(call: Call[bytes], _: Peer) -> None:
        assert [await call.read(), await call.read(), await call.read()] == [b"first", b"second", None]

    talk(said, work)


def test_settings_and_pings_are_answered() -> None:
    """A peer that waits for the answers would else hang up."""

    async def work(call: Call[bytes], peer: Peer) -> None:
        assert await call.read() == b"all said"
        await asyncio.sleep(0)
        while len(peer.heard) < 5:
            await asyncio.sleep(0.01)
        answers = [(one.kind, one.payload) for one in peer.heard if one.flags & ACK and one.kind != DATA]
        assert answers == [(frames.SETTINGS, b""), (frames.PING, b"12345678")]

    pinged = encode(frames.SETTINGS, 0, 0) + encode(frames.PING, 0, 0, b"12345678")
    talk(pinged + encode(DATA, 0, 1, told(b"all said")), work)


def test_no_more_is_sent_than_there_is_room_for() -> None:
    """A window of three bytes is filled and then waited for; a smaller one leaves less than nothing."""

    async def work(call: Call[bytes], peer: Peer) -> None:
        assert await call.read() == b"go"
        writing = asyncio.create_task(call.write(b"a message"))
        while not any(one.kind == DATA for one in peer.heard):
            await asyncio.sleep(0.01)
        assert [one.payload for one in peer.heard if one.kind == DATA] == [told(b"a message")[:3]]
        assert not writing.done()
        writing.cancel()

    settings = encode(frames.SETTINGS, 0, 0, frames.settings({frames.INITIAL_WINDOW_SIZE: 1}))
    talk(settings + encode(frames.WINDOW_UPDATE, 0, 1, frames.number(2)) + encode(DATA, 0, 1, told(b"go")), work)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2"),
        (encode(frames.GOAWAY, 0, 0, frames.number(0) + frames.number(11)), "takes no calls, error 11"),
        (encode(frames.RST_STREAM, 0, 1, frames.number(2)), "broke the call off, error 2"),
        (encode(frames.HEADERS, END_HEADERS, 1, b"\x8c"), "answers 400 of HTTP"),
        (encode(frames.HEADERS, END_HEADERS, 1, b"\x48\x03503"), "answers 503 of HTTP"),
        (encode(frames.HEADERS, END_HEADERS | END_STREAM, 1, b"\x88\xbf"), "status of no number"),
        (encode(frames.HEADERS, END_HEADERS, 1, b"\x00\x7f"), "cut short"),
        (encode(frames.HEADERS, END_HEADERS, 1, b"\xff" + b"\xff" * 9), "without end"),
        (encode(frames.HEADERS, 0, 1) + encode(frames.CONTINUATION, 0, 1, bytes(16000)) * 5, "headers without end"),
        (encode(frames.SETTINGS, 0, 0, b"12345"), "cut short"),
        (encode(DATA, PADDED, 1, b"\x05abc"), "more padding than frame"),
        (encode(DATA, 0, 1, b"\x01" + told(b"zip")[1:]), "compressed, or too long"),
        (encode(DATA, 0, 1, b"\0\xff\xff\xff\xff"), "compressed, or too long"),
        (encode(DATA, END_STREAM, 1, b""), "without saying why"),
        (encode(frames.HEADERS, END_HEADERS | END_STREAM, 1, frames.headers([("grpc-status", "7")])), "status 7"),
    ],
)
def test_what_cannot_be_ends_the_call_with_a_reason(said: bytes, why: str) -> None:
    """No exception but this one leaves the client, whatever a peer sends."""

    async def work(call: Call[bytes], _: Peer) -> None:
        with pytest.raises(ConnectionError, match=why):
            await call.read()

    talk(said, work)


def test_frames_may_arrive_byte_by_byte() -> None:
    """TCP keeps no boundaries."""
    said = encode(frames.PING, 0, 0, b"12345678") + encode(DATA, 0, 1, told(b"x"))
    cut = Frames()
    found = [frame for place in range(len(said)) for frame in cut.feed(said[place : place + 1])]
    assert [frame.payload for frame in found] == [b"12345678", told(b"x")]


def test_header_blocks_are_read_as_the_standard_writes_them() -> None:
    """Literals with and without indexing, long texts, names by number; Huffman's code is left out, not misread."""
    long = "x" * 300
    block = frames.headers([("grpc-message", long)]) + b"\x40\x0bgrpc-status\x0214" + b"\x0f\x10\x03a/b"
    assert frames.read_headers(block) == {"grpc-message": long, "grpc-status": "14"}
    assert frames.read_headers(bytes.fromhex("4803333037")) == {":status": "307"}  # RFC 7541, C.5.2
    assert frames.read_headers(bytes.fromhex("48826402")) == {":status": ""}  # C.6.1, in Huffman's code


def test_a_peer_that_is_silent_is_left() -> None:
    """Its pings are not answered: whoever watches is told, and the call is over."""

    async def work(call: Call[bytes], _: Peer) -> None:
        with pytest.raises(CallError, match="no answer"):
            await call.watch(0.05)
        with pytest.raises(CallError, match="no answer"):
            await call.read()

    talk(b"", work)


def test_a_message_that_cannot_be_read_is_a_reason() -> None:
    """Whatever its decoder raises."""

    async def work() -> None:
        server, port = await grpc_server(echo)
        call = await connect("127.0.0.1", port, METHOD, int)
        for message in (b"12", b"twelve"):
            await call.write(message)
        assert await call.read() == 12
        with pytest.raises(CallError, match="cannot be read"):
            await call.read()
        call.close()
        await server.stop(0)

    run(work())


def test_random_bytes_never_raise_anything_else() -> None:
    """Whatever a port answers."""
    dice = random.Random(1)  # noqa: S311 - repeatable
    for _ in range(2000):
        cut = Frames()
        try:
            for frame in cut.feed(bytes(dice.choices([0, 1, 2, 4, 8, 9, 0x88, 255], k=60))):
                frames.read_headers(frame.payload)
        except ProtocolError:
            pass
