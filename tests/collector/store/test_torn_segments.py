"""Segments with damage inside: each is set aside and named, and nothing else suffers from it."""

import asyncio
import errno
import json
import re
import shutil
import subprocess
import sys
import time

import hindmost_collector
import numpy as np
import pyarrow.parquet as pq
import pytest
from hindmost.errors import HindmostError, UsageError
from hindmost_collector import collector as maintenance
from hindmost_collector.store import schema
from hindmost_collector.store.parquet import journal, segments
from hindmost_collector.store.parquet.compaction import LEAST_SEGMENTS, Retention, Upkeep
from hindmost_collector.store.parquet.journal import Journal
from hindmost_collector.store.parquet.run_directory import read_together
from hindmost_collector.store.parquet.store import ParquetStore, read_run
from hindmost_proto import telemetry_pb2 as wire

from tests.collector.stored import rows_of
from tests.pages import fetched

pytestmark = pytest.mark.torture

BAD = 3


def samples(flush, rows=200):
    at = np.arange(rows)
    return rows_of("metrics", node="n", name="m", labels="{}", time_ns=flush * rows + at, value=at * at % 97.0)


def damage(path):
    """Overwrite the first half of the pages; the footer stays whole."""
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:4] + b"\xff" * (half - 4) + content[half:])


@pytest.fixture
def store(tmp_path):
    """Two jobs of LEAST_SEGMENTS + 1 flushes each; one segment of the first is damaged inside."""
    made = ParquetStore(tmp_path, single=False)
    for flush in range(LEAST_SEGMENTS + 1):
        made.write({(job, "metrics"): [samples(flush)] for job in ("a", "b")}, {})
    made.write_meta("a", {"job_id": "a"})
    damage(sorted((tmp_path / "a/segments/metrics").glob("*.parquet"))[BAD])
    yield made
    made.close()


def names(directory):
    """The files of a table."""
    return sorted(path.name for path in directory.iterdir())


def test_compaction_sets_a_damaged_segment_aside(store, tmp_path, caplog):
    """Compaction takes one damaged segment out of the way, says so once, and goes on with the other jobs."""
    upkeep = Upkeep(store, Retention())
    done = [upkeep.compact() for _ in range(3)]
    assert done == [1, LEAST_SEGMENTS + 1, 0]
    (aside,) = (tmp_path / "a/segments/metrics").glob("*.torn")
    assert store.torn == [str(aside.relative_to(tmp_path))]
    message = f"a segment is torn: readers leave its rows out; it was set aside as {aside}"
    assert caplog.messages == [message]
    assert len(names(tmp_path / "b/segments/metrics")) == 1


def test_no_merged_segment_stands_for_one_set_aside(store, tmp_path):
    """The segments before and after one that was set aside merge separately: repaired, its rows are read again."""
    now = time.time() + 86400
    upkeep = Upkeep(store, Retention(), now=lambda: now)
    while upkeep.compact():
        pass
    directory = tmp_path / "a/segments/metrics"
    assert len(segments.listed(directory)) == 2
    (aside,) = segments.aside(directory)
    segments.write("metrics", [samples(BAD)], aside.path.with_name(aside.path.name.removesuffix(".torn")))
    times = hindmost_collector.open(tmp_path / "a").sql("select time_ns from metrics order by 1")["time_ns"].to_pylist()
    assert times == list(range(200 * (LEAST_SEGMENTS + 1)))


def test_what_was_set_aside_is_named_later(store, tmp_path, caplog):
    """Report and query name a segment that was set aside earlier, one line each."""
    Upkeep(store, Retention()).compact()
    caplog.clear()
    (aside,) = store.torn
    message = f"segment {aside.removeprefix('a/segments/')} is torn and was left out"
    assert [note for note in read_run(tmp_path / "a").notes if "torn" in note] == [message]
    recording = hindmost_collector.open(tmp_path)
    for _ in range(2):
        assert recording.sql("select count(*) as n from metrics")["n"].to_pylist() == [200 * (2 * LEAST_SEGMENTS + 1)]
    assert caplog.messages == [f"{tmp_path / 'a'}: {message}"]


async def test_operators_learn_where_it_lies(store, collecting, tmp_path, caplog):
    """Readiness stays and names the file, the metric counts it, also after a restart; once repaired neither does."""
    Upkeep(store, Retention()).compact()
    (aside,) = store.torn
    store.close()

    def look(collector):
        _, ready = fetched(f"http://{collector.addresses['http']}/readyz")
        return ready, re.findall(
            rb"^hindmost_collector_torn_segments (.*)$", collector.endpoints.metrics(), re.MULTILINE
        )

    async with collecting(store=str(tmp_path)) as collector:
        first = look(collector)
        (tmp_path / aside).unlink()
        Upkeep(collector.recorder.store, Retention()).expire()
        before, after = first, look(collector)
    assert before == (f"ready\ntorn, left out by every reader: {aside}\n", [b"1"])
    assert after == ("ready\n", [b"0"])


@pytest.mark.parametrize("command", ["query", "report"])
def test_readers_get_one_line(store, tmp_path, capfd, command):
    """The command line names a segment that is not there to read, once, with its place in the run."""
    Upkeep(store, Retention()).compact()
    (aside,) = store.torn
    words = [command, str(tmp_path / "a"), *(["select count(*) from metrics"] if command == "query" else [])]
    subprocess.run([sys.executable, "-m", "hindmost", *words], check=False)
    said = "".join(capfd.readouterr()).splitlines()
    message = "segment " + aside.removeprefix("a/segments/")
    assert len([line for line in said if message in line]) == 1


def test_many_get_one_line(store, tmp_path, caplog):
    """Torn segments are counted in one line that names the first, by report and query alike."""
    for path in sorted((tmp_path / "b/segments/metrics").glob("*.parquet"))[1:]:
        path.write_bytes(path.read_bytes()[:40])
    (note,) = [note for note in read_run(tmp_path / "b").notes if "torn" in note]
    assert re.fullmatch(
        rf"{LEAST_SEGMENTS} segments are torn and were left out: (metrics/\S+, ){{2}}\S+ and {LEAST_SEGMENTS - 3} more",
        note,
    )
    hindmost_collector.open(tmp_path / "b").sql("select count(*) from metrics")
    assert caplog.messages == [f"{tmp_path / 'b'}: {note}"]


@pytest.mark.parametrize("words", [["report"], ["query", "select count(*) from metrics"]])
def test_a_run_of_which_nothing_can_be_read_is_refused(store, tmp_path, says, words):
    """Where damage left nothing to answer from, one line names the folder and the remedy, and no file is touched."""
    for path in (tmp_path / "b/segments/metrics").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:40])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    said = says(2, [words[0], str(tmp_path / "b"), *words[1:]])
    message = f"hindmost {words[0]}: {tmp_path / 'b'}: nothing "
    assert (said.out, said.err.count("\n"), said.err.startswith(message)) == ("", 1, True)
    assert f"segments ({LEAST_SEGMENTS + 1}) are torn" in said.err
    assert "copy" in said.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_what_another_collector_kept_is_reported_without_a_torn_directory(store, tmp_path):
    """Of two directories of a job, one that cannot be read at all costs no row of the other."""
    store.write_meta("b", {"job_id": "b"})
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    for path in (tmp_path / "b/segments/metrics").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:40])
    run = read_together([tmp_path / "b", tmp_path / "c"])
    assert len(run.metrics["value"]) == 200 * (LEAST_SEGMENTS + 1)
    assert f"{LEAST_SEGMENTS + 1} segments are torn" in run.notes[0]


@pytest.mark.parametrize("table", ["metrics", "metrics_30s"])
def test_query_leaves_a_damaged_segment_out(store, tmp_path, caplog, table):
    """A query over a damaged segment answers from all others, and one line names what is missing."""
    total = "count(*)" if table == "metrics" else "sum(count)::bigint"
    query = f"select job, {total} as n, max(node) as node from {table} group by job order by job"  # noqa: S608
    (first, second) = hindmost_collector.open(tmp_path).sql(query).to_pylist()
    assert (first["n"], second["n"]) == (200 * LEAST_SEGMENTS, 200 * (LEAST_SEGMENTS + 1))
    assert len(caplog.records) == 1
    assert "is torn and was left out" in caplog.records[0].message


def test_wrong_query_over_whole_segments_stays_wrong(store, tmp_path, caplog):
    """An error of the query itself is reported as one, and sets nothing aside."""
    with pytest.raises(UsageError, match=r"the query failed.*`describe TABLE` lists the columns of one"):
        hindmost_collector.open(tmp_path / "b").sql("select regexp_matches(node, '(') from metrics")
    assert caplog.records == []


def test_flipped_bit_is_not_read_as_a_value(tmp_path):
    """A page whose bytes changed on disk fails its checksum: no wrong number is taken for a measured one."""
    path = tmp_path / segments.file_name("20250101", 1)
    segments.write("metrics", [samples(0)], path)
    column = pq.ParquetFile(path).metadata.row_group(0).column(4)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    data, torn = segments.read_table(tmp_path, "metrics")
    assert (len(data), torn) == (0, [path])


def test_full_table_of_descriptors_sets_nothing_aside(store, tmp_path, monkeypatch):
    """A segment that cannot be opened just now is not called torn."""

    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(segments.pq, "ParquetFile", refuse)
    path = next((tmp_path / "b/segments/metrics").glob("*.parquet"))
    assert not segments.is_torn(path, whole=True)
    with pytest.raises(OSError, match="Too many open files"):
        Upkeep(store, Retention()).compact()
    assert list(tmp_path.rglob("*.torn")) == []


async def test_retention_is_kept_whatever_became_of_compaction(collecting, tmp_path, monkeypatch):
    """Upkeep that cannot compact still deletes what is too old."""
    loop, expired = asyncio.get_running_loop(), asyncio.Event()

    def expire(_):
        loop.call_soon_threadsafe(expired.set)
        return 0

    def compact(_):
        raise OSError("Corrupt snappy compressed data")

    monkeypatch.setattr(maintenance, "UPKEEP_S", 0.01)
    monkeypatch.setattr(Upkeep, "compact", compact)
    monkeypatch.setattr(Upkeep, "expire", expire)
    async with collecting(store=str(tmp_path)):
        await asyncio.wait_for(expired.wait(), 300)
    assert expired.is_set()


def test_commit_is_finished_after_a_crash(tmp_path):
    """Renames that a crash left undone after the commit are done at the next start; without a commit they are not."""
    (tmp_path / "committed.tmp").write_text("rows")
    first = Journal(tmp_path)
    real, first.finish = first.finish, lambda: None
    first.commit([("committed.tmp", "committed")], sequences={"a@n": 4})
    first.finish = real
    first.close()
    assert not (tmp_path / "committed").exists()
    again = Journal(tmp_path)
    assert (tmp_path / "committed").read_text() == "rows"
    assert again.state.sequences == {"a@n": 4}
    again.close()


def test_a_commit_writes_what_moved(tmp_path):
    """The journal of a store that knew 5,000 agents has those that moved lately; after a restart all are known."""
    first = Journal(tmp_path)
    everyone = {f"agent{number}@n": 1 for number in range(5000)}
    for sequences in (everyone, {"a@n": 2}, {"a@n": 3}, {"b@n": 1}):
        first.commit([], sequences=sequences)
    first.close()
    assert (tmp_path / ".journal.json").stat().st_size < 500
    again = Journal(tmp_path)
    assert again.state.sequences == everyone | {"a@n": 3, "b@n": 1}
    again.close()


def test_a_new_base_counts_from_its_commit_on(tmp_path, monkeypatch):
    """Where a crash or a full disk comes before the commit that names it, the old one counts; unnamed ones go."""
    monkeypatch.setattr(journal, "LEAST_KEPT", 1)
    first = Journal(tmp_path)
    for number in range(5):
        first.commit([], sequences={f"a{number}@n": number})
    before = dict(first.state.sequences)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(journal, "replace_files", full)
    for number in range(3):
        with pytest.raises(OSError, match="full"):
            first.commit([], sequences={f"b{number}@n": number})
    first.close()
    monkeypatch.undo()
    again = Journal(tmp_path)
    assert again.state.sequences == before
    again.commit([], sequences={"c@n": 1})
    again.close()
    assert len(list(tmp_path.glob(".sequences-*"))) == 1
    last = Journal(tmp_path)
    assert last.state.sequences == before | {"c@n": 1}
    last.close()


def test_a_start_looks_into_what_is_new(tmp_path, monkeypatch):
    """A start opens those that came or were changed since the last start, and no other."""
    looked = []
    is_torn = segments.is_torn
    monkeypatch.setattr(segments, "is_torn", lambda path: looked.append(path.name) or is_torn(path))

    def start() -> list[str]:
        looked.clear()
        written_ns = max(path.stat().st_ctime_ns for path in tmp_path.rglob("*"))
        while (tmp_path / "clock").write_bytes(b"") or (tmp_path / "clock").stat().st_ctime_ns <= written_ns:
            pass  # what is written in one tick of the file system's clock counts as new twice
        ParquetStore(tmp_path, single=False).close()
        return sorted(looked)

    store = ParquetStore(tmp_path, single=False)
    rows = schema.arrow_schema("steps").empty_table()
    for _ in range(3):
        store.write({("j", "steps"): [rows]}, {})
    store.close()
    paths = sorted((tmp_path / "j/segments/steps").iterdir())
    assert start() == [path.name for path in paths]
    assert start() == []
    paths[1].write_bytes(paths[1].read_bytes()[:100])
    assert start() == [paths[1].name]
    assert sorted(paths[1].parent.iterdir()) == [paths[0], paths[1].with_name(f"{paths[1].name}.torn"), paths[2]]
    assert start() == []


def test_one_writer_a_store(tmp_path):
    """A second collector on the same directory is refused, with the reason."""
    first = ParquetStore(tmp_path, single=True)
    with pytest.raises(HindmostError, match="written by another collector"):
        ParquetStore(tmp_path, single=True)
    first.close()
    ParquetStore(tmp_path, single=True).close()


async def test_held_collector_ends_with_its_stdin(collector_process, fake_agent, tmp_path):
    """A held collector stops its agents, records the exit code and leaves when stdin ends."""
    process = collector_process(
        "--out", tmp_path, "--job-id", "j", "--command", "x.py", "--exit-when-stdin-closes", "--set=min_effect=0.02"
    )
    assert process.addresses["http"] is None
    async with fake_agent(process.addresses["grpc"]) as agent:
        await agent.send(agent.batch(0))
        process.popen.stdin.write('{"exit_code": 3, "interrupted_by": "SIGTERM"}\n')
        process.popen.stdin.close()
        while not (await agent.read()).HasField("stop"):
            pass
        await agent.stream.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="stopped")))
        await agent.until_acked(1)
    assert process.popen.wait(300) == 0
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert (meta["schema"], meta["exit_code"], meta["command"]) == ("hindmost.run/1", 3, "x.py")
    assert meta["interrupted_by"] == "SIGTERM"
    assert meta["thresholds"] == {"min_effect": 0.02}
    assert meta["ended_ns"] > meta["started_ns"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "nowhere"], "not HOST:PORT"),
        (["--out", "/proc/nope"], "cannot record into /proc/nope"),
        (["--config", "/absent.toml"], "--config /absent.toml: No such file"),
        (["--listen", "203.0.113.1:1"], "--listen 203.0.113.1:1: the network reaches it: give --tls-cert"),
    ],
)
def test_bad_input_is_one_line(arguments, said):
    """What is wrong with the input is said in one line that names it, with a non-zero exit."""
    command = [sys.executable, "-m", "hindmost", "collector", "--http", "none", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_port_in_use_is_one_line(collecting, tmp_path):
    """A second collector on a taken port says so, for gRPC and HTTP alike."""

    async def second(*arguments: str) -> tuple[int, list[str]]:
        command = [sys.executable, "-m", "hindmost", "collector", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=200, check=False
        )
        return done.returncode, done.stderr.splitlines()

    async with collecting(out=str(tmp_path)) as collector:
        taken = collector.addresses
        grpc_taken = second("--listen", taken["grpc"], "--http", "none")
        ended = await asyncio.gather(grpc_taken, second("--listen", "127.0.0.1:0", "--http", taken["http"]))
    for name, (code, said) in zip(("grpc", "http"), ended, strict=True):
        assert (code, len(said)) == (1, 1)
        assert taken[name] in said[0]
