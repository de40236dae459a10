"""A server to compare with: what gRPC alone costs."""

import json
import os
from typing import Any

from hindmost_cli.collector import POLLER
from hindmost_proto import telemetry_pb2 as wire

#: Messages that the bare server acknowledges at once; the collector does it once a flush of ten seconds.
ACK_EVERY = 5
#: The first byte of an AgentMessage: which of its kinds it is.
HELLO, BATCH, GOODBYE = (number << 3 | 2 for number in (1, 3, 5))


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


def acknowledged(sequence: int) -> wire.CollectorMessage:
    return wire.CollectorMessage(ack=wire.Ack(durable_sequence=sequence))


async def serve() -> None:
    """Serve until killed."""
    os.environ["GRPC_EXPERIMENTS"] = POLLER
    import grpc  # noqa: PLC0415 - reads that when it is loaded
    from hindmost_collector.ingest.connections import served  # noqa: PLC0415 - loads grpc

    server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0)])
    server.add_generic_rpc_handlers((served(BareServer().stream, bytes, wire.CollectorMessage.SerializeToString),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"grpc": f"127.0.0.1:{port}", "http": None}), flush=True)
    await server.wait_for_termination()
