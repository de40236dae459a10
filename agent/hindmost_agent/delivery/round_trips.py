"""The collector's clock, measured in round trips: a handful when a stream begins, then one now and then.

Those that come later go with batches where the collector takes them there: a message costs it more than what is in one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_agent.observe import Own

#: A quick handful at the start of a stream, then one now and then.
FIRST_ROUND_TRIPS = 8
CLOCK_PERIOD_S = 10.0


class RoundTrips:
    """Asks for the time, and says how long the answer took.

    Args:
        own: where the offset is noted.
        say: sends a message that is no batch, soon.
    """

    def __init__(
        self, own: Own, say: Callable[[bytes], None], monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._own, self._say, self._monotonic_ns = own, say, monotonic_ns
        self._with_batches = False
        self._count = self._best_ns = 0
        self._asks = False
        self._measured: wire.ClockSample | None = None

    def begin(self, *, with_batches: bool) -> None:
        """A new stream; whether its collector takes questions and round trips with batches."""
        self._with_batches = with_batches
        self._count = self._best_ns = 0
        self._asks, self._measured = False, None
        self._ask()

    def due(self) -> None:
        """Ask for the time, with the next batch; at once where none has gone since this was last called."""
        if self._measured is not None:
            self._tell(self._measured)
            self._measured = None
        if self._with_batches and not self._asks:
            self._asks = True
        else:
            self._asks = False
            self._ask()

    def beside(self) -> bytes:
        """What goes with a batch that leaves now, behind its own bytes."""
        if not self._asks and self._measured is None:
            return b""
        message = wire.AgentMessage(measured=self._measured, asked_ns=self._monotonic_ns() if self._asks else 0)
        self._asks, self._measured = False, None
        return message.SerializeToString()

    def answered(self, reply: wire.ClockReply) -> None:
        """An answer has come."""
        returned_ns = self._monotonic_ns()
        sample = wire.ClockSample(
            sent_ns=reply.sent_ns,
            received_ns=reply.received_ns,
            replied_ns=reply.replied_ns,
            returned_ns=returned_ns,
        )
        self._note(sample)
        self._count += 1
        if self._with_batches and self._count > FIRST_ROUND_TRIPS:
            self._measured = sample
            return
        self._tell(sample)
        if self._count < FIRST_ROUND_TRIPS:
            self._ask()

    def _note(self, sample: wire.ClockSample) -> None:
        round_trip = (sample.returned_ns - sample.sent_ns) - (sample.replied_ns - sample.received_ns)
        if not self._best_ns or round_trip <= self._best_ns:
            self._best_ns = round_trip
            middle = (sample.sent_ns + sample.returned_ns) // 2
            real_now = time.time_ns() - (self._monotonic_ns() - middle)
            self._own.clock_offset_s = ((sample.received_ns + sample.replied_ns) // 2 - real_now) / 1e9
            self._own.clock_round_trip_s = round_trip / 1e9
        else:
            self._best_ns += self._best_ns // 50  # an old best must not stand forever: clocks drift

    def _ask(self) -> None:
        self._tell(wire.ClockSample(sent_ns=self._monotonic_ns()))

    def _tell(self, sample: wire.ClockSample) -> None:
        self._say(wire.AgentMessage(clock=sample).SerializeToString())
