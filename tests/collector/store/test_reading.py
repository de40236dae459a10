"""Reading with Arrow and pandas: in another process while a store writes and compacts, and as documented."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import hindmost_cli
import hindmost_collector
import numpy as np
import pyarrow as pa
import pytest
from hindmost.errors import UsageError
from hindmost_collector.report.verdict_lines import with_rendered
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import run_directory, write
from hindmost_collector.store import partial_read, schema
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.compaction import Retention, Upkeep
from hindmost_collector.store.parquet.run_directory import read_run
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_collector.store.schema import arrow_schema, to_numpy
from hindmost_judge.encoding import memory
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

from tests.collector import stored

DOCS = Path(__file__).parents[3] / "docs"
FLUSHES = 20  # one more than a compaction wants

#: Reads until everything is reported as written, and once more; prints how many rows and different ones it saw.
READER = """
import json, sys
from pathlib import Path
import hindmost_collector, pandas
from hindmost_collector.store.parquet.run_directory import read_run

folder, done = Path(sys.argv[1]), Path(sys.argv[2])
seen, last = [], False
print("ready", flush=True)
while True:
    last = done.exists()
    if sys.argv[3] == "tables":
        steps = hindmost_collector.open(folder).steps().to_pandas()
    else:
        steps = pandas.DataFrame(read_run(folder).steps)
    seen.append((len(steps), len(steps.drop_duplicates(["rank", "step"]))))
    if last:
        break
print(json.dumps(seen))
"""


def rows(step):
    """A step of four ranks as a stored table."""
    return stored.rows_of("steps", step, rank=range(4))


@pytest.mark.parametrize("how", ["tables", "report"])
def test_another_process_reads_while_it_is_written(tmp_path, how):
    """A reader, with SQL or as a report does, sees more and more rows, each once, while segments come and merge."""
    store, done = ParquetStore(tmp_path / "run", single=True), tmp_path / "done"
    store.write({("j", "steps"): [rows(0)]}, {})
    command = [sys.executable, "-c", READER, str(tmp_path / "run"), str(done), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout
        assert reader.stdout.readline() == "ready\n"
        upkeep = Upkeep(store, Retention())
        for step in range(1, FLUSHES):
            store.write({("j", "steps"): [rows(step)]}, {})
            upkeep.compact()
        done.touch()
        seen = json.loads(reader.stdout.readline())
    store.close()
    assert seen == sorted(seen)
    assert all(count == different for count, different in seen)
    assert seen[-1] == [4 * FLUSHES, 4 * FLUSHES]


def test_the_documented_lines_run(tmp_path):
    """The lines of Python in the documentation of a run directory do what they say."""
    stored.write(tmp_path, {("j", "steps"): [rows(7)]})
    text = (DOCS / "reference/run-directory.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "run." in block]
    assert len(blocks) == 2
    code = "\n".join(blocks).replace('"runs/42"', repr(str(tmp_path)))
    variables = {}
    exec(code, variables)  # noqa: S102 - our own documentation
    assert variables["steps"].to_pandas().groupby("rank").duration_ns.median().tolist() == [7.0] * 4


def test_tables_are_arrow_with_the_job(tmp_path):
    """Each table is an Arrow table with the columns of the model and the job; one without rows has them too."""
    stored.write(tmp_path, {("a", "steps"): [rows(1)], ("b", "steps"): [rows(2)]}, single=False)
    recording = hindmost_collector.open(tmp_path)
    steps = recording.steps()
    assert set(steps.column_names) == {"job", *schema.STORED["steps"]}
    assert sorted(set(zip(steps["job"].to_pylist(), steps["step"].to_pylist(), strict=True))) == [("a", 1), ("b", 2)]
    assert recording.steps("step", "job").to_pylist() == [{"step": 1, "job": "a"}] * 4 + [{"step": 2, "job": "b"}] * 4
    with pytest.raises(UsageError, match="steps has no column 'stop'; columns are job, rank"):
        recording.steps("stop")
    for name in ("collectives", "metrics", "ranks"):
        empty = getattr(recording, name)()
        assert (len(empty), set(empty.column_names)) == (0, {"job", *schema.STORED[name]})


def test_phases_are_a_row_each_and_none_where_they_were_not_measured(tmp_path):
    """A step's input and forward, in long form; what is -1 in its row has no row."""
    step = stored.rows_of("steps", rank=range(4), input_ns=[5, 5, -1, 5], forward_ns=7, start_ns=7, duration_ns=7)
    stored.write(tmp_path, {("j", "steps"): [step]})
    found = hindmost_collector.open(tmp_path).phases().to_pandas()
    assert sorted(zip(found.phase, found["rank"], found.duration_ns, strict=True)) == sorted(
        [("forward", rank, 7) for rank in range(4)] + [("input", rank, 5) for rank in (0, 1, 3)]
    )


def test_verdicts_of_a_store_are_those_of_its_reports(tmp_path):
    """A row each with its job; a job without a report has none."""
    store = ParquetStore(tmp_path, single=False)
    store.write({("a", "steps"): [rows(1)], ("b", "steps"): [rows(2)]}, {})
    store.write_file(
        "a", "report.json", json.dumps({"verdicts": [{"kind": "straggler", "ranks": [2], "cost_ratio": 0.25}]}).encode()
    )
    store.close()
    (one,) = hindmost_collector.open(tmp_path).verdicts().to_pylist()
    assert (one["job"], one["kind"], one["ranks"], one["cost_ratio"], one["cause"]) == (
        "a",
        "straggler",
        [2],
        0.25,
        None,
    )


def test_the_example_in_the_help_answers_for_ranks_that_mark_no_steps(tmp_path, capsys, says):
    """Ranks of MPI programs mark none: the help's query has rows all the same, and stderr stays empty."""
    with pytest.raises(SystemExit):
        hindmost_cli.main(["query", "--help"])
    (example,) = re.findall(r'hindmost query \S+ "(.*)"', capsys.readouterr().out)
    run_directory([simulate(Scenario(2, 12)).run], tmp_path)
    shutil.rmtree(tmp_path / "segments/steps")
    said = says(0, ["query", str(tmp_path), example, "--format", "csv"])
    assert {row.split(",")[0] for row in said.out.splitlines()[1:]} == {"0", "1"}
    assert said.err == ""


@pytest.mark.parametrize(("framework", "python"), [("mpi", False), ("nccl", False), ("torch", True)])
def test_only_python_is_offered_a_mark_for_steps(tmp_path, says, framework, python):
    """A program without Python is sent to the table that its calls are in."""
    run = simulate(Scenario(2, 12)).run
    run_directory([replace(run, ranks={**run.ranks, "framework": np.full(2, framework)})], tmp_path)
    shutil.rmtree(tmp_path / "segments/steps")
    said = says(0, ["query", str(tmp_path), "select count(*) from steps", "--format", "csv"]).err
    assert ("hindmost.step()" in said) == python
    assert ("query `collectives`" in said) == (not python)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select count(*) from steps", 1),
        ("select count(*) from ranks, steps", 1),
        ("select 1 as steps from ranks", 0),
        ("select 1 from ranks where 'from steps' != ''", 0),
    ],
)
def test_an_unrecorded_table_is_reported(tmp_path, says, query, message):
    """Of a run whose ranks marked no steps a query answers, and one line says why, and where steps are found then."""
    run_directory([simulate(Scenario(2, 12)).run], tmp_path)
    shutil.rmtree(tmp_path / "segments/steps")
    said = says(0, ["query", str(tmp_path), query, "--format", "csv"])
    assert said.out.splitlines()[1:] == ["0" if message else "1"] * (2 - message)
    lines = said.err.splitlines()
    assert [line.startswith("hindmost query: steps is empty: no rank marked steps") for line in lines] == [
        True
    ] * message


def test_each_rank_has_one_row_though_it_says_later_what_trains_in_it(tmp_path: Path) -> None:
    """The newest row of a process counts, in whatever segment; a process that a rank was restarted as has its own."""
    for framework, pid in (("", 7), ("torch", 7), ("mpi4py", 8)):
        said = stored.rows_of("ranks", 0, node="n", gpu_uuid="", pid=pid, start_ns=pid, framework=framework)
        stored.write(tmp_path / "run", {("j", "ranks"): [said]})
    found = hindmost_collector.open(tmp_path / "run").ranks("pid", "framework").to_pylist()
    assert found == [{"pid": 7, "framework": "torch"}, {"pid": 8, "framework": "mpi4py"}]


STEPS = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of 4 ranks, rank 2 slower by 10 %."""
    run = simulate(Scenario(4, STEPS, faults=(Fault("compute", (2,), 0.10),))).run
    write(run, tmp_path / "run", "run")
    return tmp_path / "run"


def test_a_small_recording_is_read_whole(folder: Path) -> None:
    """Nothing is left out, and nothing said."""
    assert partial_read.plan(folder / "segments") is None
    assert read_run(folder).job.skipped_ns is None


def test_a_large_one_is_read_in_periods(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the calls, alike on all ranks; the report counts all steps, and says what it rests on."""
    whole = read_run(folder)
    monkeypatch.setitem(partial_read.MOST, "collectives", len(whole.collectives["rank"]) // 4)
    part = read_run(folder)
    calls = np.bincount(part.collectives["rank"])
    assert 0.2 < calls.sum() / len(whole.collectives["rank"]) < 0.3
    assert calls.max() - calls.min() <= 2 * partial_read.PERIODS
    report = judge(part)
    assert report.job.steps == STEPS
    assert report.job.step_ms["p50"] == pytest.approx(judge(whole).job.step_ms["p50"], rel=0.01)
    assert report.what_if.step_ms == pytest.approx(judge(whole).what_if.step_ms, rel=0.05)
    assert [(verdict.kind, verdict.ranks, verdict.cause) for verdict in report.verdicts] == [
        ("straggler", (2,), "compute")
    ]
    assert any(note.startswith("to stay in memory") for note in report.notes)


def test_a_segment_with_a_damaged_name_is_left_out(folder: Path) -> None:
    """A column's name in a footer that is no UTF-8 is a torn footer."""
    (steps,) = (folder / "segments/steps").glob("*.parquet")
    steps.write_bytes(steps.read_bytes().replace(b"duration_ns", b"\x8curation_ns"))
    run = read_run(folder)
    assert (len(run.steps["step"]), len(run.collectives["seq"]) > 0) == (0, True)
    assert any(steps.name in note for note in run.notes)


def samples(names: tuple[str, ...], seconds: int) -> pa.Table:
    """A sample a second of each of these metrics of one node."""
    many = len(names) * seconds
    words = {"node": ["node-of-a-long-name"] * many, "name": list(names) * seconds, "labels": ['{"rank":"1"}'] * many}
    columns = [pa.array(word).dictionary_encode() for word in words.values()]
    times = np.repeat(np.arange(seconds) * 10**9, len(names))
    return pa.Table.from_arrays([*columns, pa.array(times), pa.array(times / 1e9)], schema=arrow_schema("metrics"))


def test_of_many_samples_those_are_read_that_causes_are_read_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of slow steps has few steps and calls, and samples without end: all steps, and some seconds' samples."""
    steps = len(read_run(folder).steps["rank"])
    names = ("hindmost_process_cpu_seconds_total", "hindmost_node_memory_bytes")
    (folder / "segments/metrics").mkdir(exist_ok=True)
    segments.write("metrics", [samples(names, 600)], folder / "segments/metrics/20260101-0000000009-0.parquet")
    every = len(read_run(folder).metrics["name"]) // 300
    assert every >= 1200 // 300
    monkeypatch.setattr(partial_read, "ALL_SAMPLES", 1000)
    monkeypatch.setattr(partial_read, "SAMPLES", 300)
    run = read_run(folder)
    added = np.flatnonzero(run.metrics["name"] == names[0])
    assert run.metrics["time_ns"][added].tolist() == list(range(0, 600 * 10**9, every * 10**9))
    assert names[1] not in run.metrics["name"].tolist()
    assert (len(run.steps["rank"]), run.job.skipped_ns) == (steps, None)


def test_what_is_read_takes_the_memory_of_what_differs() -> None:
    """Long words that repeat are pointed at; a column of one value is that value."""
    read = to_numpy("metrics", samples(("hindmost_process_cpu_seconds_total", "hindmost_gpu_sm_clock_hertz"), 600))
    assert sum(memory(column) for column in read.values()) < 1200 * 25
    assert read["name"][:2].tolist() == ["hindmost_process_cpu_seconds_total", "hindmost_gpu_sm_clock_hertz"]


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(0, 5, True), (15, 18, False), (15, 21, True), (95, 96, False), (0, 200, True)]
)
def test_row_groups_without_any_kept_row_are_not_read(low: int, high: int, kept: bool) -> None:
    """The first 10 ns of every 20 are kept."""
    part = partial_read.PartialRead(first=0, every_ns=20, kept_ns=10, steps=None, sample_every=1)
    assert part.covers("steps", low, high) is kept
    assert kept == bool(part.keeps("steps", np.arange(low, high + 1)).any())


def test_of_a_very_large_job_steps_are_read_where_collectives_would_be_too_few(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of ranks: collectives of ten steps judge nothing, phases of a hundred do; the note says both."""
    whole = read_run(folder)
    monkeypatch.setitem(partial_read.MOST, "collectives", len(whole.collectives["rank"]) * 10 // STEPS)
    monkeypatch.setitem(partial_read.MOST, "steps", len(whole.steps["rank"]) // 2)
    part = read_run(folder)
    assert len(np.unique(part.steps["step"])) == pytest.approx(partial_read.OF_STEPS * STEPS / 2, rel=0.2)
    assert len(part.collectives["rank"]) < len(whole.collectives["rank"]) * 10 / STEPS
    report = judge(part)
    assert [(verdict.kind, verdict.ranks, verdict.cause) for verdict in report.verdicts] == [
        ("straggler", (2,), "compute")
    ]
    assert report.job.steps == STEPS
    assert any("s of collectives) were read" in note for note in report.notes)


def partly(folder: Path, faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A quarter of a run of 800 steps, read in periods."""
    write(simulate(Scenario(4, 800, faults=faults)).run, folder, "run")
    calls = len(read_run(folder).collectives["rank"])
    monkeypatch.setitem(partial_read.MOST, "collectives", calls // 4)
    return read_run(folder)


def test_an_unread_begin_and_end_are_given_as_the_steps_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault begins and ends between two periods: no step is said to be where it did."""
    onset, end = 300, 500
    run = partly(tmp_path / "run", (Fault("compute", (2,), 0.15, onset=onset, end=end),), monkeypatch)
    read = set(run.steps["step"].tolist())
    assert not {onset, end} & read  # else the test shows nothing
    (one,) = judge(run).verdicts
    ranges = [tuple(map(int, found)) for found in re.findall(r"between steps (\d+) and (\d+)", " ".join(one.evidence))]
    assert one.until_step is not None
    assert [low < true <= high for (low, high), true in zip(ranges, (onset, end), strict=True)] == [True, True]
    assert one.since_step == ranges[0][1]  # the first step that was seen


def test_a_begin_that_was_read_is_exact_to_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the steps on either side were read nothing is unsure."""
    (one,) = judge(partly(tmp_path / "run", (Fault("compute", (2,), 0.15, onset=230),), monkeypatch)).verdicts
    assert one.since_step == pytest.approx(230, abs=1)
    assert not [line for line in one.evidence if "it began" in line]


def test_what_was_not_read_is_not_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part in which all is even says which share of the steps it is, and never that nothing is to be done."""
    report = judge(partly(tmp_path / "run", (), monkeypatch))
    (shown,) = with_rendered(report.to_dict())["rendered"]
    (share,) = re.findall(r"of 800 steps \((\d+) %\) were read and judged; the others may differ", shown["why"][0])
    assert int(share) == pytest.approx(25, abs=3)
