"""A folder without a rank's file, or with a part of it, does not clear or accuse any rank for what is missing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import select
from hindmost_collector.report import csv, text
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.judge import judge

from tests.recordings import unpacked

STEPS = 60
PROFILER = "NCCL profiler CSV (prof.PID.csv)"


def _recorded(folder: Path, layout: str = "dp", size: float = 0.1, tensor: int = 1) -> Path:
    """The traces of 4 ranks of which rank 1 computes longer."""
    faults = (Fault("compute", (1,), size),) if size else ()
    write(simulate(Scenario(4, STEPS, layout=layout, tensor=tensor, faults=faults)).run, folder, "traces")
    return folder


def _csv_of(folder: Path, rank: int) -> Path:
    return sorted(folder.glob("prof.*.csv"), key=lambda path: int(path.name.split(".")[1]))[rank]


def _cut(path: Path, share: float) -> None:
    """Only so much of the beginning of a file."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: max(1, round(share * len(lines)))]))


def _no_steps(folder: Path) -> None:
    for path in folder.glob("steps.*"):
        path.unlink()


def _judged(folder: Path) -> dict[str, Any]:
    return judge(load(folder)).to_dict()


def _text(report: dict[str, Any]) -> str:
    return " ".join(report["verdicts"][0]["evidence"])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3])
def test_a_culprit_without_its_collectives_is_named_by_the_log_of_the_steps(tmp_path: Path, share: float) -> None:
    """A rank whose file is missing, or hardly there, is named, and its steps count all the same."""
    _recorded(tmp_path)
    _cut(_csv_of(tmp_path, 1), share) if share else _csv_of(tmp_path, 1).unlink()
    report = _judged(tmp_path)
    (verdict,) = report["verdicts"]
    assert (verdict["kind"], verdict["ranks"], verdict["cause"]) == ("straggler", [1], "compute")
    (lacks,) = [note for note in report["notes"] if note.startswith(f"{PROFILER}: rank 1's file")]
    assert ("is missing" in lacks) if not share else ("ends at" in lacks and "too little to judge" in lacks)
    assert "Who waits for whom is not known of rank 1: judged by the log of the steps." in report["notes"]


def test_a_rank_without_a_profile_has_the_phases_of_its_log_and_no_zeros(tmp_path: Path) -> None:
    """What was not measured is null, an empty cell and a dash; what the log says stands there."""
    _recorded(tmp_path)
    _csv_of(tmp_path, 3).unlink()
    (tmp_path / "steps.2.jsonl").unlink()  # so that the log alone cannot be judged
    report = _judged(tmp_path)
    row = next(row for row in report["ranks"] if row["rank"] == 3)
    assert row["phases_ms"]["gpu_forward"] > 0
    assert [row[name] for name in ("wait_ms", "transfer_ms", "caused_wait_ms", "share_last")] == [None] * 4
    assert ",,,,," in csv.render(report).splitlines()[4]
    (line,) = [line for line in text.render(report).splitlines() if line.split()[:1] == ["3"]]
    assert " 0.0" not in line
    assert "\N{EN DASH}" in line
    assert report["verdicts"][0]["ranks"] == [1]


def _fixture(folder: Path) -> Path:
    """Four ranks on GPUs of which rank 1 computes longer: their collectives, and nothing else."""
    return unpacked("ddp-slow-compute-rank1", folder, lambda name: "prof." in name)


def test_an_unrecorded_rank_that_the_others_wait_for_is_reported_as_likely(tmp_path: Path) -> None:
    """Only collectives of the others: no rank is cleared, and the report says that they waited together for it."""
    _csv_of(_fixture(tmp_path), 1).unlink()
    report = _judged(tmp_path)
    (verdict,) = report["verdicts"]
    assert (verdict["kind"], verdict["ranks"]) == ("insufficient_data", [])
    assert "wait at once for 21 % of the time, transfers apart: likely for rank 1" in _text(report)
    assert verdict["advice"][0].startswith("add the whole files of rank 1")


def test_a_culprit_is_named_though_a_victim_s_file_is_missing(tmp_path: Path) -> None:
    """That is no reason to name none; the file counts as missing all the same where others know of the rank."""
    _csv_of(_fixture(tmp_path), 2).unlink()
    report = _judged(tmp_path)
    assert [verdict["ranks"] for verdict in report["verdicts"]] == [[1]]
    assert f"{PROFILER}: rank 2's file is missing." in report["notes"]


def test_no_missing_rank_is_cleared(tmp_path: Path) -> None:
    """Among the ranks that are there none is late, and none waits longer than transfers take."""
    _recorded(tmp_path, size=0.0)
    _no_steps(tmp_path)
    _csv_of(tmp_path, 1).unlink()
    report = _judged(tmp_path)
    assert report["verdicts"][0]["kind"] == "insufficient_data"
    assert _text(report) == ("rank 1 is missing from most of the recording others may wait for it")


@pytest.mark.parametrize(("log", "share", "step"), [(False, 0.7, 41), (True, 0.5, 29)], ids=["profiles", "logs alone"])
def test_files_that_end_early_are_judged_as_far_as_all_go(tmp_path: Path, log: bool, share: float, step: int) -> None:
    """A rank whose file was cut is not on time from there on."""
    _recorded(tmp_path)
    _cut(tmp_path / "steps.1.jsonl" if log else _csv_of(tmp_path, 1), share)
    for path in tmp_path.glob("prof.*") if log else ():
        path.unlink()
    report = _judged(tmp_path)
    (verdict,) = report["verdicts"]
    assert (verdict["kind"], verdict["ranks"], verdict["until_step"]) == ("straggler", [1], None)
    name = "step times (steps.RANK.jsonl)" if log else PROFILER
    ends = f"{name}: rank 1's file ends at step {step} of 59: only the part that all ranks have is judged."
    assert ends in report["notes"]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(("share", "kind"), [(0.6, "insufficient_data"), (0.9, "balanced")])
def test_a_part_of_a_job_clears_no_rank_of_the_rest(tmp_path: Path, rank: int, share: float, kind: str) -> None:
    """In what all ranks have none is late; what began after that, such as rank 1's slowness, is unknown."""
    write(simulate(Scenario(4, STEPS, faults=(Fault("compute", (1,), 0.1, onset=56),))).run, tmp_path, "traces")
    _cut(_csv_of(tmp_path, rank), share)
    report = _judged(tmp_path)
    (verdict,) = report["verdicts"]
    assert (verdict["kind"], verdict["ranks"]) == (kind, [])
    assert ("only 60 % of the job is in all files" in _text(report)) == (kind != "balanced")


def test_a_missing_log_is_reported_and_leaves_the_verdict(tmp_path: Path) -> None:
    """Collectives of all ranks name the culprit; only its cause is not known."""
    _recorded(tmp_path)
    (tmp_path / "steps.1.jsonl").unlink()
    report = _judged(tmp_path)
    assert report["verdicts"][0]["ranks"] == [1]
    assert "step times (steps.RANK.jsonl): rank 1's file is missing." in report["notes"]


def test_without_a_rank_of_a_tensor_group_no_link_and_no_victim_is_blamed(tmp_path: Path) -> None:
    """Its peer waits for it, is late elsewhere, and looks like the culprit or as if its link were slow."""
    _recorded(tmp_path, layout="tp_dp", tensor=2)
    _csv_of(tmp_path, 1).unlink()
    report = _judged(tmp_path)
    assert [verdict["kind"] for verdict in report["verdicts"]] == ["insufficient_data"]
    assert "likely for a missing rank" in _text(report)
    assert f"{PROFILER}: the files of 1 of 4 ranks are missing (ranks unknown)." in report["notes"]


def test_files_that_are_whole_say_nothing_of_missing_ones(tmp_path: Path) -> None:
    """No note, and all collectives count."""
    run = load(_recorded(tmp_path))
    assert run.unrecorded is None
    assert not [note for note in run.notes if "file" in note]


def test_few_steps_without_a_rank_are_reported_with_it(tmp_path: Path) -> None:
    """Who came last among the ranks that are there may have waited for the one that is not."""
    write(simulate(Scenario(4, 8)).run, tmp_path, "traces")
    _no_steps(tmp_path)
    _csv_of(tmp_path, 1).unlink()
    (verdict,) = _judged(tmp_path)["verdicts"]
    assert verdict["kind"] == "insufficient_data"
    assert verdict["evidence"][0].startswith("rank 1 is missing from most of the recording")


def test_a_culprit_without_a_log_of_its_steps_is_named_by_the_collectives(tmp_path: Path) -> None:
    """In which step operations were enqueued the other ranks know."""
    folder = unpacked("inspector-ddp-slow-rank0", tmp_path)
    (folder / "steps.0.jsonl").unlink()
    report = _judged(folder)
    assert [(verdict["kind"], verdict["ranks"]) for verdict in report["verdicts"]] == [("straggler", [0])]
    assert report["verdicts"][0]["cost_ms_per_step"] == pytest.approx(3.6, rel=0.2)


def test_steps_alone_clear_no_rank_without_any(tmp_path: Path) -> None:
    """The others are alike, and where the log of one is missing it is unknown whether they wait for it."""
    _recorded(tmp_path)
    for path in tmp_path.glob("prof.*"):
        path.unlink()
    run = load(tmp_path)
    found = judge(replace(run, steps=select(run.steps, run.steps["rank"] != 1))).to_dict()
    assert [verdict["kind"] for verdict in found["verdicts"]] == ["insufficient_data"]
    assert "the steps of rank 1 are not recorded" in _text(found)
    assert "of rank 1" in found["verdicts"][0]["advice"][0]
