"""Recordings of one node of several: its ranks are those that they are in the whole job."""

from pathlib import Path

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.rank_mapping import GUESSED, world_ranks

WORLD, NODE = 0xF0, 0x0A  # the node's group comes first by its number
BEGIN = 1_790_857_026_000_000_000
MS = 1_000_000


@pytest.mark.parametrize(
    ("inside", "ranks", "world"),
    [
        ([{NODE: at, WORLD: 4 + at} for at in range(4)], [4, 5, 6, 7], None),
        ([{NODE: at, WORLD: at} for at in range(4)], [0, 1, 2, 3], 4),
        ([{NODE: at % 2 + 10 * (at // 2), WORLD: 4 + at} for at in range(4)], [4, 5, 6, 12], None),
    ],
)
def test_of_communicators_of_all_processes_the_largest_is_the_world(
    inside: list[dict[int, int]], ranks: list[int], world: int | None
) -> None:
    """The group of the node's own ranks counts them from 0, and the world goes on."""
    if ranks[-1] == 12:
        inside[-1][WORLD] = 12
    assert world_ranks(inside, {}) == (ranks, world, [])


def test_two_that_may_be_the_world_are_not_chosen_from() -> None:
    """As many members at the least, and others of the ranks: process ids are all there is."""
    assert world_ranks([{NODE: 5, WORLD: 2}, {NODE: 1, WORLD: 5}], {}) == ([0, 1], 2, [GUESSED])


def _record(folder: Path, first: int, gpus: range) -> Path:
    """Four ranks with a group of their own and the world, logs of their steps, and samples of these GPUs."""
    for at in range(4):
        comms = [(WORLD, first + at, 0), *((NODE, at, seq) for seq in range(20))]
        lines = []
        for place, (comm, inside, seq) in enumerate(comms):
            begin = BEGIN + place * 10 * MS + at * 1000
            gpu = f"{begin + MS},{begin + 2 * MS},{begin + 2 * MS}"
            lines.append(f"{comm:x},{inside},{seq},AllReduce,64,RING,LL,1,{begin},{begin + 900},{gpu}\n")
        (folder / f"prof.{100 + at}.csv").write_text("".join(lines))
        steps = [(n, BEGIN + n * 10 * MS + at * 7) for n in range(20)]
        log = [f'{{"step": {n}, "t_start": {t}, "t_data": {t + MS}, "t_end": {t + 9 * MS}}}\n' for n, t in steps]
        (folder / f"steps.{first + at}.jsonl").write_text("".join(log))
    samples = [f"{BEGIN + n * 100 * MS},{gpu},100,1980\n" for n in range(3) for gpu in gpus]
    (folder / "nvml.csv").write_text("".join(["t_ns,gpu,util,sm_mhz\n", *samples]))
    return folder


@pytest.mark.parametrize("first", [0, 4, 16])
def test_the_gpus_of_a_later_node_are_its_ranks_in_order(tmp_path: Path, first: int) -> None:
    """Logs and operations are of the same ranks, and a node counts its GPUs from 0."""
    run = load(_record(tmp_path, first, range(4)))
    assert run.ranks["rank"].tolist() == [first + at for at in range(4)]
    assert run.ranks["gpu_uuid"].tolist() == [f"gpu{at}" for at in range(4)]
    assert run.ranks["pid"].tolist() == [100, 101, 102, 103]


def test_gpus_that_have_the_ranks_numbers_are_theirs(tmp_path: Path) -> None:
    """From sources that count GPUs through the whole job."""
    run = load(_record(tmp_path, 4, range(4, 8)))
    assert run.ranks["gpu_uuid"].tolist() == ["gpu4", "gpu5", "gpu6", "gpu7"]
