"""Logs that miss operations, or begin later: those that they have keep their places and tell the steps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings import operations
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import table
from hindmost_judge.judge import judge
from hindmost_judge.model import Table

from tests.recordings import unpacked


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Terse Inspector lines of real training of which rank 0 computes longer, a log of its steps, and dumps."""
    return unpacked("inspector-ddp-slow-rank0", tmp_path_factory.mktemp("recorded"))


def _steps(recording: Table, more: int = 0) -> dict[tuple[int, int], int]:
    """Rank and number of an operation to its step."""
    columns = (recording["rank"], recording["seq"] + more, recording["step"])
    return {(rank, seq): step for rank, seq, step in zip(*(column.tolist() for column in columns), strict=True)}


def test_a_log_without_its_beginning_is_joined_with_whole_dumps(recorded: Path, tmp_path: Path) -> None:
    """Its operations were taken for those of earlier steps, and no rank was late in them."""
    share = 0.4
    for path in [*recorded.glob("steps.*"), *recorded.glob("nccl_trace*")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for path in recorded.glob("inspector/*.log"):
        lines = path.read_bytes().splitlines(keepends=True)
        (tmp_path / path.name).write_bytes(b"".join(lines[round(share * len(lines)) :]))
    whole, cut = load(recorded), load(tmp_path)
    steps, mine = _steps(whole.collectives), _steps(cut.collectives, more=8)  # a gather and seven broadcasts began it
    assert mine.items() <= steps.items()
    assert len(mine) > (0.95 - share) * len(steps)
    verdict = judge(cut).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (0,), "compute")


def _operations(first: int, names: list[str], sizes: list[int], **more: Any) -> Table:
    return table(
        "collectives", rank=np.zeros(len(names)), seq=first + np.arange(len(names)), op=names, bytes=sizes, **more
    )


OPS = 5 * ["all_reduce"]
SIZES = [8, 800, 24, 1000, 48]


def test_operations_of_kinds_that_one_has_none_of_ran_before() -> None:
    """Two broadcasts that only one recorded are what the other counts less; sizes may be counts of elements."""
    dump = _operations(0, ["broadcast", "broadcast", *OPS], [4, 4, *SIZES])
    assert operations.difference(_operations(0, OPS, SIZES), dump, 2) == 2
    halves = [size // 2 for size in SIZES]
    assert operations.difference(_operations(0, OPS, halves, elements=halves), dump, 2) == 2


def test_a_barrier_is_an_all_reduce_to_nccl() -> None:
    """It stands in one list as itself, and in the other as what runs for it."""
    assert operations.difference(_operations(0, OPS, SIZES), _operations(0, [*OPS[:4], "barrier"], SIZES), 2) == 0


def test_operations_of_other_sizes_are_not_the_same() -> None:
    """However they are counted: nothing is concluded from one about the other then."""
    assert operations.difference(_operations(0, OPS, SIZES), _operations(0, OPS, [5, 5, 5, 5, 5]), 2) is None


def test_recordings_of_other_times_have_nothing_in_common() -> None:
    """The numbers tell, where both count from the job's beginning."""
    later = _operations(400, OPS, SIZES)
    assert operations.difference(_operations(0, OPS, SIZES), later, 2) is None


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


@pytest.mark.parametrize("since", [0, 40])
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
