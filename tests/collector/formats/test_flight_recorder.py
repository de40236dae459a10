"""Flight Recorder dumps say who had not entered what, for how long, and with tensors of which sizes."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import operation
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict

from tests.collector.foreign_files import HUNG, dump, dump_of, entry, of_group, step_lines, write
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
        content = dump_of(entered, completed=4)
        for called in content["entries"]:
            called["timeout_ms"] = 12_000
        at = 10**18 + 4 * 10**6 + round(after_s * 1e9)  # after the first open one was called
        write(tmp_path, rank, content, at_ns=at)
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == (kind, (1,) if kind == "hang" else ())


@pytest.mark.parametrize(("after_s", "kind"), [(1, "insufficient_data"), (60, "hang")])
def test_dumps_written_at_once_are_of_a_job_at_work(tmp_path: Path, after_s: int, kind: str) -> None:
    """Operations are open at any moment of a healthy job: only where the dumps may be of later do they tell a stop."""
    for rank, entered in enumerate((6, 4)):
        write(tmp_path, rank, dump_of(entered, completed=4), at_ns=10**18 + after_s * 10**9)
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
    content = dump_of(entered=1, completed=1)
    content["entries"][0]["duration_ms"] = 1.5
    write(tmp_path, 0, content)
    assert load(tmp_path).collectives["duration_ns"].tolist() == [1_500_000]


def test_json_and_pickle_say_the_same(tmp_path: Path) -> None:
    """Both spellings of a dump give one run."""
    for kind in ("pickle", "json"):
        (tmp_path / kind).mkdir()
    content = dump_of(entered=3, completed=1)
    write(tmp_path / "pickle", 0, content)
    (tmp_path / "json" / "nccl_trace_rank_0.json").write_text(json.dumps(content))
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
    numbers = {"collective_seq_id": 0, "p2p_seq_id": seq + 1} if p2p else {}
    fields = {"process_group": (group, "undefined"), "profiling_name": f"nccl:{name}", "is_p2p": p2p, **numbers}
    return entry(seq, 10**18 + second * 10**9, ended=done, **fields)


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
        write(tmp_path, rank, dump(entries, **{name: str(ranks) for name, ranks in groups.items()}))
    (tmp_path / "nvml.csv").write_text(f"t_ns,gpu,util\n{10**18},0,100\n{10**18 + 60 * 10**9},0,100\n")
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (3,), (0, 1, 2))


def _waiting(folder: Path, name: str, sizes: list[int], *, left: int = 0, twice: bool = False) -> None:
    """Dumps, as pickles and JSON, of a group whose ranks called their sixth operation with tensors of these sizes.

    It is open for as long as its time-out; ``left``: on so many ranks it had ended. ``twice``: two have its number.
    """
    for rank, size in enumerate(sizes):
        content = dump_of(6, completed=6 if rank < left else 5)
        content["pg_config"]["0"]["ranks"] = str(list(range(len(sizes))))
        content["entries"][5] |= {"profiling_name": name, "input_sizes": [[size, 2]], "timeout_ms": 12_000}
        content["entries"] += content["entries"][5:] if twice else []
        for called in content["entries"]:
            called["time_created_ns"] += rank
        write(folder, rank, content, as_json=bool(rank % 2), at_ns=10**18 + 13 * 10**9)


@pytest.mark.parametrize("kind", ["all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast"])
def test_an_operation_of_another_size_is_another_operation(tmp_path: Path, kind: str) -> None:
    """What all must call with as much does not end: who gave another size than the rest is named, with both sizes."""
    _waiting(tmp_path, f"nccl:{kind}", [2048, 2048, 7, 2048])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (2,), (0, 1, 3))
    inside, others = (f"{operation(f'nccl:{kind}')} ({count} elements of BFloat16)" for count in ("14", "4,096"))
    assert verdict.evidence[0] == f"rank 2 is in {inside}, the others are in {others}"
    assert f"that {others} is number 5 of" in verdict.evidence[-1]


@pytest.mark.parametrize(("sizes", "odd", "others"), [([8, 8, 7], 2, ()), ([8, 7], 0, ("rank 1",))])
def test_a_desync_quotes_the_line_of_the_odd_call(
    tmp_path: Path, sizes: list[int], odd: int, others: tuple[str, ...]
) -> None:
    """From where each rank called what the others did not, as its dump tells; of two ranks, from where either did."""
    _waiting(tmp_path, "nccl:all_reduce", sizes)
    for rank in range(len(sizes)):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        content = json.loads(path.read_text()) if rank % 2 else pickle.loads(path.read_bytes())  # noqa: S301 - our own
        content["entries"][5]["frames"] = [{"name": "step", "filename": "train.py", "line": 100 + rank}]
        write(tmp_path, rank, content, as_json=True, at_ns=10**18 + 13 * 10**9)
    evidence = judge(load(tmp_path)).verdicts[0].evidence
    lines = [line for line in evidence if "called from train.py:" in line]
    assert [line.split(" entered")[0] for line in lines] == [f"rank {odd}", *others]
    assert lines[0].endswith(f"there, called from train.py:{100 + odd}, in step()")


@pytest.mark.parametrize("name", ["nccl:all_to_all", "nccl:all_gather", "nccl:reduce_scatter", "nccl:gather", "alike"])
def test_parts_of_unlike_sizes_are_one_operation(tmp_path: Path, name: str) -> None:
    """Where each member may have a part of its own size, the size accuses no rank; nor where all called alike."""
    _waiting(tmp_path, "nccl:all_reduce" if name == "alike" else name, [7, 7, 7 if name == "alike" else 2048, 7])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("hang", ())
    assert "elements" not in verdict.evidence[0]


def test_another_size_needs_no_length_of_the_wait(tmp_path: Path) -> None:
    """At no moment of a job at work do its ranks call one operation with unlike sizes."""
    _waiting(tmp_path, "nccl:_all_gather_base", [2048, 7, 2048])
    for rank in range(3):
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", ns=(0, 10**18 + 10**9))
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", (1,))
    assert any("(time not recorded)" in line for line in verdict.evidence)


def test_with_as_many_sizes_as_ranks_no_rank_is_named(tmp_path: Path) -> None:
    """One of two ranks called it with another size: which is wrong is unknown."""
    _waiting(tmp_path, "nccl:_all_gather_base", [2048, 7])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", ())


@pytest.mark.parametrize(("left", "twice"), [(0, True), (2, False)], ids=["two of one number", "some have left it"])
def test_sizes_that_may_not_be_the_members_accuse_no_rank(tmp_path: Path, left: int, twice: bool) -> None:
    """Which of two operations meets which is not known, nor what most gave by those alone who are still inside."""
    _waiting(tmp_path, "nccl:broadcast", [2048, 2048, 2048, 7, 7], left=left, twice=twice)
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("hang", ())


MS = 1_000_000
STOPPED, STEP = 1_795_000_000 * 10**9, 40 * MS


def _verdict(folder: Path, *, after_s: float = 6.0, until: int = STOPPED - 20 * MS, logs: int = 2) -> Verdict:
    """On dumps of all-reduces, of which 4 ended, written so long after the last, and logs until then."""
    for rank, entered in enumerate((6, 4)):
        entries = [entry(seq, STOPPED - (6 - seq) * MS, ended=seq < 4) for seq in range(entered)]
        write(folder, rank, dump(entries), as_json=True, at_ns=STOPPED + round(after_s * 1e9))
    for rank in range(logs):
        starts = [until - (60 - step) * STEP for step in range(60)]
        (folder / f"steps.{rank}.jsonl").write_text(step_lines(starts, STEP))
    return judge(load(folder)).verdicts[0]


def test_a_job_that_logs_no_step_while_dumps_are_written_has_stopped(tmp_path: Path) -> None:
    """The process lived until then, and made 150 steps in as much time before: who did not come is named."""
    verdict = _verdict(tmp_path)
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0,))
    assert "6.0 s" in verdict.evidence[0]


@pytest.mark.parametrize(
    "case",
    [{"until": STOPPED + 5_000 * MS}, {"until": STOPPED - 2_000 * MS}, {"logs": 1}, {"after_s": 1.5}],
    ids=["steps go on", "a log keeps steps back", "a rank has no log", "written at once"],
)
def test_what_was_open_for_a_moment_tells_no_stop(tmp_path: Path, case: dict[str, int]) -> None:
    """Operations are open at any moment of a job at work, and one without a log may be at work."""
    assert _verdict(tmp_path, **case).kind != "hang"


def _of_batch(name: str, number: int, state: str) -> dict[str, Any]:
    fields = {"collective_seq_id": 2, "p2p_seq_id": number, "state": state, "retired": state == "completed"}
    return entry(number, 10**18 + number * 10**7, profiling_name=f"nccl:{name}", is_p2p=name != "coalesced", **fields)


def _exchanges(folder: Path, state: str) -> None:
    """Two stages that exchanged a tensor both ways in each of 30 batches, of which the last is in this state."""
    for rank in (0, 1):
        entries = []
        for number in range(1, 31):
            entries += [
                _of_batch(f"{way}{1 - rank}", number, "scheduled") for way in (f"send {rank}->", f"recv {rank}<-")
            ]
            entries.append(_of_batch("coalesced", number, state if number == 30 else "completed"))
        write(folder, rank, dump(entries))
    samples = [f"{10**18 + second * 10**9},{gpu},100" for second in (0, 60) for gpu in (0, 1)]
    (folder / "nvml.csv").write_text("\n".join(["t_ns,gpu,util", *samples]) + "\n")


@pytest.mark.parametrize(("state", "left"), [("completed", 0), ("started", 6)])
def test_what_was_begun_together_is_open_while_all_of_it_is(tmp_path: Path, state: str, left: int) -> None:
    """The recorder notes only of the batch how far it has come: its sends stay scheduled for ever."""
    _exchanges(tmp_path, state)
    run = load(tmp_path)
    assert len(run.in_flight["rank"]) == left
    kinds = {verdict.kind for verdict in judge(run).verdicts}
    assert ("hang" in kinds) is (left > 0)
