"""Parquet traces of pipeline operations become a graph's operations."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge


def _trace(folder: Path, name: str = "XY") -> Path:
    rows = [
        {"dp_rank": dp, "stage": stage, "rank": 2 * (dp * 2 + stage), "step": step, "optype": "forward-compute"}
        | {"start_ts": 0.5 * stage, "duration": 0.25, "seq_id": 0, "mc": 0, "mb_id": 3}
        for dp in range(2)
        for stage in range(2)
        for step in (10, 20)
    ]
    path = folder / f"trace-{name}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    (folder / f"meta-{name}.yaml").write_text("trial_name: XY\ntp_size: 2\nworld_size: 8\n")
    return path


def test_operations_keep_their_place_in_the_pipeline(tmp_path: Path) -> None:
    """Stage, replica, micro-batch and order survive; a worker is named by its group's first rank."""
    run = load(_trace(tmp_path))
    assert run.job.id == "XY"
    assert run.job.world_size == 8
    assert run.ranks["rank"].tolist() == [0, 2, 4, 6]
    assert run.operations["stage"].tolist() == [0, 0, 1, 1] * 2
    assert set(run.operations["micro_batch"].tolist()) == {3}
    assert any("tensor-parallel group of 2" in note for note in run.notes)


def test_steps_lie_end_to_end_on_one_clock(tmp_path: Path) -> None:
    """The file counts every step from its own begin; the run's clock goes on."""
    run = load(_trace(tmp_path))
    last = run.operations["rank"] == 2
    assert run.operations["start_ns"][last].tolist() == [500_000_000, 1_250_000_000]
    assert (run.operations["duration_ns"] == 250_000_000).all()


def test_two_traces_in_a_folder_are_two_jobs(tmp_path: Path) -> None:
    """They are never mixed: the error asks for one."""
    _trace(tmp_path, "XY")
    _trace(tmp_path, "ZZ")
    with pytest.raises(UsageError, match="name one of them"):
        load(tmp_path)


def test_a_torn_file_is_not_taken_for_anything(tmp_path: Path) -> None:
    """Parquet without its footer cannot be read; the error says what to give."""
    path = _trace(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"trace-XY\.parquet: not a recording; give a run directory"):
        load(path)


def test_a_trace_without_any_compute_is_not_judged(tmp_path: Path) -> None:
    """Sends and receives alone show no rank's work."""
    path = _trace(tmp_path)
    rows = [{**row, "optype": "forward-send"} for row in pq.read_table(path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(UsageError, match="none of its operations is one of forward-compute and backward-compute"):
        load(tmp_path)


def test_the_report_tells_how_many_steps_there_are_and_how_long(tmp_path: Path) -> None:
    """Each from its first operation's start to its last one's end: 0.75 s here."""
    job = judge(load(_trace(tmp_path))).job
    assert job.steps == 2
    assert job.step_ms == pytest.approx({"p50": 750.0, "p99": 750.0, "mean": 750.0})
