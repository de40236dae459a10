"""A collector in this process, and what stands for one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from hindmost_collector.collector import Collector
from hindmost_collector.main import open_store
from hindmost_collector.options import resolve
from hindmost_proto import SERVICE
from hindmost_proto import telemetry_pb2 as wire

#: Of a method that takes and gives messages.
MESSAGES = (wire.AgentMessage.FromString, wire.CollectorMessage.SerializeToString)


@asynccontextmanager
async def collecting(**flags: Any) -> AsyncIterator[Collector]:
    """A collector in this process with these settings, its ``addresses`` set."""
    options = resolve({"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "flush_seconds": 0.2, **flags}, {})
    collector = Collector(options, open_store(options))
    collector.addresses = await collector.start()  # type: ignore[attr-defined]
    try:
        yield collector
    finally:
        await collector.stop("the test is over")


@asynccontextmanager
async def serving(stream: Callable[..., Any], *types: Any, port: int = 0) -> AsyncIterator[int]:
    """A port where grpcio serves this as a collector's method: on bytes, or on what ``types`` read and write."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers = {"Stream": grpc.stream_stream_rpc_method_handler(stream, *types)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)
