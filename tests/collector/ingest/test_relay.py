"""Relays: many agents in one stream, acknowledged end to end, with nothing to lose in between."""

import argparse
import asyncio
import contextlib
import json
import logging
import time

import grpc
import pytest
from hindmost.errors import UsageError
from hindmost_cli import collector as command
from hindmost_collector.ingest.relay import Link, RelayedAgent, choose, relayed
from hindmost_collector.options import resolve
from hindmost_collector.simulate.stream import open_stream
from hindmost_proto import METHOD, retry
from hindmost_proto import telemetry_pb2 as wire

from tests.collecting import serving
from tests.collector import stored
from tests.pages import fetched
from tests.waiting import PATIENCE_S, until

STEPS = 30
#: What a stream that breaks off looks like from an agent's side; an end in place of a message has no attributes.
BROKEN = (OSError, asyncio.TimeoutError, asyncio.InvalidStateError, AttributeError, grpc.RpcError, grpc.aio.BaseError)


async def deliver(agent, addresses, steps, moment=None):
    """Send steps until all are acknowledged, through whichever address answers; ``moment(step)`` after each."""
    todo, attempt = list(steps), 0
    while todo or agent.kept:
        agent.address = addresses[attempt % len(addresses)]
        attempt += 1
        try:
            await asyncio.wait_for(agent.connect(), 10)
            while todo:
                step = todo.pop(0)
                await agent.send(agent.batch(step, slow_rank=3))
                if moment:
                    moment(step)
                await asyncio.sleep(0.01)
            await agent.until_acked(agent.sequence)
        except BROKEN:
            await asyncio.sleep(0.1)
        finally:
            await agent.close()
    assert not agent.kept


@pytest.mark.torture
async def test_relay_killed_loses_and_doubles_nothing(collector_process, fake_agent, tmp_path):
    """One job over two relays, one of which is killed: every step of every rank is stored once, and rank 3 is named."""
    collector = collector_process("--out", tmp_path, "--job-id", "j", "--http", "none", "--exit-when-stdin-closes")
    relays = [collector_process("--relay-to", collector.addresses["grpc"], "--http", "none") for _ in range(2)]
    addresses = [relay.addresses["grpc"] for relay in relays]
    steps = range(STEPS)

    def killing(step):
        if step == STEPS // 2:
            relays[0].kill()

    agents = [fake_agent.of_several(number) for number in range(2)]
    await asyncio.gather(deliver(agents[0], addresses, steps, killing), deliver(agents[1], addresses[::-1], steps))
    assert stored.steps(tmp_path) == [(rank, step) for rank in range(4) for step in steps]
    collector.popen.stdin.close()
    assert collector.popen.wait(300) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["job"]["world_size"] == 4
    assert [(verdict["kind"], verdict["ranks"]) for verdict in report["verdicts"]][:1] == [("straggler", [3])]


async def test_through_a_relay_the_clock_goes_apart_from_batches(collector_process, fake_agent):
    """A relay keeps batches for a while, so only an agent connected directly may ask with them."""
    collector = collector_process("--http", "none")
    relay = collector_process("--relay-to", collector.addresses["grpc"], "--http", "none")

    async def asks_with_batches(address):
        while True:
            async with grpc.aio.insecure_channel(address) as channel:
                stream = open_stream(channel, wait_for_ready=True)
                await stream.write(wire.AgentMessage(hello=wire.Hello(protocol=1, agent_id="a", node="n")))
                with contextlib.suppress(*BROKEN):  # a relay that has not reached its collector yet
                    return (await stream.read()).welcome.clock_with_batches
            await asyncio.sleep(0.1)

    assert await asks_with_batches(collector.addresses["grpc"]) is True
    assert await asks_with_batches(relay.addresses["grpc"]) is False


@pytest.mark.torture
def test_collector_killed_behind_a_relay(collector_process, fake_agent, tmp_path):
    """A collector that is killed and started again behind a relay has every step once: no ack came early."""
    collector = collector_process("--out", tmp_path, "--http", "none")
    where = collector.addresses["grpc"]
    relay = collector_process("--relay-to", where, "--http", "127.0.0.1:0")

    def restarting(step):
        if step == 8:
            collector.kill()
            collector_process("--out", tmp_path, "--http", "none", "--listen", where)

    asyncio.run(deliver(fake_agent(""), [relay.addresses["grpc"]], range(16), restarting))
    assert stored.steps(tmp_path) == [(rank, step) for rank in range(2) for step in range(16)]
    _, page = fetched(f"http://{relay.addresses['http']}/metrics")
    assert f'hindmost_collector_relay_connected{{collector="{where}"}} 1' in page


async def test_relay_without_its_collector_takes_nothing(collector_process, fake_agent):
    """While the collector is out of reach a relay is not ready and turns agents away: they keep what they have."""
    relay = collector_process("--relay-to", "127.0.0.1:1", "--http", "127.0.0.1:0")

    agent = fake_agent(relay.addresses["grpc"])
    try:
        with pytest.raises(Exception, match=r"collector 127.0.0.1:1 is out of reach of this relay"):
            await agent.connect()
    finally:
        await agent.close()
    assert fetched(f"http://{relay.addresses['http']}/readyz") == (503, "out of reach: 127.0.0.1:1\n")


@pytest.mark.torture
async def test_garbage_ends_only_its_own_stream(collector_process, fake_agent, tmp_path):
    """Bytes that are no message are refused from any client; the other agents of the relay go on."""
    collector = collector_process("--out", tmp_path, "--http", "none")
    relay = collector_process("--relay-to", collector.addresses["grpc"], "--http", "none")

    good = fake_agent(relay.addresses["grpc"])
    deadline = time.monotonic() + PATIENCE_S
    while good.stream is None or not good.messages:
        assert time.monotonic() < deadline
        try:
            await good.connect()
            await good.deliver([0])
        except BROKEN:
            await good.close()
            await asyncio.sleep(0.1)
    async with grpc.aio.insecure_channel(relay.addresses["grpc"]) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(b"\x1a\xff\xff\xff")
        assert await call.code() != grpc.StatusCode.OK
    await good.deliver([1])
    await good.close()
    assert stored.steps(tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_framing_is_protobuf_s():
    """What a relay puts around messages, unopened, is what protobuf would."""
    batch = wire.AgentMessage(batch=wire.Batch(sequence=7, metrics=[wire.MetricBlock(values=[1.0] * 99)]))
    made = relayed([(1, batch.SerializeToString()), (300, None)])
    messages = [wire.FromAgent(stream=1, message=batch), wire.FromAgent(stream=300, ended=True)]
    assert wire.AgentMessage.FromString(made) == wire.AgentMessage(relayed=wire.Relayed(messages=messages))
    empty = wire.AgentMessage.FromString(relayed([]))
    assert empty.WhichOneof("body") == "relayed"


class Upwards:
    """The stream to a collector, as far as the first message that is written to it."""

    def __init__(self) -> None:
        self.sent: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def write(self, content: bytes) -> None:
        self.sent.set_result(content)


async def test_an_empty_message_is_passed_on():
    """A message without any field, which is valid protobuf, ends no stream and reaches the collector."""
    link, upwards = Link("127.0.0.1:1"), Upwards()
    await link.send(link.open(RelayedAgent()), b"")
    sending = asyncio.create_task(link.send_waiting(upwards))
    assert await upwards.sent == relayed([(1, b"")])
    sending.cancel()


def test_job_goes_to_one_collector():
    """Every relay sends a job to the same collector; jobs spread; one more collector moves only its own share."""
    three = [Link(f"c{number}:9460") for number in range(3)]
    jobs = [f"job{number}" for number in range(300)]
    before = {job: choose(three, job).target for job in jobs}
    assert {job: choose(three[::-1], job).target for job in jobs} == before
    counts = [list(before.values()).count(link.target) for link in three]
    assert min(counts) > 60
    after = {job: choose([*three, Link("c3:9460")], job).target for job in jobs}
    assert {after[job] for job in jobs if after[job] != before[job]} == {"c3:9460"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--relay-to", "nowhere"], "--relay-to 'nowhere' is not HOST:PORT"),
        (["--relay-to", "h:1", "--store", "/tmp/x"], "--store is for the collector"),
        (["--relay-to", "h:1,h:0"], "port 0 is not valid"),
    ],
)
def test_bad_relay_is_a_usage_error(arguments, said):
    """What cannot be a relay is said in one line, before anything starts."""
    parser = argparse.ArgumentParser()
    command.configure(parser)
    with pytest.raises(UsageError) as caught:
        resolve(vars(parser.parse_args(arguments)), {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@contextlib.asynccontextmanager
async def answering(said, *, stays):
    """A port where another program says this to each client, and hangs up or stays."""

    async def other(reader, writer):
        writer.write(said)
        if stays:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def silent(requests, context):
    async for _ in requests:
        pass


async def nonsense(requests, context):
    await context.write(b"\xff\xff\xff")
    await silent(requests, context)


async def nonsense_later(requests, context):
    await context.write(wire.CollectorMessage(returned=wire.Returned()).SerializeToString())
    await nonsense(requests, context)


async def another(requests, context):
    await context.write(b"")
    await silent(requests, context)


async def refusal(requests, context):
    await context.abort(grpc.StatusCode.UNAVAILABLE, "not today")


@pytest.mark.parametrize(
    ("peer", "silence_s", "reason"),
    [
        (lambda: answering(b"", stays=False), PATIENCE_S, ""),
        (lambda: answering(b"", stays=True), 0.2, "no answer"),
        (lambda: answering(b"HTTP/1.1 400 Bad Request\r\n\r\n", stays=False), PATIENCE_S, ""),
        (lambda: serving(silent), 0.2, "no answer"),
        (lambda: serving(nonsense), PATIENCE_S, "it sent a message that cannot be read"),
        (lambda: serving(nonsense_later), PATIENCE_S, "it sent a message that cannot be read"),
        (lambda: serving(another), PATIENCE_S, "it does not answer as a collector that takes relays"),
        (lambda: serving(refusal), PATIENCE_S, "not today"),
    ],
    ids="hangs-up says-nothing no-gRPC silent nonsense nonsense-later another-service refuses".split(),
)
async def test_what_is_no_collector_is_named_and_ends_no_link(peer, silence_s, reason, caplog):
    """The link lives through whatever is at the other end, and says what that said."""
    caplog.set_level(logging.WARNING, "hindmost_collector")

    def said():
        return [record.getMessage() for record in caplog.records if record.name.startswith("hindmost")]

    async with peer() as port:
        link = Link(f"127.0.0.1:{port}", jitter=lambda: 0.0, silence_s=silence_s)
        running = asyncio.create_task(link.run())
        await until(said)
        assert not running.done()
        assert not link.connected
        await retry.cancel(running)
    assert f"cannot be reached ({reason}" in said()[0]
