"""Flight Recorder dumps say who had not entered what, and cannot run anything."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.judge import judge
from hindmost_collector.report import headline
from hindmost_collector.sources import load
from hindmost_collector.sources.flight_recorder import MAX_DUMP_BYTES, plain_pickle

#: Four ranks of a real job of which rank 1 hung.
HUNG = Path(__file__).parents[2] / "fixtures" / "recordings" / "ddp-hang-rank1.tar.xz"


def _dump(entered: int, completed: int) -> dict[str, Any]:
    """A dump of a rank that entered so many all-reduces, of which so many completed."""
    entries = [
        {
            "frames": [{"name": "backward", "filename": "train.py", "line": 64}],
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq + 1,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 10**18 + seq * 10**6,
            "input_sizes": [[10, 4]],
            "input_dtypes": ["BFloat16"],
            "state": "completed" if seq < completed else "scheduled",
            "is_p2p": False,
        }
        for seq in range(entered)
    ]
    return {"version": "2.10", "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": entries}


def _write(folder: Path, rank: int, dump: dict[str, Any]) -> None:
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def test_unfinished_operations_are_in_flight(tmp_path: Path) -> None:
    """The rank that is absent from the lowest unfinished operation is the one that others wait for."""
    _write(tmp_path, 0, _dump(entered=6, completed=4))
    _write(tmp_path, 1, _dump(entered=4, completed=4))
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
    with tarfile.open(HUNG) as archive:
        dumps = {Path(one.name).name: archive.extractfile(one) for one in archive if "nccl_trace_rank" in one.name}
        for name, dump in dumps.items():
            assert dump is not None
            (tmp_path / name).write_bytes(dump.read())
    assert len(dumps) == 4
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))
    assert "for how long is not recorded" in verdict.evidence[0]


@pytest.mark.parametrize(("after_s", "kind"), [(5.0, "insufficient_data"), (11.9, "insufficient_data"), (12.1, "hang")])
def test_what_was_open_for_as_long_as_its_time_out_had_stopped(tmp_path: Path, after_s: float, kind: str) -> None:
    """Torch writes dumps when an operation's time is out, soon after the newest entry: no job at work shows that."""
    for rank, entered in enumerate((6, 4)):
        dump = _dump(entered, completed=4)
        for entry in dump["entries"]:
            entry["timeout_ms"] = 12_000
        _write(tmp_path, rank, dump)
        at = 10**18 + 4 * 10**6 + round(after_s * 1e9)  # after the first open one was called
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", ns=(0, at))
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == (kind, (1,) if kind == "hang" else ())


@pytest.mark.parametrize(("after_s", "kind"), [(1, "insufficient_data"), (60, "hang")])
def test_dumps_written_at_once_are_of_a_job_at_work(tmp_path: Path, after_s: int, kind: str) -> None:
    """Operations are open at any moment of a healthy job: only where the dumps may be of later do they tell a stop."""
    for rank, entered in enumerate((6, 4)):
        _write(tmp_path, rank, _dump(entered, completed=4))
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", ns=(0, 10**18 + after_s * 10**9))
    assert judge(load(tmp_path)).verdicts[0].kind == kind


def _waiting(folder: Path, name: str, sizes: list[int], *, left: int = 0, twice: bool = False) -> None:
    """Dumps, as pickles and JSON, of a group whose ranks called their sixth operation with tensors of these sizes.

    It is open for as long as its time-out; ``left``: on so many ranks it had ended. ``twice``: two have its number.
    """
    for rank, size in enumerate(sizes):
        dump = _dump(6, completed=6 if rank < left else 5)
        dump["pg_config"]["0"]["ranks"] = str(list(range(len(sizes))))
        dump["entries"][5] |= {"profiling_name": name, "input_sizes": [[size, 2]], "timeout_ms": 12_000}
        dump["entries"] += dump["entries"][5:] if twice else []
        for entry in dump["entries"]:
            entry["time_created_ns"] += rank
        _write(folder, rank, dump)
        if rank % 2:
            (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
        os.utime(folder / f"nccl_trace_rank_{rank}", ns=(0, 10**18 + 13 * 10**9))


@pytest.mark.parametrize("kind", ["all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast"])
def test_an_operation_of_another_size_is_another_operation(tmp_path: Path, kind: str) -> None:
    """What all must call with as much does not end: who gave another size than the rest is named, with both sizes."""
    _waiting(tmp_path, f"nccl:{kind}", [2048, 2048, 7, 2048])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (2,), (0, 1, 3))
    assert "(4,096 elements of BFloat16) number 5 of" in verdict.evidence[0]
    assert "(14 elements of BFloat16) there instead" in verdict.evidence[1]


@pytest.mark.parametrize(("sizes", "odd", "told"), [([8, 8, 7], 2, ()), ([8, 7], 0, ("rank 1",))])
def test_a_desync_quotes_the_line_of_the_odd_call(
    tmp_path: Path, sizes: list[int], odd: int, told: tuple[str, ...]
) -> None:
    """From where each rank called what the others did not, as its dump tells; of two ranks, from where either did."""
    _waiting(tmp_path, "nccl:all_reduce", sizes)
    for rank in range(len(sizes)):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        dump = json.loads(path.read_text()) if rank % 2 else pickle.loads(path.read_bytes())  # noqa: S301 - our own
        dump["entries"][5]["frames"] = [{"name": "step", "filename": "train.py", "line": 100 + rank}]
        path.write_text(json.dumps(dump))
        os.utime(path, ns=(0, 10**18 + 13 * 10**9))
    evidence = judge(load(tmp_path)).verdicts[0].evidence
    lines = [line for line in evidence if "called from step (train.py:" in line]
    assert [line.split(" entered")[0] for line in lines] == [f"rank {odd}", *told]
    assert lines[0].endswith(f"there instead, called from step (train.py:{100 + odd})")


@pytest.mark.parametrize("name", ["nccl:all_to_all", "nccl:all_gather", "nccl:reduce_scatter", "nccl:gather", "alike"])
def test_parts_of_unlike_sizes_are_one_operation(tmp_path: Path, name: str) -> None:
    """Of what each member may have a part of its own size the size accuses nobody; nor of what all called alike."""
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
    assert "for how long is not recorded" in verdict.evidence[0]


def test_of_as_many_sizes_as_ranks_nobody_is_named(tmp_path: Path) -> None:
    """One of two ranks called it with another size: which is wrong cannot be told."""
    _waiting(tmp_path, "nccl:_all_gather_base", [2048, 7])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", ())


@pytest.mark.parametrize(("left", "twice"), [(0, True), (2, False)], ids=["two of one number", "some have left it"])
def test_sizes_that_may_not_be_the_members_accuse_nobody(tmp_path: Path, left: int, twice: bool) -> None:
    """Which of two operations meets which is not known, nor what most gave by those alone who are still inside."""
    _waiting(tmp_path, "nccl:broadcast", [2048, 2048, 2048, 7, 7], left=left, twice=twice)
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("hang", ())


@pytest.mark.parametrize("entered", [(6, 6), (6,)], ids=["all are inside", "the other's dump is not here"])
def test_dumps_of_an_unknown_age_accuse_nobody_without_proof(tmp_path: Path, entered: tuple[int, ...]) -> None:
    """What all have entered may be about to end, and one rank's word says nothing of another that left no dump."""
    for rank, count in enumerate(entered):
        _write(tmp_path, rank, _dump(count, completed=4))
    assert judge(load(tmp_path)).verdicts[0].kind == "insufficient_data"


def _of_group(folder: Path, ranks: str, waiting: tuple[int, ...], **others: int) -> None:
    """Dumps of a group's ranks that wait in operation 4, and of others that entered so many."""
    for rank in (*waiting, *(int(name.removeprefix("r")) for name in others)):
        dump = _dump(others.get(f"r{rank}", 6), completed=4)
        dump["pg_config"]["0"]["ranks"] = ranks
        _write(folder, rank, dump)


def test_the_rank_that_left_no_dump_is_named_where_all_others_wait(tmp_path: Path) -> None:
    """The hung rank's process may be gone, or its file lost: who is not among those that wait is known all the same."""
    _of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3))
    report = judge(load(tmp_path))
    verdict = report.verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))
    assert verdict.confidence == pytest.approx(0.6)
    assert "all other members entered it, and rank 1 left no readable dump of what it had open" in verdict.evidence
    assert headline.verdict(report.to_dict()["verdicts"][0]) == (
        "the job hangs: likely rank 1 did not come, 3 ranks waiting"
    )
    assert verdict.advice[0].endswith("whether its process was gone: nothing of it is known")
    assert any("rank 1's file is missing" in note for note in report.notes)


def test_of_a_group_within_the_job_its_own_missing_member_is_named(tmp_path: Path) -> None:
    """Ranks 0 and 3, of which nothing is known either, are not in the group that waits."""
    _of_group(tmp_path, "[1, 2, 4, 5]", (1, 4, 5))
    assert judge(load(tmp_path)).verdicts[0].ranks == (2,)


def test_of_several_ranks_without_a_dump_none_is_singled_out(tmp_path: Path) -> None:
    """One of them did not come, or both: nobody knows."""
    _of_group(tmp_path, "[0, 1, 2, 3, 4]", (0, 2, 3))
    assert judge(load(tmp_path)).verdicts[0].kind == "insufficient_data"


def test_a_torn_dump_among_many_is_set_aside_and_said(tmp_path: Path) -> None:
    """The rest is judged: who was seen not to come is the culprit, not the one whose dump cannot be read."""
    _of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3), r1=4)
    whole = (tmp_path / "nccl_trace_rank_0").read_bytes()
    (tmp_path / "nccl_trace_rank_0").write_bytes(whole[: len(whole) // 2])
    report = judge(load(tmp_path))
    assert (report.verdicts[0].kind, report.verdicts[0].ranks) == ("hang", (1,))
    assert report.verdicts[0].confidence == pytest.approx(0.8)
    assert any(note.startswith("Left out: nccl_trace_rank_0: damaged, not read: ") for note in report.notes)


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_the_hung_rank_s_own_dump_may_be_the_torn_one(tmp_path: Path, kind: str) -> None:
    """Then it is named as one that left none."""
    _of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3))
    dump = pickle.dumps(_dump(4, 4)) if kind == "pickle" else json.dumps(_dump(4, 4)).encode()
    (tmp_path / "nccl_trace_rank_1").write_bytes(dump[:-60])
    assert judge(load(tmp_path)).verdicts[0].ranks == (1,)


def test_a_dump_lacking_beside_profiles_accuses_nobody_else(tmp_path: Path) -> None:
    """A rank whose dump is torn is in no operation that anybody saw: the rank whose dump says so is the culprit."""
    with tarfile.open(HUNG) as archive:
        for one in archive:
            content = archive.extractfile(one)
            if content is not None:
                (tmp_path / Path(one.name).name).write_bytes(content.read())
    dump = tmp_path / "nccl_trace_rank_0"
    dump.write_bytes(dump.read_bytes()[:3000])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (2, 3))


def test_without_timing_no_duration_is_made_up(tmp_path: Path) -> None:
    """A dump without durations has none, and the report is told what cannot be said."""
    _write(tmp_path, 0, _dump(entered=2, completed=2))
    run = load(tmp_path)
    assert run.collectives["duration_ns"].tolist() == [-1, -1]
    assert any("how long collectives took" in note for note in run.notes)


def test_durations_are_read_where_timing_was_on(tmp_path: Path) -> None:
    """TORCH_NCCL_ENABLE_TIMING adds milliseconds."""
    dump = _dump(entered=1, completed=1)
    dump["entries"][0]["duration_ms"] = 1.5
    _write(tmp_path, 0, dump)
    assert load(tmp_path).collectives["duration_ns"].tolist() == [1_500_000]


def test_json_and_pickle_say_the_same(tmp_path: Path) -> None:
    """Both spellings of a dump give one run."""
    for kind in ("pickle", "json"):
        (tmp_path / kind).mkdir()
    dump = _dump(entered=3, completed=1)
    _write(tmp_path / "pickle", 0, dump)
    (tmp_path / "json" / "nccl_trace_rank_0.json").write_text(json.dumps(dump))
    first, second = load(tmp_path / "pickle"), load(tmp_path / "json")
    assert first.in_flight["seq"].tolist() == second.in_flight["seq"].tolist() == [1, 2]
    assert first.collectives["comm"].tolist() == second.collectives["comm"].tolist()


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    "hostile",
    [
        pickle.dumps({"pg_config": _Bomb()}),
        pickle.dumps({"pg_config": _Bomb()}, protocol=0),
        b"\x80\x02}X\x09\x00\x00\x00pg_configr\xff\xff\xff\xff.",  # a memo of 2**32 places: 64 GiB
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00pg_config.",  # a string of a terabyte
        pickle.dumps(_dump(2, 1))[:-40],
        b"\x80\x02X\x09\x00\x00\x00pg_config.",
    ],
    ids=["calls", "calls in protocol 0", "memo bomb", "length bomb", "torn", "no dict"],
)
def test_a_hostile_dump_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: bytes) -> None:
    """Nothing in a dump is run, nothing it claims is believed; the error names the file."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(hostile)
    with pytest.raises(UsageError, match=r"nccl_trace_rank_0|understood are") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "pwned").exists()


def test_a_pickle_that_names_a_function_is_refused_before_it_is_read() -> None:
    """The look-through stops at the instruction, not at its effect."""
    with pytest.raises(pickle.UnpicklingError, match=r"STACK_GLOBAL|GLOBAL"):
        plain_pickle(pickle.dumps(_Bomb()))


def test_a_dump_that_cannot_be_one_is_not_read(tmp_path: Path) -> None:
    """A file of a size no recorder writes is refused by its size."""
    with (tmp_path / "nccl_trace_rank_0").open("wb") as out:
        out.write(pickle.dumps(_dump(1, 1)))
        out.truncate(MAX_DUMP_BYTES + 1)
    with pytest.raises(UsageError, match="larger than any"):
        load(tmp_path)


def test_stacks_of_processes_go_to_their_ranks(tmp_path: Path) -> None:
    """py-spy knows process ids; the profiler's CSV knows which rank a process is; a launcher is no rank."""
    for pid, rank in ((70, 1), (71, 0)):
        (tmp_path / f"prof.{pid}.csv").write_text(f"ab,{rank},0,AllReduce,8,RING,LL,1,1,2,3,4,5\n")
    for pid in (70, 71, 69):
        (tmp_path / f"pyspy.{pid}.txt").write_text(f'Process {pid}: python train.py\n\nThread {pid}: "MainThread"\n')
    run = load(tmp_path)
    assert run.stacks["rank"].tolist() == [1, 0]
    assert run.stacks["text"][0].startswith("Process 70")


def test_a_hostile_dump_among_others_is_named_and_not_left_out(tmp_path: Path) -> None:
    """A report on the rest would be one on fewer ranks, and nobody would know why."""
    _write(tmp_path, 0, _dump(2, 1))
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"version": "2.10", "entries": [_Bomb()]}))
    with pytest.raises(UsageError, match=r"nccl_trace_rank_1: hostile, not read: pickle instruction \w+ at"):
        load(tmp_path)


def test_a_file_that_holds_nothing_is_told_where_others_of_its_name_hold_something(tmp_path: Path) -> None:
    """An empty dump is not passed over in silence; what has another name is none of them."""
    for rank in (0, 1):
        _write(tmp_path, rank, _dump(2, 2 - rank))
    (tmp_path / "nccl_trace_rank_2").touch()
    (tmp_path / "manifest.json").write_text("{}")
    (note,) = [note for note in load(tmp_path).notes if "left out" in note]
    assert note == "nccl_trace_rank_2: left out, for it does not hold what the others of that name do."


@pytest.mark.parametrize("garbled", ["an opcode", "utf-8", "zeros", "no list"])
def test_a_garbled_dump_is_set_aside_too(tmp_path: Path, garbled: str) -> None:
    """What a disk did to it is no attack."""
    _of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3), r1=4)
    file = tmp_path / "nccl_trace_rank_0"
    data = file.read_bytes()
    half = len(data) // 2
    made = {
        "an opcode": data[:half] + b"\xa5" + data[half + 1 :],
        "utf-8": data.replace(b"backward", b"back\xd8ard"),
        "zeros": data[:half] + b"\0" * (len(data) - half),
        "no list": pickle.dumps({"pg_config": {}, "entries": "none"}, protocol=2),
    }
    file.write_bytes(made[garbled])
    report = judge(load(tmp_path))
    assert report.verdicts[0].ranks == (1,)
    assert any(note.startswith("Left out: nccl_trace_rank_0: ") for note in report.notes)


def test_dumps_that_are_all_damaged_leave_the_rest(tmp_path: Path) -> None:
    """Profiles and stacks beside them are judged, and it is said which files are lost."""
    for rank in range(2):
        _write(tmp_path, rank, _dump(2, 1))
        file = tmp_path / f"nccl_trace_rank_{rank}"
        file.write_bytes(file.read_bytes()[:-40])
        row = f"ab,{rank},0,AllReduce,8,RING,LL,1,1,2,3,4,5\n"
        (tmp_path / f"prof.{rank}.csv").write_text(row)
    run = load(tmp_path)
    assert run.job.source == "NCCL profiler CSV (prof.PID.csv)"
    (note,) = [note for note in run.notes if note.startswith("Left out: nccl_trace_rank_0: damaged")]
    assert note.endswith("; so is nccl_trace_rank_1.")


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
        _write(tmp_path, rank, {"version": "2.10", "pg_config": config, "entries": entries})
    (tmp_path / "nvml.csv").write_text(f"t_ns,gpu,util\n{10**18},0,100\n{10**18 + 60 * 10**9},0,100\n")
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (3,), (0, 1, 2))
