"""Operations that a profiler tells the times of others are known, and their times are not believed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.formats import profiler_csv
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME

MS = 1_000_000
BEGIN, STEP = 1_795_346_662_000 * MS, 20 * MS
AHEAD = 3 * MS
STEPS = 40


def _columns(*, late: int = 0, drift: int = 0, logged: int = 0) -> dict[str, Any]:
    """400 sends and 400 reductions, one of either a ms; the latter's times are from so many ns before their own, the
    GPU's clock gains so much a operation, and ends are logged so much later."""
    enqueue = BEGIN + np.arange(800) * MS
    reduces = np.arange(800) % 2 == 1
    ended = enqueue + MS // 2
    stop = ended + AHEAD + drift * np.arange(800) - np.where(reduces, late, 0)
    return {
        "comm": np.full(800, 7, np.uint64),
        "op": np.where(reduces, "all_reduce", "send"),
        "enqueue": enqueue,
        "start": stop - MS // 10,
        "stop": stop,
        "logged": ended + logged,
    }


def test_what_began_before_it_was_enqueued_has_the_times_of_another() -> None:
    """Nothing else is believed then, but what that belongs to is reported."""
    columns = _columns(late=5 * MS)
    found = profiler_csv.find_foreign([columns])
    assert found == {"all_reduce"}
    (note,) = profiler_csv.foreign_notes(found)
    assert note.startswith("How long all_reduce took is not known")


def test_of_all_files_where_it_is_in_one() -> None:
    """A comparison of ranks shows which is late for an operation."""
    assert profiler_csv.find_foreign([_columns(), _columns(late=5 * MS)]) == {"all_reduce"}


@pytest.mark.parametrize("columns", [_columns(), _columns(drift=1_000), _columns(drift=-1_000), _columns(logged=MS)])
def test_clocks_that_drift_and_late_logging_make_no_time_unbelievable(columns: dict[str, Any]) -> None:
    """A GPU's clock is some ms off its host's, and gains or loses."""
    assert not profiler_csv.find_foreign([columns])


def test_another_clock_shows_nothing() -> None:
    """What was logged before it was enqueued was not logged by that clock."""
    columns = {**_columns(late=5 * MS), "logged": np.zeros(800, np.int64)}
    assert not profiler_csv.find_foreign([columns])


def test_a_log_that_is_none_of_ends_tells_nothing() -> None:
    """Written when operations are enqueued, of a host that is far ahead of its GPU."""
    columns = _columns(late=5 * MS)
    queued = 50 * MS * (1 + np.arange(800) % 7)
    columns = {**columns, "start": columns["start"] + queued, "stop": columns["stop"] + queued}
    assert not profiler_csv.find_foreign([columns])


def _experts(folder: Path, *, untrue: bool) -> Path:
    """Four ranks that exchange with each other, then reduce; that seems to take all but rank 0 three steps."""
    for rank in range(4):
        lines, steps = [], []
        for step in range(STEPS):
            began = BEGIN + step * STEP
            times = {"t_start": began, "t_data": began + MS, "t_end": began + STEP - MS}
            steps.append(json.dumps({"step": step, **times, "fwd_ms": 6.0, "bwd_ms": 11.0, "opt_ms": 2.0}) + "\n")
            for i, peer in enumerate(one for one in range(4) if one != rank):
                host = began + (2 + i) * MS
                for name in ("Send", "Recv"):
                    gpu = host + AHEAD + MS // 2
                    lines.append(
                        f"2e,{rank},{peer},{name},64,P2P,-,8,{host},{host + 9},{gpu},{gpu + 9},{host + MS // 2}\n"
                    )
            host = began + 9 * MS
            gpu = host + AHEAD
            begin = gpu - (3 * STEP if rank else STEP) if untrue else gpu
            lines.append(f"2e,{rank},{step},AllReduce,64,RING,LL,8,{host},{host + 9},{begin},{gpu + 9},{host + MS}\n")
        (folder / f"prof.{100 + rank}.csv").write_text("".join(lines))
        (folder / f"steps.{rank}.jsonl").write_text("".join(steps))
    return folder


def test_a_step_never_holds_more_than_itself(tmp_path: Path) -> None:
    """Reductions that seemed to take three steps made rank 0 the one that all ranks wait for."""
    report = judge(load(_experts(tmp_path, untrue=True)))
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("insufficient_data", ())]
    assert report.verdicts[0].evidence[0].startswith("6 sends and receives per step are inside phases")
    assert any(note.startswith("How long all_reduce took is not known") for note in report.notes)


def test_operations_without_times_remain_known(tmp_path: Path) -> None:
    """When the host enqueued them, and how many: a hang or a mismatch shows in that."""
    run = load(_experts(tmp_path, untrue=True))
    reduces = run.collectives["op"] == "all_reduce"
    assert int(reduces.sum()) == 4 * STEPS
    assert (run.collectives["duration_ns"] == -1).all()
    assert (run.collectives["start_ns"] == run.collectives["enqueue_ns"]).all()
    assert not (run.collectives["flags"] & GPU_TIME).any()


def test_times_that_can_be_are_believed(tmp_path: Path) -> None:
    """Together with the same exchanges."""
    run = load(_experts(tmp_path, untrue=False))
    assert (run.collectives["duration_ns"] == 9).all()
    assert not any("took is not known" in note for note in run.notes)


def _pipeline(folder: Path, *, seed: int) -> Path:
    run = simulate(Scenario(4, 60, seed, "pp_dp", pipeline=2, step_ms=30)).run
    write(run, folder / "run", "traces")
    return folder / "run"


def test_of_a_pipeline_whose_reductions_have_other_times_no_rank_is_named(tmp_path: Path) -> None:
    """The last stage waits in them, and seemed to work meanwhile."""
    folder = _pipeline(tmp_path, seed=403)
    for path in folder.glob("prof.*.csv"):
        rows = [line.split(",") for line in path.read_text().splitlines()]
        for row in rows:
            if row[3] == "AllReduce":
                row[10:12] = (str(int(one) - 90 * MS) for one in row[10:12])
        path.write_text("".join(",".join(row) + "\n" for row in rows))
    assert not any(verdict.ranks for verdict in judge(load(folder)).verdicts)


def test_a_simulated_pipeline_has_its_own_times(tmp_path: Path) -> None:
    """They are logged when operations have ended."""
    folder = _pipeline(tmp_path, seed=1)
    run = load(folder)
    assert not any("took is not known" in note for note in run.notes)
    assert [verdict.kind for verdict in judge(run).verdicts] == ["balanced"]
