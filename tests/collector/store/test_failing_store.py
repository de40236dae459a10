"""A store that cannot be written: what was acknowledged stays true, and what was not comes again."""

import asyncio
import errno
import os
import threading

import pytest
from hindmost_collector import collector as maintenance
from hindmost_collector.store.parquet import journal, segments
from hindmost_collector.store.parquet.compaction import Upkeep
from hindmost_collector.store.parquet.store import ParquetStore, folder, read_run

from tests.collector.stored import steps
from tests.waiting import until

pytestmark = pytest.mark.torture


def full(*_, **__):
    """No space left."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_long_failure_is_replayed(collecting, fake_agent, tmp_path, monkeypatch):
    """Rows let go while the disk was full are never acknowledged: they come again, and count once, live and stored."""
    async with collecting(out=str(tmp_path), flush_seconds=0.1) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            collector.recorder.limit = 1  # any row is too much to keep
            with monkeypatch.context() as patch:
                patch.setattr(segments, "write", full)
                for step in range(10):
                    await agent.send(agent.batch(step))
                await until(lambda: collector.recorder.detached and collector.recorder.shed_bytes)
                for step in range(10, 15):
                    await agent.send(agent.batch(step))
                await until(lambda: collector.jobs["j"].window.last_step == 14)
                acked, trouble = agent.acked, collector.endpoints.ready()
            collector.recorder.limit = 1 << 20
            assert "send it again" in await agent.ended()
        durable = await agent.connect()
        await agent.until_acked(15)
        await agent.deliver([15])
        await until(lambda: collector.jobs["j"].window.last_step == 15)
        counted = dict(collector.jobs["j"].counters())["steps_total"].tolist()
        await agent.close()
        ready = collector.endpoints.ready()
    assert (acked, durable, counted) == (0, 0, [16, 16])
    assert (trouble, ready) == ("recording fails: the disk is full", None)
    assert steps(tmp_path) == [(rank, step) for rank in (0, 1) for step in range(16)]
    assert read_run(tmp_path).ranks["rank"].tolist() == [0, 1]


async def test_retention_makes_room_on_a_full_disk(collecting, fake_agent, tmp_path, monkeypatch):
    """While a full disk keeps all from being written, retention deletes what is too much; then recording goes on."""
    before = ParquetStore(tmp_path, single=False)
    (held := before.job_directory("old") / "segments/steps").mkdir(parents=True)
    (held / segments.file_name("20250101", 1)).write_bytes(b"." * 5000)
    before.close()
    write, expire, failed = segments.write, Upkeep.expire, threading.Event()

    def unless_full(*args):
        if any(held.glob("*")):
            failed.set()
            full()
        return write(*args)

    monkeypatch.setattr(segments, "is_torn", lambda *_, **__: False)
    monkeypatch.setattr(segments, "write", unless_full)
    monkeypatch.setattr(Upkeep, "compact", lambda _: 0)
    monkeypatch.setattr(Upkeep, "expire", lambda upkeep: expire(upkeep) if failed.is_set() else 0)
    monkeypatch.setattr(maintenance, "UPKEEP_S", 0.01)

    # a byte less would be kept: the old segment is all that there is
    async with collecting(store=str(tmp_path), flush_seconds=0.1, retention_gib=4999 / 2**30) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.deliver([0])
        failures = collector.recorder.failures
    assert failures > 0
    assert not held.exists()


async def test_committed_rows_are_not_written_twice(collecting, fake_agent, tmp_path, monkeypatch):
    """A disk that fails between the commit and its renames doubles nothing, and nothing is acknowledged before them."""
    real = journal.sync_directory
    failed = []

    def once(directory):
        if len(failed) < 3:
            failed.append(directory)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(directory)

    async with collecting(out=str(tmp_path), flush_seconds=0.1) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.deliver([0])
            monkeypatch.setattr(journal, "sync_directory", once)
            await agent.send(agent.batch(1))
            await until(lambda: len(failed) == 3)
            acked = agent.acked
            await agent.until_acked(2)
        failures = collector.recorder.failures
    assert acked == 1
    assert failures == 3
    assert steps(tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_stack_is_written_with_its_commit(tmp_path, monkeypatch):
    """A stack dump becomes a file when the journal commits it, and not before."""
    store = ParquetStore(tmp_path, single=False)
    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "commit", full)
        with pytest.raises(OSError, match="No space"):
            store.write({}, {"a@n": 1}, files={("j", "stacks/3.txt"): b"here"})
    assert list((tmp_path / "j").rglob("*.txt*")) == []
    store.write({}, {"a@n": 1}, files={("j", "stacks/3.txt"): b"here"})
    assert (tmp_path / "j/stacks/3.txt").read_bytes() == b"here"
    store.close()


@pytest.mark.parametrize("job", ["..", ".", "../../etc", "a/b", "x" * 5000, "\0", ".journal.json", "é" * 100])
def test_no_job_name_leads_out_of_the_store(tmp_path, job):
    """Whatever a job calls itself, its rows lie in one directory of the store."""
    store = ParquetStore(tmp_path, single=False)
    store.write({}, {}, files={(job, "stacks/0.txt"): b"here"})
    store.close()
    found = [path.relative_to(tmp_path) for path in tmp_path.rglob("0.txt")]
    assert [str(path) for path in found] == [f"{folder(job)}/stacks/0.txt"]


async def test_flush_outlives_who_asked(collecting, fake_agent, tmp_path, monkeypatch):
    """A cancelled flush runs to its end and is acknowledged; no second one starts in parallel."""
    async with collecting(out=str(tmp_path), flush_seconds=600.0) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.send(agent.batch(0))
            await until(collector.ingest.received)
            collector.gather()
            asked = asyncio.create_task(collector.flush())
            await asyncio.sleep(0)
            asked.cancel()
            await agent.until_acked(1)
        assert asked.cancelled()
    assert steps(tmp_path) == [(0, 0), (1, 0)]
