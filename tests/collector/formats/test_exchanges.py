"""All-to-alls are recognised from sends and receives, and late ranks from when each rank came."""

import json
from pathlib import Path

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME

from tests.collector.foreign_files import profiler_line

MS = 1_000_000
BEGIN = 1_795_346_662_000 * MS
RANKS, STEPS, PLACES = 4, 40, 8
#: ms of computing before each exchange of a step: optimizer and forward, experts and dense layers in turn.
COMPUTES = np.array([6.0, 0.5, 1.0, 0.5, 1.0, 0.8, 2.0, 0.8])
DENSE = np.arange(PLACES) % 2 == 0


def _arrivals(slow: float) -> tuple[np.ndarray, np.ndarray]:
    """[R, S, P] ns when each rank comes to each exchange, and [S, P] when all leave it; rank 2 takes ``slow`` ms more
    in each dense layer, and experts' shares are drawn anew in each step."""
    rng = np.random.default_rng(5)
    own = np.tile(COMPUTES, (RANKS, STEPS, 1))
    own += np.where(DENSE, 0.01, 0.1) * rng.standard_normal(own.shape)
    own[2] += np.where(DENSE, slow, 0.0)
    came, left = np.empty(own.shape), np.empty(own.shape[1:])
    now = 0.0
    for step in range(STEPS):
        for place in range(PLACES):
            came[:, step, place] = now + own[:, step, place]
            now = left[step, place] = came[:, step, place].max() + 0.04
        now += 3.0  # gradients, which meet all of them again
    return came * MS, left * MS


def _record(folder: Path, slow: float = 0.0, clocks: int = 0, *, neighbours: bool = False, lost: int = -1) -> Path:
    """Ranks whose hosts' clocks are so many ns apart from one to the next; ``neighbours``: none is sent the last."""
    came, left = _arrivals(slow)
    for rank in range(RANKS):
        lines, steps = [], []
        off, ahead = BEGIN + rank * clocks, (rank + 1) * 700_000
        for step in range(STEPS):
            host = off + int(came[:, step, 0].min()) - 5 * MS + 1_000 * rank + 17 * (rank + 1) * (step % 7)
            times = {"t_start": host, "t_data": host + MS // 10, "t_end": off + int(left[step, -1])}
            steps.append(json.dumps({"step": step, **times, "fwd_ms": 6.0, "bwd_ms": 6.0, "opt_ms": 1.0}) + "\n")
            for place in range(PLACES):
                begun = off + int(came[rank, step, place])
                at = host + (place + 2) * MS // 10
                for peer in (one for one in range(RANKS) if one != rank and not (neighbours and one + rank == RANKS)):
                    for name in ("Send", "Recv"):
                        gpu = begun + ahead, begun + ahead + 40_000, begun + 45_000
                        lines.append(profiler_line(0x2E, rank, peer, name, at, *gpu))
            at = host + 4 * MS
            end = off + int(left[step, -1])
            lines.append(profiler_line(0x2E, rank, step, "AllReduce", at, host - 60 * MS, end, end + 2 * MS))
        if lost >= 0 and rank == 1:
            del lines[lost]
        (folder / f"prof.{100 + rank}.csv").write_text("".join(lines))
        (folder / f"steps.{rank}.jsonl").write_text("".join(steps))
    return folder


def _exchanges(folder: Path) -> int:
    return int((load(folder).collectives["op"] == "all_to_all").sum())


@pytest.mark.parametrize("clocks", [0, 2 * MS, -20_000])
def test_who_comes_late_for_exchanges_is_named_whatever_hosts_clocks_are_off_by(tmp_path: Path, clocks: int) -> None:
    """A rank 0.3 ms slower in each of four dense layers of a step costs what steps are longer by."""
    (found,) = judge(load(_record(tmp_path, 0.3, clocks))).verdicts
    assert (found.kind, found.ranks) == ("straggler", (2,))
    longer = _arrivals(0.3)[1][-1, -1] - _arrivals(0.0)[1][-1, -1]
    assert found.cost_ms_per_step == pytest.approx(longer / STEPS / MS, abs=0.15)


@pytest.mark.parametrize("clocks", [0, 2 * MS, -20_000])
def test_experts_that_get_more_in_turn_name_no_rank(tmp_path: Path, clocks: int) -> None:
    """Each rank's expert is the last now and then; clocks a little off make no rank late at each exchange."""
    assert [verdict.kind for verdict in judge(load(_record(tmp_path, clocks=clocks))).verdicts] == ["balanced"]


@pytest.mark.parametrize("lost", [0, 700])
def test_a_lost_line_moves_no_exchange(tmp_path: Path, lost: int) -> None:
    """What is sent to another tells as much."""
    run = load(_record(tmp_path, 0.3, lost=lost))
    held = run.collectives["op"] == "all_to_all"
    assert int(held.sum()) == RANKS * STEPS * PLACES
    assert (run.collectives["flags"][held] == GPU_TIME).all()
    (found,) = judge(run).verdicts
    assert found.ranks == (2,)


def _cut(folder: Path, held: slice) -> Path:
    path = folder / "prof.101.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[held]))
    return folder


@pytest.mark.parametrize("begins", [20, 3 * 49 + 20])
def test_a_file_that_begins_later_is_put_where_ranks_meet(tmp_path: Path, begins: int) -> None:
    """Rank 1's first step is cut in the middle: the steps that all have are judged, each with its own."""
    folder = _cut(_record(tmp_path, 0.3), slice(begins, None))
    assert _exchanges(folder) == RANKS * PLACES * (STEPS - 1 - begins // 49)
    (found,) = judge(load(folder)).verdicts
    assert (found.kind, found.ranks) == ("straggler", (2,))


def test_files_that_only_end_apart_are_left_as_they_are(tmp_path: Path) -> None:
    """A rank that has fewer at the end may be the one that never came."""
    assert _exchanges(_cut(_record(tmp_path, 0.3), slice(0, -70))) == 0


def test_clocks_half_a_step_apart_put_no_file_anywhere(tmp_path: Path) -> None:
    """Which of two steps is the one in which ranks met is not sure."""
    assert _exchanges(_cut(_record(tmp_path, 0.3, 8 * MS), slice(20, None))) == 0


def test_a_line_whose_log_is_wrong_hides_no_exchange(tmp_path: Path) -> None:
    """One of thousands may say that it ended before it was enqueued."""
    folder = _record(tmp_path)
    path = folder / "prof.101.csv"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([",".join([*first.split(",")[:-1], "1\n"]), *rest]))
    assert _exchanges(folder) > 0


def test_exchanges_with_a_communicator_to_themselves_tell_nothing(tmp_path: Path) -> None:
    """If nothing else says at which place of a step each is, a clock that is off looks like a late rank."""
    folder = _record(tmp_path)
    for rank in range(RANKS):
        path = folder / f"prof.{100 + rank}.csv"
        lines = [("3f" + line[2:]) if "AllReduce" in line else line for line in path.read_text().splitlines()]
        cells = [line.split(",") for line in lines]
        for one in cells:  # its times are to be believed
            if one[3] == "AllReduce":
                end = int(one[12])
                one[10], one[11], one[12] = (
                    str(end - MS + (rank + 1) * 700_000),
                    str(end + (rank + 1) * 700_000),
                    str(end + 5_000),
                )
        path.write_text("\n".join(",".join(cell) for cell in cells) + "\n")
    assert _exchanges(folder) == 0


def test_messages_to_some_are_no_exchange(tmp_path: Path) -> None:
    """No rank waits for one that it receives nothing from."""
    assert _exchanges(_record(tmp_path, neighbours=True)) == 0


def test_foreign_records_in_another_communicator_prove_nothing(tmp_path: Path) -> None:
    """Who waits there for ranks of which nothing is known would seem to compute until its next exchange."""
    _record(tmp_path, 0.3)
    for one in tmp_path.glob("prof.*.csv"):
        one.write_text(
            "".join(
                "3f" + line[2:] if "AllReduce" in line else line for line in one.read_text().splitlines(keepends=True)
            )
        )
    assert _exchanges(tmp_path) == 0
