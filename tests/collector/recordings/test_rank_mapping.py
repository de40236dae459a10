"""Which ranks processes are: by the job's other nodes, and by when a Flight Recorder dump saw them enqueue."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.rank_mapping import GUESSED, positions, world_ranks

from tests.collector.foreign_files import dump, entry, profiler_line, step_lines, write

MS = 1_000_000
BEGIN = 1_790_857_026_000_000_000
#: Rank to process id, which does not ascend; and each rank's place in its tensor parallel and its replica's group.
PIDS = (140, 120, 130, 110)
GROUPS = {"aa": (0, 1), "bb": (2, 3), "cc": (0, 2), "dd": (1, 3)}


def _record(folder: Path, dumped: tuple[int, ...] = (0, 1, 2, 3), apart_ns: int = 300_000, steps: int = 30) -> Path:
    """Four ranks, each enqueuing an all-reduce in both of its groups a step, ``apart_ns`` after the rank before it."""
    for rank, pid in enumerate(PIDS):
        lines, entries = [], []
        for step in range(steps):
            for place, (comm, members) in enumerate(GROUPS.items()):
                if rank not in members:
                    continue
                at = BEGIN + step * 10 * MS + place * MS + rank * apart_ns
                inside = members.index(rank)
                gpu = at + MS, at + 2 * MS, at + 2 * MS
                lines.append(profiler_line(int(comm, 16), inside, step, "AllReduce", at, *gpu))
                entries.append(entry(step, at - 12_000, process_group=(comm, "undefined")))
        (folder / f"prof.{pid}.csv").write_text("".join(lines))
        if rank in dumped:
            groups = {name: str(list(members)) for name, members in GROUPS.items() if rank in members}
            write(folder, rank, dump(entries, **groups), as_json=True)
    return folder


def test_a_dump_tells_which_process_was_which_rank(tmp_path: Path) -> None:
    """Ranks are those of the dumps that saw the same operations, and communicators have the dumps' members."""
    run = load(_record(tmp_path))
    assert dict(zip(run.ranks["rank"].tolist(), run.ranks["pid"].tolist(), strict=True)) == dict(enumerate(PIDS))
    found: dict[int, set[int]] = {}
    for comm, rank in zip(run.communicators["comm"].tolist(), run.communicators["rank"].tolist(), strict=True):
        found.setdefault(comm, set()).add(rank)
    assert found == {int(name, 16): set(members) for name, members in GROUPS.items()}
    assert GUESSED not in run.notes


def test_processes_in_step_with_each_other_keep_the_order_of_their_ids(tmp_path: Path) -> None:
    """Where all ranks enqueue at the same time, times identify no rank, and the report says that it guessed."""
    run = load(_record(tmp_path, apart_ns=2_000))
    assert GUESSED in run.notes


def test_a_rank_without_a_dump_is_not_guessed_from_the_others(tmp_path: Path) -> None:
    """Four processes and three dumps: the fourth's owner would be a guess next to three facts."""
    run = load(_record(tmp_path, dumped=(0, 1, 2)))
    assert GUESSED in run.notes


WORLD, NODE = 0xF0, 0x0A  # the node's group comes first by its number


@pytest.mark.parametrize(
    ("inside", "ranks", "world"),
    [
        ([{NODE: at, WORLD: 4 + at} for at in range(4)], [4, 5, 6, 7], None),
        ([{NODE: at, WORLD: at} for at in range(4)], [0, 1, 2, 3], 4),
        ([{NODE: at % 2 + 10 * (at // 2), WORLD: 4 + at} for at in range(4)], [4, 5, 6, 12], None),
    ],
)
def test_the_largest_of_all_is_the_world(inside: list[dict[int, int]], ranks: list[int], world: int | None) -> None:
    """The group of the node's own ranks counts them from 0, and the world goes on."""
    if ranks[-1] == 12:
        inside[-1][WORLD] = 12
    assert world_ranks(inside, {}) == (ranks, world, [])


def test_two_that_may_be_the_world_are_not_chosen_from() -> None:
    """As many members at the least, and others of the ranks: process ids are all there is."""
    assert world_ranks([{NODE: 5, WORLD: 2}, {NODE: 1, WORLD: 5}], {}) == ([0, 1], 2, [GUESSED])


def _node(folder: Path, first: int, gpus: range) -> Path:
    """Four ranks with a group of their own and the world, logs of their steps, and samples of these GPUs."""
    for at in range(4):
        comms = [(WORLD, first + at, 0), *((NODE, at, seq) for seq in range(20))]
        lines = []
        for place, (comm, inside, seq) in enumerate(comms):
            begin = BEGIN + place * 10 * MS + at * 1000
            gpu = begin + MS, begin + 2 * MS, begin + 2 * MS
            lines.append(profiler_line(comm, inside, seq, "AllReduce", begin, *gpu))
        (folder / f"prof.{100 + at}.csv").write_text("".join(lines))
        starts = [BEGIN + n * 10 * MS + at * 7 for n in range(20)]
        (folder / f"steps.{first + at}.jsonl").write_text(step_lines(starts, 9 * MS))
    samples = [f"{BEGIN + n * 100 * MS},{gpu},100,1980\n" for n in range(3) for gpu in gpus]
    (folder / "nvml.csv").write_text("".join(["t_ns,gpu,util,sm_mhz\n", *samples]))
    return folder


@pytest.mark.parametrize("first", [0, 4, 16])
def test_the_gpus_of_a_later_node_are_its_ranks_in_order(tmp_path: Path, first: int) -> None:
    """Logs and operations are of the same ranks, and a node counts its GPUs from 0."""
    run = load(_node(tmp_path, first, range(4)))
    assert run.ranks["rank"].tolist() == [first + at for at in range(4)]
    assert run.ranks["gpu_uuid"].tolist() == [f"gpu{at}" for at in range(4)]
    assert run.ranks["pid"].tolist() == [100, 101, 102, 103]


def test_gpus_that_have_the_ranks_numbers_are_theirs(tmp_path: Path) -> None:
    """From sources that count GPUs through the whole job."""
    run = load(_node(tmp_path, 4, range(4, 8)))
    assert run.ranks["gpu_uuid"].tolist() == ["gpu4", "gpu5", "gpu6", "gpu7"]


REDUCE, GATHER = 0 << 40, 1 << 40


def in_one_order(members: list[Any], times: list[Any] | None = None) -> list[list[int]]:
    """The positions of members' operations, each a function's code and number, that came at these times."""
    keys, process = np.concatenate(members), np.repeat(np.arange(len(members)), list(map(len, members)))
    time = keys if times is None else np.concatenate(times)
    found = positions(np.zeros(len(keys), np.uint64), keys >> 40, keys % (1 << 40), time, process)
    return [found[process == one].tolist() for one in range(len(members))]


def test_all_after_a_line_that_both_members_lack_keep_their_places() -> None:
    """Of ten operations the fifth is in no file, and the eighth is in one's alone."""
    one = np.array([REDUCE | n for n in (0, 1, 2, 3, 5, 6, 7, 8, 9)])
    other = np.array([REDUCE | n for n in (0, 1, 2, 3, 5, 6, 8, 9)])
    places = in_one_order([other, one])
    assert places[0] == [0, 1, 2, 3, 5, 6, 8, 9]
    assert places[1] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_what_the_longest_member_lacks_comes_where_it_was_among_another_function() -> None:
    """A reduce and a gather in turn: a lost gather leaves its place between two reduces."""
    whole = np.array([key for n in range(6) for key in (REDUCE | n, GATHER | n)])
    lost = np.delete(whole, 5)  # the third gather
    every, seen = np.arange(12), np.delete(np.arange(12), 5)
    assert in_one_order([lost], [seen])[0] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    longer = np.append(lost, [REDUCE | 6, GATHER | 6])
    assert in_one_order([whole, longer], [every, np.append(seen, [12, 13])])[0] == list(range(12))


def test_operations_that_ran_before_the_file_begins_count() -> None:
    """Numbers that begin at four have four before them."""
    assert in_one_order([REDUCE | np.arange(4, 8)])[0] == [4, 5, 6, 7]
