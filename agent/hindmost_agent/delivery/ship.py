"""The stream to the collector: sends the spool in order, measures the clock, reconnects, never gives up."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, NamedTuple

from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto.call import connect

from hindmost_agent.delivery.round_trips import CLOCK_PERIOD_S, RoundTrips

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_proto.call import Call

    from hindmost_agent.delivery.spool import Spool
    from hindmost_agent.observe import Own
    from hindmost_agent.settings import Address

log = logging.getLogger(__name__)

#: A collector that answers no round trip for this long is gone, though TCP may take a quarter of an hour to say so.
SILENCE_S = 25.0
#: Not acknowledged batches on the way at most; more stay in the spool.
WINDOW = 512
#: After the last acknowledgement: for the Goodbye to arrive and the collector to end its side.
LAST_WORD_S = 1.0
LONGEST_PAUSE_S = 30.0
#: A collector that said that it goes is left alone for the pause of so many attempts, that it can.
GONE_ATTEMPTS = 4


class Pace(NamedTuple):
    """How fast a backlog is sent: bytes a second, and how much may go at once."""

    rate: float = 4 << 20
    burst: float = 1 << 20


class Shipper:
    """Keeps one stream open. ``hello`` makes the first message of each stream.

    ``on_stop`` is called when the collector says that the job is over, ``on_zoom`` with what it wants to see closer.
    """

    def __init__(
        self,
        target: Address,
        spool: Spool,
        own: Own,
        hello: Callable[[], wire.Hello],
        on_stop: Callable[[], None],
        on_zoom: Callable[[wire.Zoom], None],
        *,
        pace: Pace = Pace(),  # noqa: B008 - immutable
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.target = target
        self.held_back, self.batch_ns = False, 0
        self._spool = spool
        self._own = own
        own.connected, own.connects = False, 0
        self._hello = hello
        self._on_stop = on_stop
        self._on_zoom = on_zoom
        self._pace = pace
        self._monotonic_ns = monotonic_ns
        self._jitter = jitter
        self._wake = asyncio.Event()
        self._leaving: str | None = None
        self._goodbye_said = False
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._outbox: list[bytes] = []
        self._round_trips = RoundTrips(own, self._send_soon, monotonic_ns)
        self._heard_ns = 0
        self._said = False
        self._it_goes = False

    def notify(self) -> None:
        """There is something new in the spool."""
        self._wake.set()

    async def finish(self, reason: str, timeout_s: float) -> bool:
        """Say Goodbye after the last batch; true when everything was acknowledged within ``timeout_s``."""
        self._leaving = reason
        self._wake.set()
        try:
            await asyncio.wait_for(self._settled.wait(), timeout_s)
            await asyncio.wait_for(self._ended.wait(), LAST_WORD_S)
        except asyncio.TimeoutError:
            return self._settled.is_set()
        return True

    async def run(self) -> None:
        """Connect, send, reconnect; until cancelled, or all is delivered and Goodbye said."""
        attempt = 0
        while not self._settled.is_set():
            started_ns = self._monotonic_ns()
            try:
                await self._stream()
            except (OSError, asyncio.TimeoutError) as error:
                self._say(error)
            except Exception:
                log.exception("unexpected error of the stream; trying again")
            finally:
                self._own.connected = False
            attempt = 0 if self._monotonic_ns() - started_ns > 10e9 else attempt + 1
            attempt = max(attempt, GONE_ATTEMPTS if self._it_goes else 0)
            await asyncio.sleep(self.delay_s(attempt))

    def delay_s(self, attempt: int) -> float:
        """Pause before the next attempt, s."""
        return retry.pause_s(attempt, LONGEST_PAUSE_S, self._jitter())

    async def _stream(self) -> None:
        async with connect(self.target.host, self.target.port, SILENCE_S) as call:
            await call.write(wire.AgentMessage(hello=self._hello()).SerializeToString())
            first = await asyncio.wait_for(call.read(), SILENCE_S)
            if first is None or first.WhichOneof("body") != "welcome":
                raise ConnectionError("it is not a hindmost collector")
            self._opened(first.welcome)
            await retry.together(self._receive(call), self._send(call), self._beat())

    def _opened(self, welcome: wire.Welcome) -> None:
        self._spool.connected(welcome.durable_sequence, welcome.received_sequence)
        self._own.connected = True
        self._own.connects = (self._own.connects or 0) + 1
        if self._said:
            self._said = False
            log.info("collector %s answers again: sending the spooled data", self.target)
        self._heard_ns = self._monotonic_ns()
        self._it_goes = False
        self.held_back, self.batch_ns = False, 0  # this collector says itself what it wants
        self._outbox = []
        self._round_trips.begin(with_batches=welcome.clock_with_batches)

    async def _send(self, call: Call) -> None:
        budget, then_ns = self._pace.burst, self._monotonic_ns()
        while True:
            while self._outbox:
                await call.write(self._outbox.pop(0))
            outgoing = None if self._window_full() else self._spool.next()
            if outgoing is None:
                if self._leaving is not None and not self._window_full():
                    await self._say_goodbye(call)
                if self._settled.is_set():
                    await call.done_writing()
                elif self._it_goes and self._leaving is None and not self._spool.on_the_way():
                    await self._let_go(call)
                self._wake.clear()
                await self._wake.wait()
                continue
            await call.write(outgoing.message + self._round_trips.beside() if outgoing.sequence else outgoing.message)
            now_ns = self._monotonic_ns()
            budget = min(budget + (now_ns - then_ns) / 1e9 * self._pace.rate, self._pace.burst) - len(outgoing.message)
            then_ns = now_ns
            if budget < 0:
                await asyncio.sleep(-budget / self._pace.rate)

    async def _say_goodbye(self, call: Call) -> None:
        await call.write(wire.AgentMessage(goodbye=wire.Goodbye(reason=self._leaving or "")).SerializeToString())
        self._leaving = None
        self._goodbye_said = True
        self._check_settled()

    async def _let_go(self, call: Call) -> None:
        """End a stream whose collector goes, and that has all there is so far; the next one gets the rest."""
        goodbye = wire.Goodbye(reason="the collector stops")
        await call.write(wire.AgentMessage(goodbye=goodbye).SerializeToString())
        await call.done_writing()
        await asyncio.sleep(LAST_WORD_S)
        raise ConnectionError("it is stopping")

    def _window_full(self) -> bool:
        return self._spool.on_the_way() >= WINDOW

    async def _receive(self, call: Call) -> None:
        while (message := await call.read()) is not None:
            self._heard_ns = self._monotonic_ns()
            kind = message.WhichOneof("body")
            if kind == "ack":
                self._acknowledged(message.ack.durable_sequence)
            elif kind == "clock":
                self._round_trips.answered(message.clock)
                if message.clock.durable_sequence:
                    self._acknowledged(message.clock.durable_sequence)
            elif kind == "need":
                self._outbox += (found for ref in message.need.refs if (found := self._spool.definition(ref)))
                self._wake.set()
            elif kind == "zoom":
                self._on_zoom(message.zoom)
            elif kind == "throttle":
                self.held_back, self.batch_ns = message.throttle.metrics, message.throttle.batch_ns
            elif kind == "stop":
                self._it_goes = message.stop.reason != retry.JOB_OVER
                self._wake.set()
                if not self._it_goes:
                    self._on_stop()
        if self._settled.is_set():
            self._ended.set()
        raise ConnectionError("it ended the stream")

    def _acknowledged(self, durable: int) -> None:
        self._spool.acknowledge(durable)
        self._check_settled()
        self._wake.set()

    def _check_settled(self) -> None:
        if self._goodbye_said and not self._spool.ledger.pending:
            self._settled.set()

    async def _beat(self) -> None:
        """Ask for the time every few seconds. Raises ``ConnectionError`` without an answer."""
        while True:
            await asyncio.sleep(CLOCK_PERIOD_S)
            if self._monotonic_ns() - self._heard_ns > SILENCE_S * 1e9:
                raise ConnectionError(f"no answer for {SILENCE_S:.0f} s")
            self._round_trips.due()

    def _send_soon(self, message: bytes) -> None:
        self._outbox.append(message)
        self._wake.set()

    def _say(self, error: Exception) -> None:
        """One line when a collector is lost or was never there, not one for each attempt, and none once all is said."""
        if not self._said and not self._settled.is_set():
            self._said = True
            what = retry.reason(error)
            log.warning("collector %s does not answer (%s): spooling until it does", self.target, what)
