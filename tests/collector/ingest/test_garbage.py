"""Whatever arrives, the collector goes on: messages that parse and mean nothing, and bytes that do not even parse."""

import asyncio
import contextlib
import json
import re
import types
import urllib.request

import grpc
import pytest
from hindmost_collector.ingest.connections import RejectedCalls
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.store.parquet.store import read_run
from hindmost_proto import telemetry_pb2 as wire

pytestmark = pytest.mark.torture


def test_names_are_bounded():
    """A job that makes up names without end costs no memory without end."""
    words = Words(limit=3)
    codes = [words.code(f"epoch {number}") for number in range(1000)]
    assert words.words == ["epoch 0", "epoch 1", "epoch 2", "other"]
    assert codes[3:] == [3] * 997


@pytest.mark.parametrize("relayed", [False, True])
def test_rejected_calls_are_answered_counted_and_logged(collecting, collector_process, relayed, caplog):
    """Rejected calls get a reason, and so does the operator: counted by kind and named by address, without a
    traceback."""

    async def refused(address, method, message):
        async with grpc.aio.insecure_channel(address) as channel:
            stream = channel.stream_stream(method)()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stream.write(message)
                await stream.read()
            return (await stream.code()).name, await stream.details()

    async def scenario():
        async with collecting() as collector:
            address, page, stream = *collector.addresses.values(), "/hindmost.v1.Telemetry/Stream"
            if relayed:
                relay = collector_process("--relay-to", address, "--http", "127.0.0.1:0", "--log-format", "json")
                address, page = relay.addresses.values()
            answers = [await refused(address, "/other.Service/Export", b"x")]
            answers += [await refused(address, stream, text) for text in (b"\xff\xff", b"\xff\xff", batch)]
            with urllib.request.urlopen(f"http://{page}/metrics") as answer:
                lines = answer.read().decode()
            shown = re.findall(r'^hindmost_collector_refused_streams_total{reason="(\w+)"} (.*)$', lines, re.MULTILINE)
        if not relayed:
            return answers, shown, [(record.levelname, record.message, record.exc_info) for record in caplog.records]
        relay.popen.terminate()
        lines = [json.loads(line) for line in relay.popen.communicate()[1].splitlines()]
        return answers, shown, [(one["level"].upper(), one["message"], one.get("traceback")) for one in lines]

    batch = wire.AgentMessage(batch=wire.Batch(sequence=1)).SerializeToString()
    answers, shown, logged = asyncio.run(scenario())
    assert "OK" not in [code for code, _ in answers]  # under load the reset that ends a stream overtakes its reason
    others = [("refused", "0"), ("credentials", "0")]
    assert shown == [("method", "1"), ("garbage", "2"), ("hello", "1"), *others]
    said = [text for level, text, _ in logged if level in {"WARNING", "ERROR"} and "agents' port" in text]
    assert [re.sub(r"ipv4:127.0.0.1:\d+ was refused on the agents' port: ", "", one)[:40] for one in said] == [
        "it calls /other.Service/Export, which is",
        "what it sent is no message of an agent: ",
        "the first message of a stream must be He",
    ]
    assert [trace for _, _, trace in logged if trace] == []


def peer(host, port=1):
    """Of the context of a call, who called."""
    return types.SimpleNamespace(peer=lambda: f"ipv4:{host}:{port}")


def test_rejected_calls_of_a_host_are_logged_once_a_minute(caplog):
    """However many there are, one reason is one line a minute for each host, which says how many there were."""
    now = [0.0]
    calls = RejectedCalls(lambda: now[0])
    for now[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
        calls.count("garbage", peer("10.0.0.9", now[0]), "noise")
        if now[0] == 1.0:
            calls.count("garbage", peer("10.0.0.7"), "noise")
            calls.count("hello", peer("10.0.0.9"), "no Hello")
    said = "was refused on the agents' port"
    assert caplog.messages == [
        f"ipv4:10.0.0.9:0.0 {said}: noise",
        f"ipv4:10.0.0.7:1 {said}: noise",
        f"ipv4:10.0.0.9:1 {said}: no Hello",
        f"ipv4:10.0.0.9:60.0 {said}: noise (2 more like it since the last such line)",
    ]
    assert calls.counts["garbage"] == 6


def test_a_flood_of_hosts_does_not_fill_the_log(caplog):
    """Beyond some dozens one line a minute stands for all further hosts; a minute later these have lines again."""
    now = [0.0]
    calls = RejectedCalls(lambda: now[0])
    for host in range(3000):
        calls.count("credentials", peer(f"10.0.{host // 256}.{host % 256}"), "no valid token")
    assert len(caplog.records) < 50
    now[0] = 61.0
    calls.count("credentials", peer("10.0.11.1"), "no valid token")
    assert caplog.records[-1].message.startswith("ipv4:10.0.11.1:1 was refused")
    assert calls.counts["credentials"] == 3001


def test_the_number_of_suppressed_lines_of_a_host_outlives_a_flood_of_hosts(caplog):
    """A line says how many there were, once."""
    now = [0.0]
    calls = RejectedCalls(lambda: now[0])
    for _ in range(10):
        calls.count("garbage", peer("10.0.0.9"), "noise")
    for now[0] in (1.0, 90.0):
        for host in range(40):
            calls.count("garbage", peer(f"10.1.{now[0]:.0f}.{host}"), "noise")
    calls.count("garbage", peer("10.0.0.9"), "noise")
    numbers = [record.message for record in caplog.records if " more" in record.message]
    assert numbers == ["ipv4:10.0.0.9: refused 9 times more (garbage)", "other hosts: refused 8 times more (garbage)"]


async def test_broken_tick_is_replayed(collecting, fake_agent, tmp_path, monkeypatch, caplog):
    """A tick that fails for an unforeseen reason loses nothing and is in the log: agents send again."""
    async with collecting(out=str(tmp_path), flush_seconds=0.1) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.deliver([0])
            with monkeypatch.context() as patch:
                patch.setattr(collector, "job", lambda _: 1 / 0)
                await agent.send(agent.batch(1))
                assert "send it again" in await agent.ended()
        assert await agent.connect() == 1
        await agent.until_acked(2)
        await agent.close()
    run = read_run(tmp_path)
    assert (sorted(run.steps["step"].tolist()), run.ranks["rank"].tolist()) == ([0, 0, 1, 1], [0, 1])
    assert [record.message for record in caplog.records if record.exc_info] == [
        "a tick failed; its data is requested again"
    ]
