"""Lines that are in a file twice, and phases that took no time in some steps."""

import json
from pathlib import Path

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.judge import judge


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The traces of 4 ranks of which rank 2 computes longer."""
    write(simulate(Scenario(4, 40, faults=(Fault("compute", (2,), 0.2),))).run, tmp_path / "traces", "traces")
    return tmp_path / "traces"


@pytest.mark.parametrize("every", [7, 1])
def test_a_line_that_is_there_twice_counts_once(folder: Path, every: int) -> None:
    """Whether of a few lines or of all: an operation that seems to be run twice would part the ranks."""
    wanted = judge(load(folder)).to_dict()["verdicts"]
    for path in (*folder.glob("prof.*"), *folder.glob("steps.*")):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line * (2 if at % every == 0 else 1) for at, line in enumerate(lines)))
    assert judge(load(folder)).to_dict()["verdicts"] == wanted


def _set(path: Path, steps: list[int], **values: float) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for at in steps:
        rows[at] |= values
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_phase_that_took_no_time_in_a_few_steps_was_not_measured_there(folder: Path) -> None:
    """An optimizer that most steps do without takes none in those."""
    _set(folder / "steps.0.jsonl", [7, 20], fwd_ms=0.0)
    _set(folder / "steps.0.jsonl", [at for at in range(40) if at % 4], opt_ms=0.0)
    steps = load(folder).steps
    mine = {name: steps[name][steps["rank"] == 0] for name in ("gpu_forward_ns", "gpu_optimizer_ns")}
    assert np.flatnonzero(mine["gpu_forward_ns"] < 0).tolist() == [7, 20]
    assert np.count_nonzero(mine["gpu_optimizer_ns"] == 0) == 30


def test_phases_missing_in_a_few_steps_leave_the_cause(folder: Path) -> None:
    """A rank's longer computing is read from the steps that say how long it computed."""
    wanted = [(verdict.kind, verdict.ranks, verdict.cause) for verdict in judge(load(folder)).verdicts]
    for path in folder.glob("steps.*"):
        _set(path, [5, 13, 30], fwd_ms=0.0, bwd_ms=0.0)
    assert [(verdict.kind, verdict.ranks, verdict.cause) for verdict in judge(load(folder)).verdicts] == wanted
