"""A recording too large for memory is read in periods, the same on every rank, and judged as the whole would be."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hindmost_collector.report.verdict_lines import with_rendered
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_collector.store import partial_read
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.run_directory import read_run
from hindmost_collector.store.schema import arrow_schema, to_numpy
from hindmost_judge.encoding import memory
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

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
