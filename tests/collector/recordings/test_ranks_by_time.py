"""Processes of which no communicator has all are joined with ranks by when a Flight Recorder dump saw them enqueue."""

import json
from pathlib import Path

from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.rank_mapping import GUESSED

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
                gpu = f"{at + MS},{at + 2 * MS},{at + 2 * MS}"
                lines.append(f"{comm},{inside},{step},AllReduce,64,RING,LL,1,{at},{at + 900},{gpu}\n")
                entries.append(
                    {
                        "process_group": (comm, "undefined"),
                        "collective_seq_id": step + 1,
                        "profiling_name": "nccl:all_reduce",
                        "time_created_ns": at - 12_000,
                        "state": "completed",
                        "is_p2p": False,
                    }
                )
        (folder / f"prof.{pid}.csv").write_text("".join(lines))
        if rank in dumped:
            groups = {name: {"ranks": str(list(members))} for name, members in GROUPS.items() if rank in members}
            content = {"version": "2.10", "pg_config": groups, "entries": entries}
            (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
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
