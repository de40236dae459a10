"""Greeting agents while the store is slow, or does not answer: no other agent waits, and none is dropped."""

import asyncio
import threading

import grpc
import pytest
from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.streams import Ingest, RelayStream, StoreAway
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire


class Slow:
    """A store that answers on command, with a set answer."""

    def __init__(self):
        self.known, self.questions = {}, 0
        self.asked, self.answer = threading.Event(), threading.Event()

    def __call__(self):
        self.questions += 1
        self.asked.set()
        assert self.answer.wait(300)
        if isinstance(self.known, Exception):
            raise self.known
        return dict(self.known)


def receiving(sequences):
    """What receives agents, over a store."""
    definitions = Definitions()
    return Ingest(JobClock(None), definitions, Decoder(definitions), sequences)


def hello(agent):
    """The first message of an agent."""
    return wire.Hello(protocol=1, agent_id=agent, node="n", boot_id="b", monotonic_ns=1)


async def wait_for_question(store):
    """Until the store has been asked, in its thread."""
    assert await asyncio.to_thread(store.asked.wait, 30)


async def test_agents_do_not_wait_on_the_loop():
    """While the store thinks the loop goes on; all agents that came meanwhile are answered by one more question."""
    store = Slow()

    ingest = receiving(store)
    first = asyncio.create_task(ingest.greet(hello("a0")))
    await wait_for_question(store)
    store.known = {"a3@n": 7}
    others = [asyncio.create_task(ingest.greet(hello(f"a{number}"))) for number in range(1, 20)]
    await asyncio.sleep(0)
    assert not first.done()
    store.answer.set()
    greeted = [await one for one in (first, *others)]
    assert [agent.durable for agent, _ in greeted] == [0, 0, 0, 7, *[0] * 16]
    assert store.questions == 2


async def test_clock_counts_from_the_arrival():
    """However long the store takes, the clock offset of a new agent is that of the moment at which its Hello came."""
    store = Slow()

    ingest = receiving(store)
    now = 1_000
    ingest.clock.now = lambda: now
    task = asyncio.create_task(ingest.greet(hello("a")))
    await wait_for_question(store)
    now = 60_000_000_000
    store.answer.set()
    agent, _ = await task
    assert agent.clock.offset(1) == 999


async def test_known_agents_need_no_store():
    """An agent that was here before is greeted without a question; a new one is turned away while the store fails."""
    store = Slow()
    store.answer.set()

    ingest = receiving(store)
    await ingest.greet(hello("old"))
    store.known = OSError("no route")
    with pytest.raises(StoreAway, match="what of this agent is durable; try again: no route"):
        await ingest.greet(hello("new"))
    again, _ = await ingest.greet(hello("old"))
    store.known = {"new@n": 3}
    new, _ = await ingest.greet(hello("new"))
    assert (again.durable, new.durable) == (0, 3)
    assert store.questions == 3


class Relay:
    """A relay's end of a stream: what it sends, and what comes back by stream number."""

    def __init__(self, ingest):
        self._sent: asyncio.Queue[wire.AgentMessage] = asyncio.Queue()
        self._back: asyncio.Queue[wire.ToAgent] = asyncio.Queue()
        first = wire.AgentMessage(relayed=wire.Relayed())
        self.served = asyncio.create_task(RelayStream(ingest, self._write).serve(first, self._requests()))

    async def _write(self, message):
        for one in message.returned.messages:
            self._back.put_nowait(one)

    async def _requests(self):
        while True:
            yield await self._sent.get()

    def send(self, number, ended=False, **body):
        """One agent's message."""
        one = wire.FromAgent(stream=number, ended=ended, message=wire.AgentMessage(**body))
        self._sent.put_nowait(wire.AgentMessage(relayed=wire.Relayed(messages=[one])))

    async def next(self):
        """``(stream, kind, reason)`` of the next message to an agent."""
        one = await asyncio.wait_for(self._back.get(), 300)
        return one.stream, one.message.WhichOneof("body"), one.end.reason

    async def close(self):
        """Break off."""
        await retry.cancel(self.served)


def relayed(store, script):
    """Run ``script(relay, ingest)`` on a relay's stream into a collector over ``store``."""

    async def scenario():
        ingest = receiving(store)
        relay = Relay(ingest)
        try:
            return await script(relay, ingest)
        finally:
            await relay.close()

    return asyncio.run(scenario())


def test_store_away_turns_one_agent_of_a_relay_away():
    """One that the store knows nothing of now ends with the reason; the others of its relay are served on."""
    store = Slow()
    store.answer.set()

    async def script(relay, ingest):
        for number in (1, 2):
            relay.send(number, hello=hello(f"a{number}"))
            assert (await relay.next())[:2] == (number, "welcome")
        store.known = OSError("no route")
        relay.send(3, hello=hello("a3"))
        number, _, reason = await relay.next()
        relay.send(1, clock=wire.ClockSample(sent_ns=5))
        return number, reason, await relay.next(), ingest.connected(), relay.served.done()

    number, reason, later, connected, done = relayed(store, script)
    assert (number, later, connected, done) == (3, (1, "clock", ""), 2, False)
    assert reason.endswith("no route")


def test_others_of_a_relay_pass_a_slow_greeting():
    """While one agent waits for its greeting another is served; what the first one sent early is taken after it."""
    store = Slow()
    store.answer.set()

    async def script(relay, ingest):
        relay.send(1, hello=hello("a1"))
        await relay.next()
        store.answer.clear()
        store.asked.clear()
        relay.send(2, hello=hello("a2"))
        relay.send(2, clock=wire.ClockSample(sent_ns=5))
        relay.send(3, hello=hello("a3"))
        relay.send(3, ended=True)
        relay.send(1, clock=wire.ClockSample(sent_ns=5))
        passed = await relay.next()
        store.answer.set()
        return passed, [await relay.next(), await relay.next()], ingest.connected()

    passed, late, connected = relayed(store, script)
    assert passed == (1, "clock", "")
    assert late == [(2, "welcome", ""), (2, "clock", "")]
    assert connected == 2


def test_flood_before_the_greeting_is_bounded():
    """An agent that does not wait for its Welcome and sends on and on is ended, and holds no memory."""
    store = Slow()

    async def script(relay, ingest):
        relay.send(1, hello=hello("a1"))
        for _ in range(70):
            relay.send(1, clock=wire.ClockSample(sent_ns=5))
        found = await relay.next()
        store.answer.set()
        relay.send(2, hello=hello("a2"))
        return found, await relay.next(), ingest.connected()

    found, after, connected = relayed(store, script)
    assert found == (1, None, "too many messages before the Welcome")
    assert (after, connected) == ((2, "welcome", ""), 1)


async def test_agent_hears_why_it_is_turned_away(collecting, fake_agent, tmp_path, monkeypatch):
    """Over gRPC an agent that cannot be greeted hears the reason, and is served once the store answers."""

    def away(store):
        raise OSError("the store is away")

    async with collecting(out=str(tmp_path), http="none") as collector:
        agent = fake_agent(collector.addresses["grpc"])
        with monkeypatch.context() as patch:
            patch.setattr(ParquetStore, "sequences", property(away))
            with pytest.raises((AttributeError, grpc.RpcError)):  # an end in place of the Welcome
                await agent.connect()
            said = await agent.stream.code(), await agent.stream.details()
        await agent.close()
        durable = await agent.connect()
        await agent.close()
        (code, details) = said
    assert (code.name, durable) == ("UNAVAILABLE", 0)
    assert details.endswith("try again: the store is away")
