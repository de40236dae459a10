"""Records what a real agent of this version says to its collector, for later versions to be tested with:

    unshare --uts sh -c 'hostname node0; python -m tests.collector.ingest.record_stream FILE'

FILE holds each message behind its length (4 bytes, little-endian), gzipped. Two ranks mark steps meanwhile.
"""

import asyncio
import gzip
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from hindmost_proto import telemetry_pb2 as wire

ROOT = Path(__file__).parents[3]
SECONDS = 6


async def recorded(folder: Path) -> list[bytes]:
    """The messages of one agent, from its hello to its goodbye."""
    messages: list[bytes] = []

    async def serve(stream: Any, context: Any) -> None:
        await context.write(wire.CollectorMessage(welcome=wire.Welcome(protocol=1, clock_with_batches=True)))
        async for raw in stream:
            message = wire.AgentMessage.FromString(raw)
            if message.HasField("hello"):
                message.hello.boot_id = "boot-of-node0"
            messages.append(message.SerializeToString() if message.HasField("hello") else raw)
            now = time.time_ns()
            if message.HasField("clock") and not message.clock.returned_ns:
                reply = wire.ClockReply(sent_ns=message.clock.sent_ns, received_ns=now, replied_ns=now)
                await context.write(wire.CollectorMessage(clock=reply))
            if message.HasField("batch"):
                ack = wire.Ack(durable_sequence=message.batch.sequence)
                await context.write(wire.CollectorMessage(ack=ack))

    handler = grpc.stream_stream_rpc_method_handler(serve, response_serializer=wire.CollectorMessage.SerializeToString)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("hindmost.v1.Telemetry", {"Stream": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    rings = str(folder / "rings")
    script = str(ROOT / "tests/cluster/delivery_rank.py")
    ranks = [
        subprocess.Popen([sys.executable, script, rings, str(rank), "20"], stdin=subprocess.PIPE) for rank in range(2)
    ]
    words = ["--collector", f"127.0.0.1:{port}", "--ring-dir", rings, "--spool", str(folder / "spool")]
    agent = subprocess.Popen([sys.executable, "-m", "hindmost", "agent", "--job-id", "ledger", *words])
    await asyncio.sleep(SECONDS)
    for rank in ranks:
        await asyncio.to_thread(rank.communicate)
    await asyncio.to_thread(agent.wait)
    await server.stop(None)
    return messages


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        messages = asyncio.run(recorded(Path(folder)))
    content = b"".join(struct.pack("<I", len(message)) + message for message in messages)
    Path(sys.argv[1]).write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    main()
