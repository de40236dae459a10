"""The port that agents connect to: a collector's, and a relay's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from hindmost.errors import HindmostError

from hindmost_collector.options import address

if TYPE_CHECKING:
    from collections.abc import Sequence


def listen(where: str, handlers: Sequence[grpc.GenericRpcHandler], longest: int) -> tuple[grpc.aio.Server, str]:
    """A server that has the port and is not started, and its address as ``HOST:PORT``; ``longest``: bytes of a message.

    Raises HindmostError where the port cannot be had.
    """
    host, port = address(where, "--listen")
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", longest),
            ("grpc.so_reuseport", 0),  # a port in use is an error, not a lottery
            ("grpc.keepalive_permit_without_calls", 1),
            # Bandwidth probing pings the agent at every message, which wakes it for nothing. A ping that a host under
            # load leaves unanswered for a minute ends the connection.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            # Else each connection keeps 64 KiB to read into, once a batch has come through it; with half of this one of
            # 15 to 30 kB takes twice and more calls of the kernel.
            ("grpc.experimental.tcp_max_read_buffer_size", 16384),
        ]
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    try:
        bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as error:
        raise HindmostError(f"cannot listen on {host}:{port}: it is in use, or not an address of this host") from error
    return server, f"{host}:{bound}"
