"""What of a run may not be read, and a ``meta.json`` that no collector wrote: each ends in one line that names it."""

import json
import os
from pathlib import Path

import hindmost_collector
import pytest
from hindmost.errors import HindmostError
from hindmost_cli import main
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import run_directory
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.store import ParquetStore, read_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a small run."""
    run_directory([simulate(Scenario(2, 12)).run], tmp_path / "r")
    return tmp_path / "r"


def _refuse(monkeypatch: pytest.MonkeyPatch, refused: Path) -> None:
    """Have the system refuse a segment, or to list a folder, as it would for a user other than root."""
    scan, file = os.scandir, segments.pq.ParquetFile

    def scandir(path: object) -> object:
        if str(path) == str(refused):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)  # type: ignore[call-overload]

    def opened(path: object, **options: object) -> object:
        if str(path) == str(refused):
            raise PermissionError(13, f"Failed to open local file '{path}'")
        return file(path, **options)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(segments.pq, "ParquetFile", opened)


@pytest.mark.parametrize("what", ["segments/steps", "segments/collectives/*.parquet"])
def test_what_may_not_be_read_is_named_and_not_taken_for_nothing(
    run: Path, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report without a table, or a part of one, would be another job's: the message says how to read all of it."""
    (refused,) = run.glob(what)
    _refuse(monkeypatch, refused)
    assert main(["report", str(run)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    remedy = "change its permissions, or copy the files that you may read"
    assert told.err == f"hindmost report: {refused}: Permission denied: {remedy}\n"


def test_a_query_of_a_table_that_may_not_be_read_is_not_answered(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows would be a wrong answer."""
    _refuse(monkeypatch, run / "segments/steps")
    recording = hindmost_collector.open(run)
    with pytest.raises(PermissionError, match="segments/steps"):
        recording.sql("select count(*) from steps")
    assert recording.sql("select count(*) as n from ranks")["n"].to_pylist() == [2]


WRONG = [
    ('{"schema": "hindmost.run/1", "exit_code": "no"}', "says of exit_code what no job has: left out"),
    ('{"schema": "hindmost.run/1", "command": 5}', "says of command what no job has: left out"),
    (
        '{"schema": "hindmost.run/1", "world_size": [4], "started_ns": 1e300, "ended_ns": -1}',
        "says of ended_ns, started",
    ),
    ('{"schema": "hindmost.run/1", "exit_code": true, "thresholds": [1]}', "says of exit_code, thresholds what no job"),
    ('{"schema": "hindmost.run/1", "job_id": {}, "nodes": 1, "interrupted_by": 9}', "says of interrupted_by, job_id,"),
    ('{"schema": 2, "command": "train"}', "is no hindmost run's, by its schema: command and exit code are unknown"),
    ('{"schema": "other/1"}', "is no hindmost run's, by its schema: command and exit code are unknown"),
    ("[1, 2]", "is torn: command and exit code are unknown"),
    ("[" * 100_000, "is torn: command and exit code are unknown"),
    (" " * (17 << 20) + "{}", "is torn: command and exit code are unknown"),
]


@pytest.mark.parametrize(("content", "told"), WRONG, ids=range(len(WRONG)))
def test_what_no_collector_wrote_is_left_out_and_named(run: Path, content: str, told: str) -> None:
    """Of facts that no job can have one note says which they are, and the run is judged without them."""
    (run / "meta.json").write_text(content)
    (note,) = (note for note in read_run(run).notes if "meta.json" in note)
    assert note.startswith(f"meta.json {told}")
    assert main(["report", str(run)]) == 0
    recording = hindmost_collector.open(run)
    assert recording.sql("select distinct job from steps")["job"].to_pylist() == ["r"]
    assert "exit_code" not in recording.meta


def test_a_newer_hindmost_s_run_is_not_judged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its facts mean is not known: one line names the file and the remedy, as for a newer segment."""
    (run / "meta.json").write_text('{"schema": "hindmost.run/2", "job_id": "r"}')
    with pytest.raises(HindmostError, match="newer hindmost"):
        read_run(run)
    assert main(["report", str(run)]) == 1
    told = f"{run / 'meta.json'} was written by a newer hindmost (schema 2): upgrade this one to read it"
    assert capsys.readouterr().err == f"hindmost report: {told}\n"


@pytest.mark.parametrize("content", ["[1]", "[" * 100_000, "{"])
def test_a_collector_writes_over_what_is_damaged(tmp_path: Path, content: str) -> None:
    """A job that starts again next to a useless meta.json has one of its own."""
    (tmp_path / "meta.json").write_text(content)
    store = ParquetStore(tmp_path, single=True)
    store.write_meta("r", {"job_id": "r"})
    store.close()
    assert json.loads((tmp_path / "meta.json").read_bytes()) == {"schema": "hindmost.run/1", "job_id": "r"}
