"""A run directory is distinguished from a foreign folder."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings import load as hindmost_run
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge


def _run(folder: Path) -> Path:
    (folder / "segments").mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"schema": "hindmost.run/1", "job_id": "j7", "command": "train"}))
    return folder


def test_a_run_directory_is_read_as_one(tmp_path: Path) -> None:
    """Named directly, or as the only folder in what was named, as an archive holds it."""
    _run(tmp_path / "deep" / "run")
    assert load(tmp_path / "deep" / "run").job.id == "j7"
    assert load(tmp_path / "deep").job.id == "j7"


def test_someone_else_s_meta_json_makes_no_run(tmp_path: Path) -> None:
    """Only our own schema counts; a file of the same name is nothing special."""
    (tmp_path / "meta.json").write_text('{"schema": "other/1"}')
    assert hindmost_run.find_run_directory(tmp_path) is None
    with pytest.raises(UsageError, match=r"found 1 of \.json"):
        load(tmp_path)


@pytest.mark.parametrize("slow", [None, 1, 6])
def test_half_of_a_job_s_ranks_do_not_clear_the_others(tmp_path: Path, slow: int | None) -> None:
    """Of 8 ranks 4 are in the directory: none is cleared without the rest, and the slow one is reported."""
    faults = () if slow is None else (Fault("compute", (slow,), 0.3),)
    run = simulate(Scenario(8, 60, faults=faults)).run
    half = {name: chosen(one, one["rank"] < 4) if "rank" in one else one for name, one in run.tables().items()}
    half["ranks"]["world_size"] = np.full(4, 8, np.int32)
    write(replace(run, **half), tmp_path, "run")
    (verdict,) = judge(load(tmp_path)).verdicts
    if slow == 1:
        assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    else:
        assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
        assert verdict.evidence[0].startswith(
            "no rank of the 4 recorded is late, but they may wait for one of them: 4 other ranks are not recorded"
        )


def test_times_that_no_job_has_are_left_out_and_counted(tmp_path: Path) -> None:
    """A step of 146 years, and calls of the year 2116, are an agent's nonsense: the rest is judged as without them."""
    run = simulate(Scenario(4, 60, faults=(Fault("compute", (1,), 0.3),))).run
    steps, calls = ({**one, "start_ns": one["start_ns"].copy()} for one in (run.steps, run.collectives))
    steps["duration_ns"] = np.where(np.arange(len(steps["step"])) == 5, 2**62, steps["duration_ns"])
    calls["start_ns"][[7, 9]] = 2**62, -(2**62)
    write(replace(run, steps=steps, collectives=calls), tmp_path, "run")
    report = judge(load(tmp_path))
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("straggler", (1,))]
    assert (report.job.step_ms["mean"] or 0.0) < 10_000
    assert [note for note in report.notes if "left out" in note] == [
        "rows with times that no job has, a year long or after 2100, are left out: 1 of steps, 2 of collectives"
    ]
