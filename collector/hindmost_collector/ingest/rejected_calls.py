"""Rejected calls: clients on the agents' port that are no agent are answered, counted, and logged once a minute.

Input that never becomes a call (no HTTP/2, or a message that is too long) ends inside gRPC, which does not report
it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from hindmost_collector.serve.exposition import collected, counter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from prometheus_client.core import Metric

    Stream = Callable[[AsyncIterator[Any], Any], Awaitable[None]]

log = logging.getLogger(__name__)

#: Seconds between two log lines about the same kind of rejected call.
QUIET_S = 60.0
HELLO_FIRST = "the first message of a stream must be Hello"
#: A call of a method that is not served; bytes that are no message; a stream that does not begin with Hello; one that
#: is refused for what its Hello says.
REASONS = ("method", "garbage", "hello", "refused")
REFUSED = counter(
    "hindmost_collector_refused_streams_total",
    "Calls on the agents' port by other programs. `method`: of another service; `garbage`: no message of an agent; "
    "`hello`: began with another message; `refused`: another protocol, or names too long. "
    "What is not HTTP/2 is not counted.",
    "reason",
)


class Strangers(grpc.GenericRpcHandler):
    """Counts them; served after everything else, it answers calls of what is not served here."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told: dict[str, tuple[float, int]] = {}
        self.counts: Counter[str] = Counter()

    def seen(self, reason: str, context: Any, what: str) -> None:
        """Count one, and say so if nothing was said of its kind for a minute."""
        self.counts[reason] += 1
        when, count = self._told.get(reason, (-QUIET_S, 0))
        if self._now() - when < QUIET_S:
            return
        before = self.counts[reason] - count - 1
        more = f" ({before} more like it since the last such line)" if before else ""
        log.warning("%s was refused on the agents' port: %s%s", context.peer(), what, more)
        self._told[reason] = (self._now(), self.counts[reason])

    async def refuse(self, reason: str, context: Any, code: grpc.StatusCode, what: str) -> None:
        """Count a stream, and end it with the reason."""
        self.seen(reason, context, what)
        await context.abort(code, what)

    def guarded(self, stream: Stream) -> Stream:
        """A handler that ends a stream of undecodable bytes with a word instead of a traceback."""

        async def serve(requests: AsyncIterator[Any], context: Any) -> None:
            try:
                await stream(requests, context)
            except DecodeError as error:
                code = grpc.StatusCode.INVALID_ARGUMENT
                await self.refuse("garbage", context, code, f"what it sent is no message of an agent: {error}")

        return serve

    def service(self, details: Any) -> Any:
        """Whatever method is asked for: a handler that says that there is none."""
        what = f"it calls {details.method}, which is not served here"

        async def answer(_: Any, context: Any) -> None:
            await self.refuse("method", context, grpc.StatusCode.UNIMPLEMENTED, what)

        return grpc.stream_stream_rpc_method_handler(answer)

    def metric(self) -> Metric:
        """How many there were of each kind."""
        return collected(REFUSED, [([reason], self.counts[reason]) for reason in REASONS])
