"""Flight Recorder dumps say who had not entered what."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_judge.judge import judge

from tests.collector.formats.dumps import HUNG, dump_of, of_group, write
from tests.recordings import unpacked


def test_unfinished_operations_are_in_flight(tmp_path: Path) -> None:
    """The rank that is missing from the lowest unfinished operation is the one that others wait for."""
    write(tmp_path, 0, dump_of(entered=6, completed=4))
    write(tmp_path, 1, dump_of(entered=4, completed=4))
    run = load(tmp_path)
    assert run.in_flight["rank"].tolist() == [0, 0]
    assert run.in_flight["seq"].tolist() == [4, 5]
    assert set(run.in_flight["comm"].tolist()) <= set(run.communicators["comm"].tolist())
    assert run.job.world_size == 2
    assert run.collectives["bytes"].tolist() == [80] * 10
    assert "unfinished all_reduce #4" in run.stacks["text"][0]
    assert "train.py:64" in run.stacks["text"][1]


def test_dumps_alone_tell_who_did_not_come(tmp_path: Path) -> None:
    """Of a hang whose dumps are all there is the culprit is named, and no length of the wait is made up."""
    folder = unpacked(HUNG, tmp_path, lambda name: "nccl_trace_rank" in name)
    assert len(list(folder.iterdir())) == 4
    verdict = judge(load(folder)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))
    assert "(time not recorded)" in verdict.evidence[0]


@pytest.mark.parametrize(("after_s", "kind"), [(5.0, "insufficient_data"), (11.9, "insufficient_data"), (12.1, "hang")])
def test_what_was_open_for_as_long_as_its_time_out_had_stopped(tmp_path: Path, after_s: float, kind: str) -> None:
    """Torch writes dumps when an operation's time is out, soon after the newest entry: no job at work shows that."""
    for rank, entered in enumerate((6, 4)):
        dump = dump_of(entered, completed=4)
        for entry in dump["entries"]:
            entry["timeout_ms"] = 12_000
        write(tmp_path, rank, dump)
        at = 10**18 + 4 * 10**6 + round(after_s * 1e9)  # after the first open one was called
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", ns=(0, at))
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == (kind, (1,) if kind == "hang" else ())


@pytest.mark.parametrize(("after_s", "kind"), [(1, "insufficient_data"), (60, "hang")])
def test_dumps_written_at_once_are_of_a_job_at_work(tmp_path: Path, after_s: int, kind: str) -> None:
    """Operations are open at any moment of a healthy job: only where the dumps may be of later do they tell a stop."""
    for rank, entered in enumerate((6, 4)):
        write(tmp_path, rank, dump_of(entered, completed=4))
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", ns=(0, 10**18 + after_s * 10**9))
    assert judge(load(tmp_path)).verdicts[0].kind == kind


@pytest.mark.parametrize("entered", [(6, 6), (6,)], ids=["all are inside", "the other's dump is not here"])
def test_dumps_of_an_unknown_age_accuse_no_rank_without_proof(tmp_path: Path, entered: tuple[int, ...]) -> None:
    """What all have entered may be about to end, and one rank's word says nothing of another that left no dump."""
    for rank, count in enumerate(entered):
        write(tmp_path, rank, dump_of(count, completed=4))
    assert judge(load(tmp_path)).verdicts[0].kind == "insufficient_data"


def test_the_rank_that_left_no_dump_is_named_where_all_others_wait(tmp_path: Path) -> None:
    """The hung rank's process may be gone, or its file lost: who is not among those that wait is known all the same."""
    of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3))
    report = judge(load(tmp_path))
    verdict = report.verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))
    assert verdict.confidence == pytest.approx(0.6)
    assert verdict.evidence[0].endswith("all others entered it; rank 1 left no readable dump")
    assert of_verdict(report.to_dict()["verdicts"][0]).what == "rank 1, likely, did not arrive"
    assert verdict.advice[0].endswith("and whether it was gone")
    assert any("rank 1's file is missing" in note for note in report.notes)


def test_of_a_group_within_the_job_its_own_missing_member_is_named(tmp_path: Path) -> None:
    """Ranks 0 and 3, of which nothing is known either, are not in the group that waits."""
    of_group(tmp_path, "[1, 2, 4, 5]", (1, 4, 5))
    assert judge(load(tmp_path)).verdicts[0].ranks == (2,)


def test_of_several_ranks_without_a_dump_none_is_singled_out(tmp_path: Path) -> None:
    """One of them did not come, or both: that is unknown."""
    of_group(tmp_path, "[0, 1, 2, 3, 4]", (0, 2, 3))
    assert judge(load(tmp_path)).verdicts[0].kind == "insufficient_data"


def test_without_timing_no_duration_is_made_up(tmp_path: Path) -> None:
    """A dump without durations has none, and the report says what is unknown."""
    write(tmp_path, 0, dump_of(entered=2, completed=2))
    run = load(tmp_path)
    assert run.collectives["duration_ns"].tolist() == [-1, -1]
    assert any("how long collectives took" in note for note in run.notes)


def test_durations_are_read_where_timing_was_on(tmp_path: Path) -> None:
    """TORCH_NCCL_ENABLE_TIMING adds milliseconds."""
    dump = dump_of(entered=1, completed=1)
    dump["entries"][0]["duration_ms"] = 1.5
    write(tmp_path, 0, dump)
    assert load(tmp_path).collectives["duration_ns"].tolist() == [1_500_000]


def test_json_and_pickle_say_the_same(tmp_path: Path) -> None:
    """Both spellings of a dump give one run."""
    for kind in ("pickle", "json"):
        (tmp_path / kind).mkdir()
    dump = dump_of(entered=3, completed=1)
    write(tmp_path / "pickle", 0, dump)
    (tmp_path / "json" / "nccl_trace_rank_0.json").write_text(json.dumps(dump))
    first, second = load(tmp_path / "pickle"), load(tmp_path / "json")
    assert first.in_flight["seq"].tolist() == second.in_flight["seq"].tolist() == [1, 2]
    assert first.collectives["comm"].tolist() == second.collectives["comm"].tolist()


def test_stacks_of_processes_go_to_their_ranks(tmp_path: Path) -> None:
    """py-spy knows process ids; the profiler's CSV knows which rank a process is; a launcher is no rank."""
    for pid, rank in ((70, 1), (71, 0)):
        (tmp_path / f"prof.{pid}.csv").write_text(f"ab,{rank},0,AllReduce,8,RING,LL,1,1,2,3,4,5\n")
    for pid in (70, 71, 69):
        (tmp_path / f"pyspy.{pid}.txt").write_text(f'Process {pid}: python train.py\n\nThread {pid}: "MainThread"\n')
    run = load(tmp_path)
    assert run.stacks["rank"].tolist() == [1, 0]
    assert run.stacks["text"][0].startswith("Process 70")


def _entry(group: str, name: str, seq: int, second: int, *, done: bool) -> dict[str, Any]:
    p2p = "->" in name or "<-" in name
    return {
        "process_group": (group, "undefined"),
        "collective_seq_id": 0 if p2p else seq + 1,
        "p2p_seq_id": seq + 1 if p2p else 0,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 10**18 + second * 10**9,
        "state": "completed" if done else "scheduled",
        "is_p2p": p2p,
    }


def test_a_send_and_the_receive_that_it_waits_for_are_no_divergence(tmp_path: Path) -> None:
    """Behind the hung stage of one pipeline the other stands with a send and its receive open: one operation."""
    pipes, replicas = {"p": [0, 2], "q": [1, 3]}, {"a": [0, 1], "b": [2, 3]}
    waiting = {
        0: [("a", "all_reduce", 1), ("p", "send 0->1", 1)],
        1: [("q", "send 0->1", 1)],
        2: [("b", "all_reduce", 1), ("p", "recv 1<-0", 1)],
        3: [],
    }
    for rank, left in waiting.items():
        way = "send 0->1" if rank < 2 else "recv 1<-0"
        groups = {name: ranks for name, ranks in (pipes | replicas).items() if rank in ranks}
        done = [_entry(name, way if name in pipes else "all_reduce", 0, 0, done=True) for name in groups]
        entries = [*done, *(_entry(group, name, seq, 1, done=False) for group, name, seq in left)]
        config = {name: {"desc": "undefined", "ranks": str(ranks)} for name, ranks in groups.items()}
        write(tmp_path, rank, {"version": "2.10", "pg_config": config, "entries": entries})
    (tmp_path / "nvml.csv").write_text(f"t_ns,gpu,util\n{10**18},0,100\n{10**18 + 60 * 10**9},0,100\n")
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (3,), (0, 1, 2))
