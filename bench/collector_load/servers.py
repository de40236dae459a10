"""Servers to compare with: what one would write first, and what gRPC alone costs."""

import json
import os
from typing import Any

from hindmost_cli.collector import POLLER
from hindmost_proto import telemetry_pb2 as wire
from prometheus_client import CollectorRegistry, Gauge

#: Messages that the bare server acknowledges at once; the collector does it once a flush of ten seconds.
ACK_EVERY = 5
#: The first byte of an AgentMessage: which of its kinds it is.
HELLO, BATCH, GOODBYE = (number << 3 | 2 for number in (1, 3, 5))


class PlainServer:
    """One message a sample, one gauge set a sample, nothing stored: acknowledged at once."""

    def __init__(self) -> None:
        self._gauge = Gauge("sample", "A sample.", ["node", "series"], registry=CollectorRegistry())

    async def stream(self, requests: Any, context: Any) -> None:
        """Serve one agent."""
        node = ""
        async for raw in requests:
            message = wire.AgentMessage.FromString(raw)
            kind = message.WhichOneof("body")
            if kind == "hello":
                node = message.hello.node
                await context.write(wire.CollectorMessage(welcome=wire.Welcome(protocol=1)))
            elif kind == "batch":
                for index, block in enumerate(message.batch.metrics):
                    self._gauge.labels(node, str(index)).set(block.values[0])
                await context.write(acknowledged(message.batch.sequence))


class BareServer:
    """Reads bytes, looks at the first of them, and acknowledges: what gRPC itself costs."""

    async def stream(self, requests: Any, context: Any) -> None:
        """Serve one agent."""
        count = 0
        async for raw in requests:
            if raw[0] == HELLO:
                welcome = wire.Welcome(protocol=1, clock_with_batches=True)
                await context.write(wire.CollectorMessage(welcome=welcome))
            elif raw[0] == GOODBYE:
                await context.write(acknowledged(count))
            elif raw[0] == BATCH:
                count += 1
                if count % ACK_EVERY == 0:
                    await context.write(acknowledged(count))


SERVERS = {"plain": PlainServer, "bare": BareServer}


def acknowledged(sequence: int) -> wire.CollectorMessage:
    """An ack."""
    return wire.CollectorMessage(ack=wire.Ack(durable_sequence=sequence))


async def serve(kind: str) -> None:
    """Serve until killed."""
    if kind == "bare":
        os.environ["GRPC_EXPERIMENTS"] = POLLER
    import grpc  # noqa: PLC0415 - reads that when it is loaded
    from hindmost_collector.ingest.connections import served  # noqa: PLC0415 - loads grpc

    server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0)] if kind == "bare" else [])
    server.add_generic_rpc_handlers((served(SERVERS[kind]().stream, bytes, wire.CollectorMessage.SerializeToString),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"grpc": f"127.0.0.1:{port}", "http": None}), flush=True)
    await server.wait_for_termination()
