"""Hosts' clocks that are far apart change no verdict where something proves that the files are one job's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.rank_mapping import positions
from hindmost_judge.judge import judge

from tests.collector.foreign_files import dump, entry, profiler_line, step_lines, write

BASE_NS = 1_790_857_026_000_000_123
MS, HOUR, DAY = 10**6, 3600 * 10**9, 86_400 * 10**9
STEPS = 80


def clock(times: Any, offset: int = 0, ppm: float = 0.0) -> list[int]:
    """What a host's clock shows at these true times, ns since the run's begin."""
    true = np.asarray(times, np.float64)
    return [BASE_NS + offset + int(one) for one in true * (1 + ppm * 1e-6)]


def rhythm(seed: int, steps: int = STEPS) -> np.ndarray[Any, Any]:
    """When the steps of a job begin, each of a length of its own."""
    return np.cumsum(np.random.default_rng(seed).normal(30 * MS, 3 * MS, steps))


def write_steps(folder: Path, rank: int, began: Any, *, slow: int = 3, **off: Any) -> None:
    """A log of steps; of rank ``slow`` the input takes 6 ms longer."""
    took = np.random.default_rng(rank).normal(0, 0.1 * MS, len(began))
    start = clock(began + took, **off)
    input_ns = (8 if rank == slow else 2) * MS
    (folder / f"steps.{rank}.jsonl").write_text(step_lines(start, input_ns + 15 * MS, input_ns))


def write_csv(folder: Path, rank: int, began: Any, **off: Any) -> None:
    """NCCL operations of those steps, in one communicator."""
    host = clock(began + 20 * MS, **off)
    lines = [profiler_line(7, rank, at, "AllReduce", h, h + MS, h + 2 * MS, h) for at, h in enumerate(host)]
    (folder / f"prof.{100 + rank}.csv").write_text("".join(lines))


def write_dump(folder: Path, rank: int, last: int, **off: Any) -> None:
    """A Flight Recorder's dump with operations up to ``last``, the last of them open."""
    created = clock(np.arange(last + 1) * 30 * MS + 5000 * rank, **off)
    entries = [entry(at, created_ns, ended=at < 60) for at, created_ns in enumerate(created)]
    write(folder, rank, dump(entries, **{"0": "[0, 1, 2, 3]"}))


def verdicts(folder: Path) -> list[Any]:
    return [
        (verdict.kind, verdict.ranks, verdict.victims, verdict.cause, verdict.since_step)
        for verdict in judge(load(folder)).verdicts
    ]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The verdicts on a job of one rhythm whose clocks are together."""
    folder = tmp_path_factory.mktemp("together")
    for rank in range(4):
        write_steps(folder, rank, rhythm(1))
    return verdicts(folder)


@pytest.mark.parametrize("offset", [DAY, -DAY, -HOUR])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("ppm", [0.0, 100.0, -100.0])
def test_steps_in_rhythm_are_one_job(tmp_path: Path, together: list[Any], rank: int, offset: int, ppm: float) -> None:
    """The verdict is that of clocks which are together; a note says whose was set right, and by how much."""
    for one in range(4):
        write_steps(tmp_path, one, rhythm(1), **{"offset": offset, "ppm": ppm} if one == rank else {})
    assert together[0][:2] == ("straggler", (3,))
    assert verdicts(tmp_path) == together
    way = "ahead of" if offset > 0 else "behind"
    note = f"rank {rank}'s clock is {abs(offset) / 1e9:,.0f} s {way} the others': corrected by their common operations."
    assert note in load(tmp_path).notes


@pytest.mark.parametrize(
    "other", [rhythm(2), rhythm(1) * 1.005, rhythm(1)[:30], np.arange(STEPS) * 30.0 * MS], ids=range(4)
)
def test_steps_of_another_rhythm_are_refused(tmp_path: Path, other: Any) -> None:
    """Other lengths, or the same of another pace, or too few to tell: another run's, maybe."""
    for rank in range(3):
        write_steps(tmp_path, rank, rhythm(1))
    write_steps(tmp_path, 3, other, offset=DAY)
    with pytest.raises(
        UsageError, match=r"begins 86,\d+ s after .* different jobs, or clocks that far apart"
    ) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_steps_all_of_one_length_have_no_rhythm(tmp_path: Path) -> None:
    """Any two runs of a program may be as regular as that."""
    for rank in range(4):
        starts = [BASE_NS + rank + DAY * (rank == 2) + at * 30 * MS for at in range(STEPS)]
        (tmp_path / f"steps.{rank}.jsonl").write_text(step_lines(starts, 17 * MS, 2 * MS))
    with pytest.raises(UsageError, match="different jobs"):
        load(tmp_path)


def test_a_communicator_of_nccl_s_proves_what_else_the_same_clock_showed(tmp_path: Path) -> None:
    """Steps without a rhythm, next to operations that carry NCCL's own number."""
    regular = np.arange(STEPS) * 30 * MS
    for rank in range(4):
        off = {"offset": -DAY if rank == 2 else 0, "ppm": 100.0 if rank == 2 else 0.0}
        write_steps(tmp_path, rank, regular, **off)
        write_csv(tmp_path, rank, regular, **off)
    run = load(tmp_path)
    assert sorted(np.unique(run.steps["rank"]).tolist()) == [0, 1, 2, 3]
    assert np.ptp([run.steps["start_ns"][run.steps["rank"] == rank].min() for rank in range(4)]) < 10 * MS


def test_steps_by_another_clock_than_the_operations_of_their_rank_are_refused(tmp_path: Path) -> None:
    """A host has one clock: these are another run's."""
    regular = np.arange(STEPS) * 30 * MS
    for rank in range(4):
        write_steps(tmp_path, rank, regular, offset=DAY * (rank == 2))
        write_csv(tmp_path, rank, regular)
    with pytest.raises(UsageError, match="different jobs"):
        load(tmp_path)


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("offset", [DAY, -DAY])
def test_dumps_that_stopped_at_one_place_are_of_one_job(tmp_path: Path, rank: int, offset: int) -> None:
    """Rank 1 had not come to where the others wait."""
    for one in range(4):
        write_dump(tmp_path, one, last=59 if one == 1 else 64)
    together = verdicts(tmp_path)
    assert together[0][:3] == ("hang", (1,), (0, 2, 3))
    write_dump(tmp_path, rank, last=59 if rank == 1 else 64, offset=offset)
    assert verdicts(tmp_path) == together


def test_dumps_that_stopped_elsewhere_are_refused(tmp_path: Path) -> None:
    """Another run had stopped at another place."""
    for rank in range(3):
        write_dump(tmp_path, rank, last=64)
    write_dump(tmp_path, 3, last=40, offset=-DAY)
    with pytest.raises(UsageError, match="different jobs"):
        load(tmp_path)


def test_a_clock_far_off_leaves_the_order_of_operations() -> None:
    """Though some lines of that process, or of the others, are missing."""
    rng = np.random.default_rng(3)
    process, number = (index.ravel() for index in np.indices((4, 200)))
    kept = rng.random(len(process)) > 0.2
    process, number = process[kept], number[kept]
    op = np.where(number % 2, "all_reduce", "all_gather")
    comm, count, time = np.zeros(len(op), np.uint64), number // 2, number * 1000 + rng.integers(0, 100, len(op))
    usual = positions(comm, op, count, time, process)
    assert (usual == number).all()
    assert (positions(comm, op, count, time + 10**12 * (process == 2), process) == usual).all()
