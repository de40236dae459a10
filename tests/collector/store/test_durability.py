"""What was acknowledged survives: real collector processes, killed."""

import asyncio
import errno
import json
import subprocess
import sys

import pytest
from hindmost.errors import HindmostError
from hindmost_collector.store import schema
from hindmost_collector.store.parquet import journal, segments
from hindmost_collector.store.parquet.journal import Journal
from hindmost_collector.store.parquet.store import ParquetStore

pytestmark = pytest.mark.torture


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


def test_held_collector_ends_with_its_stdin(collector_process, fake_agent, tmp_path):
    """A held collector stops its agents, records the exit code and leaves when stdin ends."""

    async def scenario(process):
        agent = fake_agent(process.addresses["grpc"])
        await agent.connect()
        await agent.send(agent.batch(0))
        process.popen.stdin.write('{"exit_code": 3, "interrupted_by": "SIGTERM"}\n')
        process.popen.stdin.close()
        while not (await agent.read()).HasField("stop"):
            pass
        from hindmost_proto import telemetry_pb2 as wire

        await agent.stream.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="stopped")))
        await agent.until_acked(1)
        await agent.close()

    process = collector_process(
        "--out", tmp_path, "--job-id", "j", "--command", "x.py", "--exit-when-stdin-closes", "--set=min_effect=0.02"
    )
    assert process.addresses["http"] is None
    asyncio.run(scenario(process))
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
