"""What of a run may be read: an older one, one of wrong clocks; what may not ends in one line that names it."""

import gc
import json
import os
import time
from pathlib import Path

import hindmost_collector
import numpy as np
import pyarrow.parquet as pq
import pytest
from hindmost.errors import HindmostError
from hindmost_cli import main
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import run_directory
from hindmost_collector.store import meta, schema
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.compaction import Retention, Upkeep
from hindmost_collector.store.parquet.run_directory import read_run, run_of
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_collector.store.schema import STORED, arrow_schema, to_numpy

from tests.collector.stored import rows_of
from tests.commands import Says
from tests.recordings import unpacked


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
    run: Path, what: str, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    """A report without a table, or a part of one, would be another job's: the message says how to read all of it."""
    (refused,) = run.glob(what)
    _refuse(monkeypatch, refused)
    captured = says(2, ["report", str(run)])
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    remedy = "change its permissions, or copy the files that you may read"
    assert captured.err == f"hindmost report: {refused}: Permission denied: {remedy}\n"


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


@pytest.mark.parametrize(("content", "complaint"), WRONG, ids=range(len(WRONG)))
def test_what_no_collector_wrote_is_left_out_and_named(run: Path, content: str, complaint: str) -> None:
    """Of facts that no job can have one note says which they are, and the run is judged without them."""
    (run / "meta.json").write_text(content)
    (note,) = (note for note in read_run(run).notes if "meta.json" in note)
    assert note.startswith(f"meta.json {complaint}")
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
    message = f"{run / 'meta.json'} was written by a newer hindmost (schema 2): upgrade this one to read it"
    assert capsys.readouterr().err == f"hindmost report: {message}\n"


@pytest.mark.parametrize("content", ["[1]", "[" * 100_000, "{"])
def test_a_collector_writes_over_what_is_damaged(tmp_path: Path, content: str) -> None:
    """A job that starts again next to a useless meta.json has one of its own."""
    (tmp_path / "meta.json").write_text(content)
    store = ParquetStore(tmp_path, single=True)
    store.write_meta("r", {"job_id": "r"})
    store.close()
    assert json.loads((tmp_path / "meta.json").read_bytes()) == {"schema": "hindmost.run/1", "job_id": "r"}


@pytest.mark.parametrize(
    "found", [b'{"site": "north", "schema": "hindmost.run/2", "world_size": "many"}', b"{", b"[]", None]
)
def test_whatever_others_wrote_is_kept_and_stops_no_run(found: bytes | None) -> None:
    """A newer hindmost's, a torn one or none: what is known now is written, unknown facts are not."""
    kept = {"site": "north", "world_size": "many"} if found and b"site" in found else {}
    written = json.loads(meta.merged(found, {"exit_code": 0, "launcher": None}))
    assert written == {**kept, "schema": "hindmost.run/1", "exit_code": 0}


def test_of_the_environment_only_what_tunes_is_kept() -> None:
    """Neither secrets nor settings of other programs."""
    tunes = {"OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0,1"}
    others = {"HOME": "/root", "NCCL_API_KEY": "x", "TORCH_HUB_TOKEN": "x", "OMP": "1", "HINDMOST_JOB_ID": "a"}
    assert meta.tuning({**others, **tunes}) == dict(sorted(tunes.items()))


def test_a_run_says_what_it_was_started_with() -> None:
    """A value that is no text is none of a variable's."""
    facts = {"launcher": "torchrun", "version": "1.2", "environment": {"OMP_NUM_THREADS": "4", "NCCL_ALGO": 1}}
    assert dict(meta.settings(facts)) == {"launcher": "torchrun", "hindmost": "1.2", "OMP_NUM_THREADS": "4"}


END = ": times here are the collector's, and differ from that node's logs"


@pytest.mark.parametrize(
    ("offsets", "note"),
    [
        ([0.2, 0.3], None),
        ([3600.0, 3600.1], "is 3,600 s behind"),
        ([-3600.0, -3600.1], "is 3,600 s ahead"),
        ([0.0, 3600.0], "was set by 3,600 s meanwhile and is 3,600 s behind"),
        ([-3600.0, np.nan, 0.0], "was set by 3,600 s meanwhile"),
    ],
)
def test_a_wrong_wall_clock_is_noted(offsets: list[float], note: str | None) -> None:
    """By an hour, in both directions, and where NTP sets it in the middle of a job."""
    tables = {name: to_numpy(name, arrow_schema(name).empty_table()) for name in STORED}
    samples = [("n1", "hindmost_agent_clock_offset_seconds", "{}", at, one) for at, one in enumerate(offsets)]
    samples += [("n0", "hindmost_agent_clock_offset_seconds", "{}", 0, 0.0), ("n0", "hindmost_node_load", "{}", 0, 9e9)]
    tables["metrics"] = from_rows("metrics", samples)
    notes = run_of(tables, {}, "j", []).notes
    assert notes == ((f"the clock of n1 {note}{END}",) if note else ())


@pytest.fixture
def older(tmp_path):
    """The older run, as the one job of a store."""
    return unpacked("ddp-observed-clean", tmp_path)


def test_what_came_later_is_reported(older):
    """Every column that a table has got since is listed as such: else queries over older runs would not know it."""
    for table in (one.name for one in (older / "segments").iterdir()):
        (first, *_) = sorted((older / "segments" / table).glob("*.parquet"))
        assert set(schema.FILED[table]) - set(pq.read_schema(first).names) == set(schema.ADDED.get(table, ())), table


def test_a_column_that_came_later_is_not_measured(older):
    """SQL and pandas see -1 in it, as for any other unmeasured value, alone and together with newer segments."""
    assert set(hindmost_collector.open(older).steps("negotiation_ns")["negotiation_ns"].to_pylist()) == {-1}
    ParquetStore(older, single=True).write({("j", "steps"): [rows_of("steps", 7)]}, {})
    run = hindmost_collector.open(older)
    query = "select count(*) as rows, count(negotiation_ns) as known, max(negotiation_ns) as most from steps"
    (found,) = run.sql(query).to_pylist()
    assert found == {"rows": 1201, "known": 1201, "most": 7}
    assert run.steps().column_names == ["job", *schema.FILED["steps"]]


def test_compaction_migrates_it(older):
    """Merged, all its segments are of today's schema, and no row of it has changed."""
    before = read_run(older).tables()
    store = ParquetStore(older, single=True)
    upkeep = Upkeep(store, Retention(), now=lambda: time.time() + 2 * 86400)
    while upkeep.compact():
        pass
    store.close()
    for table in (one.name for one in (older / "segments").iterdir()):
        for path in (older / "segments" / table).glob("*.parquet"):
            found = pq.read_schema(path)
            assert found.names == list(schema.FILED[table])
            assert found.metadata[schema.VERSION_KEY] == str(schema.VERSION).encode()
    after = read_run(older).tables()
    for table, columns in before.items():
        rows = [
            sorted(zip(*(kept[name].tolist() for name in columns), strict=True)) for kept in (columns, after[table])
        ]
        assert repr(rows[0]) == repr(rows[1]), table  # as text: a NaN is unlike itself


def test_writing_down_what_a_run_is_leaves_nothing_for_the_garbage_collector() -> None:
    """A collector does so several times a job, for months."""
    gc.collect()
    gc.disable()
    try:
        content = None
        for number in range(20):
            content = meta.merged(content, {"job_id": f"job {number}", "nodes": ["a", "b"], "entered": True})
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert json.loads(content or b"") == {
        "schema": "hindmost.run/1",
        "job_id": "job 19",
        "nodes": ["a", "b"],
        "entered": True,
    }
