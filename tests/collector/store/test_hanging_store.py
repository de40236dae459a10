"""A store that neither writes nor fails: memory stays bounded, readiness says so, every row is stored afterwards."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest
from hindmost_collector import collector as service
from hindmost_collector import main
from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows, Words
from hindmost_collector.main import open_store
from hindmost_collector.options import Options
from hindmost_collector.store import recorder as store_recorder
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.recorder import StoreRecorder

from tests.collector.stored import steps
from tests.waiting import until

ROWS = 1000


class Gate:
    """A store whose writes wait until they are let through, or fail then."""

    def __init__(self):
        self.entered, self.open, self.error = threading.Event(), threading.Event(), None

    def write(self, *_):
        self.entered.set()
        assert self.open.wait(300)
        if self.error:
            raise self.error
        return 1, 1


@pytest.fixture
def recorder():
    """A recorder into a ``Gate``, which knows one series; ``clock`` holds its time."""
    definitions = Definitions()
    definitions.schemas[1] = Schema((Series("m", False, "", "{}"),))
    clock = [0.0]
    made = StoreRecorder(Gate(), Words(), definitions, 1 << 20, now=lambda: clock[0])
    made.clock = clock
    yield made
    made.store.open.set()


def chunks():
    """Some samples of one job."""
    rows = MetricRows.of("n", 1, np.arange(ROWS), np.ones((ROWS, 1)))
    return {"j": Chunk({}, {}, [rows], [], metric_bytes=rows.bytes)}


async def writing(recorder):
    """A flush that hangs in its write."""
    task = asyncio.create_task(recorder.flush({}))
    assert await asyncio.to_thread(recorder.store.entered.wait, 60)
    return task


@pytest.mark.parametrize("error", [None, OSError("away")])
async def test_discard_during_a_write_counts_each_byte_once(recorder, error):
    """What a write has taken stays counted until it is back; a discard meanwhile lets go of the rest only."""
    recorder.add(chunks(), {"a": 1})
    one = recorder.pending_bytes
    flush = await writing(recorder)
    recorder.add(chunks(), {"a": 2})
    counted = [recorder.pending_bytes]
    recorder.clock[0] = store_recorder.HANGS_S
    recorder.discard()
    counted.append(recorder.pending_bytes)
    recorder.store.error = error
    recorder.store.open.set()
    durable = await flush
    assert one > 0
    assert [*counted, recorder.pending_bytes] == [2 * one, one, one if error else 0]
    assert recorder.shed_bytes == one
    assert durable == ({} if error else {"a": 1})


async def test_a_write_is_waited_for_a_while(recorder):
    """It is under way until it is back, or until it takes too long to wait for."""
    recorder.add(chunks(), {"a": 1})
    found = [recorder.writing]
    flush = await writing(recorder)
    found.append(recorder.writing)
    recorder.clock[0] = store_recorder.WAIT_S
    found.append(recorder.writing)
    recorder.clock[0] = 0.0
    recorder.store.open.set()
    await flush
    assert [*found, recorder.writing] == [False, True, False, False]


async def test_a_write_that_hangs_is_reported(recorder, caplog):
    """A write that does not come back is trouble after a while and no sooner, and one line tells of it."""
    recorder.add(chunks(), {"a": 1})
    flush = await writing(recorder)
    recorder.clock[0] = store_recorder.HANGS_S - 1
    early = recorder.trouble
    recorder.clock[0] = store_recorder.HANGS_S + 5
    late = recorder.trouble
    for _ in range(2):
        recorder.discard()
    recorder.store.open.set()
    await flush
    assert (early, late, recorder.trouble) == (None, "a write has not come back for 35 s", None)
    assert [record.message.split(":")[0] for record in caplog.records if record.levelname == "ERROR"] == [
        "recording stopped"
    ]


async def test_flush_that_hangs_keeps_every_bound(collecting, fake_agent, tmp_path, monkeypatch):
    """While a flush hangs reading stops at the memory limit; later rows are shed and watched, and stored in the end."""
    release, real = threading.Event(), segments.write

    def hang(*args):
        assert release.wait(300)
        return real(*args)

    monkeypatch.setattr(service, "TICK_S", 0.02)
    async with collecting(out=str(tmp_path), flush_seconds=0.1) as collector:
        recorder, agent = collector.recorder, fake_agent(collector.addresses["grpc"])
        await agent.connect()
        monkeypatch.setattr(segments, "write", hang)
        await agent.send(agent.batch(0))
        await until(lambda: recorder.writing)
        recorder.limit = 1  # any row is too much to keep
        await until(lambda: not collector.ingest.reading.is_set())
        ready = [collector.endpoints.ready()]
        recorder.now = lambda: time.monotonic() + store_recorder.HANGS_S
        for step in range(1, 5):
            await agent.send(agent.batch(step))
        await until(lambda: recorder.shed_bytes and collector.jobs["j"].window.last_step == 4)
        ready.append(collector.endpoints.ready())
        acked, recorder.limit = collector.ingest.agents["a@n0"].durable, 1 << 20
        release.set()
        assert "send it again" in await agent.ended()
        await agent.close()
        await agent.connect()
        await agent.until_acked(5)
        await agent.close()
        ready.append(collector.endpoints.ready())
    assert acked == 0
    assert (ready[0], ready[2]) == (None, None)
    assert ready[1].startswith("recording fails: a write has not come back for")
    assert steps(tmp_path) == [(rank, step) for rank in (0, 1) for step in range(5)]


async def test_a_collector_leaves_a_store_that_hangs(tmp_path, monkeypatch, capsys, caplog):
    """Asked to stop while a write hangs it waits no longer than writes take, says so, and reports what it remembers.

    That job was never judged: it was short, or its ranks used every core.
    """

    class Left(Exception):  # noqa: N818 - it stands for os._exit
        pass

    def leave(code):
        raise Left(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    options = Options(out=str(tmp_path), job_id="j", http="none")
    collector = service.Collector(options, open_store(options))
    collector.job("j").exit_code = 3
    stopping = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(main.ended(stopping, collector, look_s=0.01))
    await asyncio.wait({waiting}, timeout=0.05)
    patient = not waiting.done()
    collector.recorder.writing_since = time.monotonic() - store_recorder.HANGS_S - 5
    assert not await asyncio.wait_for(waiting, 300)
    with pytest.raises(Left, match="1"):
        main.abandon(collector)
    assert patient
    report = json.loads(capsys.readouterr().out)["report"]
    assert (report["job"]["exit_code"], report["verdicts"][0]["kind"]) == (3, "insufficient_data")
    assert any("a write has not come back for 35 s" in note for note in report["notes"])
    assert "a write has not come back for 35 s: stopping with unwritten data" in caplog.text
