"""What a collector's log says of its life, and of its agents."""

import asyncio
import io
import itertools
import logging
import os
import sys
import threading

import pytest
from hindmost_collector import main
from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.connections import ConnectionLog
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.streams import Ingest
from hindmost_collector.options import Options
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire

ATTENDANCE = logging.getLogger(ConnectionLog.__module__)


def said_by(logger: logging.Logger, caplog) -> list[str]:
    """What this logger said; other parts of a process, and what other tests left to be collected, may speak too."""
    return [record.message for record in caplog.records if record.name == logger.name]


async def test_a_life_in_the_log(tmp_path, caplog, capsys):
    """Start says where agents connect, where records go; stop says who is asked, and that it is done."""
    caplog.set_level(logging.INFO, "hindmost_collector")

    stopped = asyncio.Event()
    stopped.set()
    await main.serve(Options(listen="127.0.0.1:0", http="none", store=str(tmp_path)), stopped)
    assert '"grpc"' in capsys.readouterr().out
    started, stopping, stopped = said_by(main.log, caplog)
    assert started.startswith("started: agents on 127.0.0.1:")
    assert started.endswith(f", page and metrics on no port, recording into {tmp_path}")
    assert stopping == "stopping: 0 agents are asked to send what they have"
    assert stopped == "stopped: 0 rows were written"


def test_no_password_in_the_log():
    """A store's URL is shown without what opens it."""
    shown = main.recorded_into(Options(store="clickhouse://me:secret@db:8123/runs"))
    assert shown == "clickhouse://me@db:8123/runs"


def messages(log: ConnectionLog, caplog, connected: int = 0) -> list[str]:
    """What one tick says."""
    caplog.clear()
    log.tell(lambda: connected)
    return said_by(ATTENDANCE, caplog)


def test_comings_and_goings_take_a_line_a_second(caplog):
    """However many agents come, one line a second says how many that were and names the first."""
    caplog.set_level(logging.INFO, "hindmost_collector")
    seconds = [7.0]
    log = ConnectionLog(lambda: seconds[0])
    for number in range(500):
        log.joined(f"a@n{number}")
    assert messages(log, caplog, 512) == ["500 agents joined (a@n0, a@n1, a@n2, …): 512 connected"]
    log.left("a@n7", said_goodbye=True)
    seconds[0] += 0.9
    assert messages(log, caplog, 511) == []
    log.left("a@n8", said_goodbye=False)
    seconds[0] += 0.2
    said = ["1 agent left (a@n7): 510 connected", "1 agent broke off (a@n8): 510 connected"]
    assert messages(log, caplog, 510) == said
    assert messages(log, caplog) == []


async def test_an_agent_is_logged_when_it_joins_and_leaves(caplog):
    """A new stream in place of an older one is no coming and no going; the end of the last one is."""
    caplog.set_level(logging.INFO, "hindmost_collector")
    definitions = Definitions()
    ingest = Ingest(JobClock(), definitions, Decoder(definitions), dict)
    ingest.connection_log = ConnectionLog(itertools.count(1.0).__next__)
    hello = wire.Hello(protocol=1, agent_id="a", node="n", monotonic_ns=1)

    first, second = [await ingest.greet(hello) for _ in range(2)]
    ingest.part(*first)
    joined = messages(ingest.connection_log, caplog, ingest.connected())
    ingest.part(*second)
    left = messages(ingest.connection_log, caplog, ingest.connected())
    assert joined == ["1 agent joined (a@n): 1 connected"]
    assert left == ["1 agent broke off (a@n): 0 connected"]


def test_stdin_may_end_after_the_collector_has(monkeypatch):
    """Its loop is closed then: the thread that reads stdin ends without a traceback."""
    loop, ends = asyncio.new_event_loop(), (asyncio.Event(), asyncio.Event())
    loop.close()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    thread = threading.Thread(target=main.follow_stdin, args=(None, loop, ends))
    thread.start()
    thread.join(300)
    assert (thread.is_alive(), failed) == (False, [])


@pytest.mark.parametrize(("signalled", "reason"), [(True, "the collector is stopping"), (False, retry.JOB_OVER)])
def test_a_held_collector_says_that_the_job_is_over_when_it_is(tmp_path, monkeypatch, capsys, signalled, reason):
    """The end of its stdin is the job's; a signal ends the collector alone, and agents that run on go on."""
    said, (read, write) = [], os.pipe()
    real = main.Collector.stop

    async def stop(collector, why, goodbyes):
        said.append(why)
        return await real(collector, why, goodbyes)

    monkeypatch.setattr(main.Collector, "stop", stop)

    async def scenario(stdin):
        monkeypatch.setattr(sys, "stdin", stdin)
        stopped = asyncio.Event()
        if signalled:
            stopped.set()
        else:
            os.write(write, b'{"exit_code": 0}\n')
            os.close(write)
        options = Options(
            listen="127.0.0.1:0", http="none", out=str(tmp_path / "run"), job_id="j", exit_when_stdin_closes=True
        )
        assert await main.serve(options, stopped) == 0
        if signalled:
            os.close(write)

    with os.fdopen(read, encoding="utf-8") as stdin:
        asyncio.run(scenario(stdin))
    assert said == [reason]
    assert '"grpc"' in capsys.readouterr().out


def test_a_name_writes_no_line_of_its_own():
    """An agent calls its node what a line of the log looks like: it stays in its line. A traceback has its own."""
    name = "n1\n2026-11-29 hindmost collector: INFO: stopped\x1b[2K"
    try:
        int("")
    except ValueError:
        record = logging.LogRecord("a", logging.INFO, __file__, 1, "joined (%s)", (name,), sys.exc_info())
    message, *traceback = main.TextLines().format(record).splitlines()
    assert message == r"joined (n1\n2026-11-29 hindmost collector: INFO: stopped\x1b[2K)"
    assert len(traceback) >= 3
