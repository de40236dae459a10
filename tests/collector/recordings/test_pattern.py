"""NCCL Inspector's logs miss operations: the numbers of those that they have tell the steps all the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge

from tests.recordings import unpacked

RANKS, STEPS, PLACES = 4, 60, 12
STEP_US = 30_000
WRITTEN_US = 1_795_225_915_000_000


def test_logs_alone_that_missed_some_name_the_slow_rank(tmp_path: Path) -> None:
    """Real training: 131 of 4,740 operations are missing, and rank 0 makes the step 11 % longer."""
    folder = unpacked("inspector-ddp-slow-rank0", tmp_path, lambda name: name.endswith(".log"))
    report = judge(load(folder)).to_dict()
    (verdict,) = report["verdicts"]
    assert (verdict["kind"], verdict["ranks"], verdict["cause"]) == ("straggler", [0], "unknown")
    assert report["what_if"]["slowdown"] == pytest.approx(1.11, abs=0.02)
    assert report["job"]["step_ms"]["mean"] == pytest.approx(41.6, rel=0.1)


def _line(rank: int, number: int, size: int, took: float, at: int) -> str:
    header = {"id": "0x7", "rank": rank, "n_ranks": RANKS}
    metadata = {"dump_timestamp_us": WRITTEN_US + at, "hostname": "n", "pid": 40 + rank}
    perf: dict[str, Any] = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size}
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": {**perf, "coll_exec_time_us": took}}) + "\n"


def _logs(folder: Path, *, late_us: float, since: int = 0, missing: float = 0.05) -> Path:
    """Terse logs of a job in which the others wait so long for rank 2 at one place of each step, all alike missing."""
    rng = np.random.default_rng(5)
    lost = rng.random(STEPS * PLACES) < missing
    for rank in range(RANKS):
        lines = []
        for number in np.flatnonzero(~lost).tolist():
            step, place = divmod(number, PLACES)
            waits = late_us if rank != 2 and place == 7 and step >= since else 0.0
            took = 200 + waits + 5 * rng.random()
            lines.append(_line(rank, number, 1024 * (1 + place), took, number * STEP_US // PLACES))
        (folder / f"n-pid{40 + rank}.log").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("since", [0, 45])
def test_who_is_late_in_a_part_of_the_steps_is_named(tmp_path: Path, since: int) -> None:
    """A step begins where ranks come furthest apart, on the mean: what is missing then moves no place before it."""
    run = load(_logs(tmp_path, late_us=4000, since=since))
    known = run.collectives["step"] >= 0
    assert known.mean() > 0.9
    apart = (run.collectives["seq"] - 7) // PLACES - run.collectives["step"]
    assert len(np.unique(apart[known])) == 1
    report = judge(run).to_dict()
    assert [(verdict["kind"], verdict["ranks"]) for verdict in report["verdicts"]] == [("straggler", [2])]
    assert report["job"]["step_ms"]["mean"] == pytest.approx(STEP_US / 1000, rel=0.02)


def test_logs_of_which_a_part_is_there_tell_no_steps(tmp_path: Path) -> None:
    """Of four tenths it is unknown what repeats: no rank is named and none cleared."""
    run = load(_logs(tmp_path, late_us=4000, missing=0.6))
    assert (run.collectives["step"] < 0).all()
    assert judge(run).verdicts[0].kind == "insufficient_data"


def test_windows_of_time_that_were_not_read_are_no_missed_operations(tmp_path: Path) -> None:
    """Large logs are read in part: what is missing inside of a window counts, the time between two does not."""
    _logs(tmp_path, late_us=4000)
    for path in tmp_path.glob("*.log"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[len(rows) // 2 :]:
            row["coll_perf"]["coll_sn"] += 150 * PLACES
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load(tmp_path)
    assert (run.collectives["step"] >= 0).mean() > 0.9
    assert judge(run).verdicts[0].ranks == (2,)


def test_evaluations_between_the_steps_are_in_none(tmp_path: Path) -> None:
    """Operations of another size, a few every so many steps, move no step."""
    run = load(_with_evaluations(_logs(tmp_path, late_us=4000)))
    odd = run.collectives["bytes"] == 99
    assert (run.collectives["step"][odd] < 0).all()
    assert judge(run).verdicts[0].ranks == (2,)


def _with_evaluations(folder: Path) -> Path:
    """After the thirtieth step three operations more; later ones have later numbers."""
    for path in folder.glob("*.log"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        lines, rank = [], rows[0]["header"]["rank"]
        for row in rows:
            perf, at = row["coll_perf"], row["metadata"]["dump_timestamp_us"] - WRITTEN_US
            number = perf["coll_sn"]
            shift = 3 * (number // (30 * PLACES))
            if number % (30 * PLACES) == 0 and number:
                lines += [_line(rank, number + shift - 3 + i, 99, 200, at - 3 + i) for i in range(3)]
            lines.append(_line(rank, number + shift, perf["coll_msg_size_bytes"], perf["coll_exec_time_us"], at))
        path.write_text("".join(lines))
    return folder
