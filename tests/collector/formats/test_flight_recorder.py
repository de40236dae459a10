"""Flight Recorder dumps say who had not entered what, for how long, and with tensors of which sizes."""

import json
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.formats import flight_recorder
from hindmost_collector.formats.flight_recorder import MAX_DUMP_BYTES, HostileError, plain_pickle
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import operation
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_judge.judge import judge
from hindmost_judge.model import rows
from hindmost_judge.verdict.schema import Verdict

from tests.collector.foreign_files import HUNG, dump, dump_of, entry, of_group, step_lines, write
from tests.recordings import unpacked


def accused(folder: Path) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """What the first verdict on a folder is, of whom, and who waited."""
    verdict = judge(load(folder)).verdicts[0]
    return verdict.kind, verdict.ranks, verdict.victims


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
    assert accused(tmp_path)[:2] == (kind, (1,) if kind == "hang" else ())


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
    assert accused(tmp_path) == ("hang", (3,), (0, 1, 2))


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
    """From where each rank called what the others did not, as its dump tells; of two ranks, from where either did:
    which of them is wrong is unknown."""
    _waiting(tmp_path, "nccl:all_reduce", sizes)
    for rank in range(len(sizes)):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        content = json.loads(path.read_text()) if rank % 2 else pickle.loads(path.read_bytes())  # noqa: S301 - our own
        content["entries"][5]["frames"] = [{"name": "step", "filename": "train.py", "line": 100 + rank}]
        write(tmp_path, rank, content, as_json=True, at_ns=10**18 + 13 * 10**9)
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", () if others else (odd,))
    lines = [line for line in verdict.evidence if "called from train.py:" in line]
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


@pytest.mark.parametrize(("left", "twice"), [(0, True), (2, False)], ids=["two of one number", "some have left it"])
def test_sizes_that_may_not_be_the_members_accuse_no_rank(tmp_path: Path, left: int, twice: bool) -> None:
    """Which of two operations meets which is not known, nor what most gave by those alone who are still inside."""
    _waiting(tmp_path, "nccl:broadcast", [2048, 2048, 2048, 7, 7], left=left, twice=twice)
    assert accused(tmp_path)[:2] == ("hang", ())


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
    assert verdict.waited_s == pytest.approx(6.0, abs=0.05)


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


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_the_hung_rank_s_own_dump_may_be_the_torn_one(tmp_path: Path, kind: str) -> None:
    """Then it is named as one that left none."""
    of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3))
    damaged = pickle.dumps(dump_of(4, 4)) if kind == "pickle" else json.dumps(dump_of(4, 4)).encode()
    (tmp_path / "nccl_trace_rank_1").write_bytes(damaged[:-60])
    assert judge(load(tmp_path)).verdicts[0].ranks == (1,)


def test_a_missing_dump_next_to_profiles_accuses_no_other_rank(tmp_path: Path) -> None:
    """A rank whose dump is torn is in no known operation: the rank whose dump says so is the culprit."""
    folder = unpacked(HUNG, tmp_path)
    damaged = folder / "nccl_trace_rank_0"
    damaged.write_bytes(damaged.read_bytes()[:3000])
    assert accused(folder) == ("hang", (1,), (2, 3))


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
        pickle.dumps(dump_of(2, 1))[:-40],
        b"\x80\x02X\x09\x00\x00\x00pg_config.",
    ],
    ids=["calls", "calls in protocol 0", "memo bomb", "length bomb", "torn", "no dict"],
)
def test_a_hostile_dump_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: bytes) -> None:
    """Nothing in a dump is run, nothing it claims is believed; the error names the file."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(hostile)
    with pytest.raises(UsageError, match=r"nccl_trace_rank_0|hindmost reads") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "name",
    "GLOBAL STACK_GLOBAL INST OBJ REDUCE BUILD NEWOBJ NEWOBJ_EX PERSID BINPERSID EXT1 EXT2 EXT4 NEXT_BUFFER".split(),
)
def test_no_instruction_that_names_or_calls_is_taken(name: str) -> None:
    """Wherever it stands, it is refused before any instruction runs."""
    (one,) = (one for one in pickletools.opcodes if one.name == name)
    values = pickle.dumps([1, 2.5, None, (3, "a")], protocol=2)[:-1]
    with pytest.raises(HostileError, match=f"instruction {name} at byte {len(values)},"):
        plain_pickle(values + one.code.encode("latin-1") + b"os\nsystem\n.")


def test_a_dump_that_cannot_be_one_is_not_read(tmp_path: Path) -> None:
    """A file of a size no recorder writes is refused by its size."""
    with (tmp_path / "nccl_trace_rank_0").open("wb") as out:
        out.write(pickle.dumps(dump_of(1, 1)))
        out.truncate(MAX_DUMP_BYTES + 1)
    with pytest.raises(UsageError, match="larger than any"):
        load(tmp_path)


def test_a_hostile_dump_among_others_is_named_and_not_left_out(tmp_path: Path) -> None:
    """A report on the rest would be one on fewer ranks, without a reason."""
    write(tmp_path, 0, dump_of(2, 1))
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"version": "2.10", "entries": [_Bomb()]}))
    with pytest.raises(UsageError, match=r"nccl_trace_rank_1: hostile, not read: pickle instruction \w+ at"):
        load(tmp_path)


def test_an_empty_file_is_reported_where_others_of_its_name_are_not(tmp_path: Path) -> None:
    """An empty dump is not passed over in silence; what has another name is none of them."""
    for rank in (0, 1):
        write(tmp_path, rank, dump_of(2, 2 - rank))
    (tmp_path / "nccl_trace_rank_2").touch()
    (tmp_path / "manifest.json").write_text("{}")
    (note,) = [note for note in load(tmp_path).notes if "left out" in note]
    assert note == "nccl_trace_rank_2: left out; not the format of the other files of that name."


@pytest.mark.parametrize("garbled", ["torn", "an opcode", "utf-8", "zeros", "no list"])
def test_a_damaged_dump_among_many_is_set_aside_and_said(tmp_path: Path, garbled: str) -> None:
    """The rest is judged: who was seen not to come is the culprit, not the one whose dump cannot be read. What a disk
    did to it is no attack."""
    of_group(tmp_path, "[0, 1, 2, 3]", (0, 2, 3), r1=4)
    file = tmp_path / "nccl_trace_rank_0"
    data = file.read_bytes()
    half = len(data) // 2
    made = {
        "torn": data[:half],
        "an opcode": data[:half] + b"\xa5" + data[half + 1 :],
        "utf-8": data.replace(b"backward", b"back\xd8ard"),
        "zeros": data[:half] + b"\0" * (len(data) - half),
        "no list": pickle.dumps({"pg_config": {}, "entries": "none"}, protocol=2),
    }
    file.write_bytes(made[garbled])
    report = judge(load(tmp_path))
    assert (report.verdicts[0].kind, report.verdicts[0].ranks) == ("hang", (1,))
    assert report.verdicts[0].confidence == pytest.approx(0.8)
    damaged = "damaged, not read: " if garbled == "torn" else ""
    assert any(note.startswith(f"Left out: nccl_trace_rank_0: {damaged}") for note in report.notes)


def test_dumps_that_are_all_damaged_leave_the_rest(tmp_path: Path) -> None:
    """Profiles and stacks next to them are judged, and the report says which files are lost."""
    for rank in range(2):
        write(tmp_path, rank, dump_of(2, 1))
        file = tmp_path / f"nccl_trace_rank_{rank}"
        file.write_bytes(file.read_bytes()[:-40])
        row = f"ab,{rank},0,AllReduce,8,RING,LL,1,1,2,3,4,5\n"
        (tmp_path / f"prof.{rank}.csv").write_text(row)
    run = load(tmp_path)
    assert run.job.source == "NCCL profiler CSV (prof.PID.csv)"
    (note,) = [note for note in run.notes if note.startswith("Left out: nccl_trace_rank_0: damaged")]
    assert note.endswith("; so is nccl_trace_rank_1")


BEGIN_NS = 1_790_857_026_000_000_000
RANKS = "[0, 1, 2, 3]"


def _entries(count: int, **fields: Any) -> list[dict[str, Any]]:
    """So many operations, as every format has them, and what this one has besides."""
    common = {"pg_id": 0, "time_created_ns": 0, "input_sizes": [[1000]], "frames": []}
    return [
        {**common, "time_created_ns": BEGIN_NS + i * 10**6, **{name: one(i) for name, one in fields.items()}}
        for i in range(count)
    ]


def _gloo(entered: int, ended: int, last_name: str = "gloo:all_reduce") -> dict[str, Any]:
    """A dump of gloo's, as torch 2.13 writes it: all is scheduled, what has ended is retired, the group has no name."""
    fields = {
        "process_group": lambda _: ("0", "default_pg"),
        "collective_seq_id": lambda i: i + 1,
        "profiling_name": lambda i: last_name if i == entered - 1 else "gloo:all_reduce",
        "state": lambda _: "scheduled",
        "retired": lambda i: i < ended,
        "is_p2p": lambda _: False,
    }
    status = {"last_enqueued_collective": entered, "last_started_collective": -1, "last_completed_collective": ended}
    config = {"": {"name": "", "desc": "", "ranks": RANKS}}
    return {"version": "2.10", "pg_config": config, "pg_status": {"0": status}, "entries": _entries(entered, **fields)}


def _without(late: int) -> list[dict[str, Any]]:
    """Four ranks' dumps, of which one has not entered what the others wait in."""
    return [_gloo(20 if rank == late else 21, 20) for rank in range(4)]


def _first_format(entered: int, ended: int, *, members: bool) -> dict[str, Any]:
    """A dump of format 1: one number for all operations, groups by the process' own number, with members since 1.4."""
    fields = {
        "seq_id": lambda i: i + 1,
        "profiling_name": lambda _: "nccl:all_reduce",
        "state": lambda i: "completed" if i < ended else "scheduled",
        "time_discovered_started_ns": lambda _: None,
        "retired": lambda i: i < ended,
    }
    made = {"version": "1.4" if members else "1.1", "entries": _entries(entered, **fields)}
    return {**made, "pg_config": {0: [0, 1, 2, 3]}} if members else made


def _stored(folder: Path, dumps: list[dict[str, Any]], *, after_s: int = 600, as_json: bool = False) -> Path:
    for rank, made in enumerate(dumps):
        path = folder / f"comm_lib_trace_rank_{rank}{'.json' if as_json else ''}"
        path.write_bytes(json.dumps(made).encode() if as_json else pickle.dumps(made, protocol=2))
        os.utime(path, ns=(0, BEGIN_NS + after_s * 10**9))
    return folder


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
def test_what_gloo_has_retired_has_ended(tmp_path: Path, as_json: bool) -> None:
    """It stays scheduled for ever: gloo is not polled for an operation's progress."""
    run = load(_stored(tmp_path, _without(1), as_json=as_json))
    assert run.in_flight["rank"].tolist() == [0, 2, 3]
    assert set(run.communicators["size"].tolist()) == {4}
    verdict = judge(run).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))


def test_what_the_watchdog_aborted_had_not_ended(tmp_path: Path) -> None:
    """It is retired like what ended; the last that its group completed came before it."""
    made = _gloo(21, 21)
    made["pg_status"]["0"]["last_completed_collective"] = 20
    for one in made["entries"]:
        one["profiling_name"] = "nccl:all_reduce"
    assert load(_stored(tmp_path, [made])).in_flight["seq"].tolist() == [20]


@pytest.mark.parametrize("members", [True, False], ids=["1.4", "1.1"])
def test_the_first_formats_tell_a_hang(tmp_path: Path, members: bool) -> None:
    """Of torch 2.2 and 2.3: the number is called otherwise, and groups have numbers, or not even members."""
    _stored(tmp_path, [_first_format(20 if rank == 1 else 21, 20, members=members) for rank in range(4)])
    run = load(tmp_path)
    assert set(run.in_flight["seq"].tolist()) == {20}
    verdict = judge(run).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))


def test_numbers_of_groups_are_each_process_own(tmp_path: Path) -> None:
    """In format 1 two ranks' group 1 are not one group unless their members are the same."""
    dumps = [_first_format(4, 4, members=True) for _ in range(4)]
    for rank, made in enumerate(dumps):
        made["pg_config"][1] = [0, 1] if rank < 2 else [2, 3]
        for one in made["entries"][2:]:
            one["pg_id"] = 1
    run = load(_stored(tmp_path, dumps))
    assert sorted(set(run.communicators["size"].tolist())) == [2, 4]
    comms = [set(run.collectives["comm"][run.collectives["rank"] == rank].tolist()) for rank in range(4)]
    assert comms[0] == comms[1] != comms[2] == comms[3]


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
def test_a_status_without_operations_tells_who_did_not_come(tmp_path: Path, as_json: bool) -> None:
    """Dumps may be asked for without collectives: how many each rank enqueued and completed is in them all the same."""
    dumps = _without(1)
    for made in dumps:
        del made["entries"]
        if as_json:  # numbers of a status are in quotes there
            made["pg_status"]["0"] = {name: str(one) for name, one in made["pg_status"]["0"].items()}
    verdict = judge(load(_stored(tmp_path, dumps, as_json=as_json))).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))


@pytest.mark.parametrize("after_s", [0, 600])
def test_another_operation_at_one_number_is_reported_at_any_age(tmp_path: Path, after_s: int) -> None:
    """No moment of a job at work shows two operations where one was to be."""
    dumps = [_gloo(21, 20, f"gloo:{'broadcast' if rank == 1 else 'all_reduce'}") for rank in range(4)]
    assert accused(_stored(tmp_path, dumps, after_s=after_s)) == ("desync", (1,), (0, 2, 3))


def test_operations_grouped_under_one_number_are_no_divergence(tmp_path: Path) -> None:
    """Of those that were begun together one rank may have one left, another both."""
    dumps = [_gloo(21, 20) for _ in range(4)]
    for rank, made in enumerate(dumps):
        made["entries"].append({**made["entries"][-1], "profiling_name": "gloo:all_gather"})
        made["entries"][-2]["state"] = "completed" if rank == 1 else "scheduled"
    assert judge(load(_stored(tmp_path, dumps))).verdicts[0].kind == "insufficient_data"


@pytest.mark.parametrize("after_s", [1, 8])
def test_a_job_at_work_is_not_said_to_hang(tmp_path: Path, after_s: int) -> None:
    """Looking up the lines of all calls took torch 8 s: the report lists what was open then, and that work looks
    alike."""
    (verdict,) = judge(load(_stored(tmp_path, _without(2), after_s=after_s))).verdicts
    assert verdict.kind == "insufficient_data"
    assert verdict.evidence[0].startswith("ranks 0, 1 and 3 are in all_reduce number 20, rank 2 not yet")
    assert "again" in verdict.advice[0]


def test_dumps_with_nothing_open_say_that_no_rank_waited(tmp_path: Path) -> None:
    """They were said to have no collective that repeats."""
    run = load(_stored(tmp_path, [_gloo(23, 23) for _ in range(4)]))
    assert rows(run.in_flight) == 0
    (verdict,) = judge(run).verdicts
    assert "have no open operation" in verdict.evidence[0]


def _text(words: str) -> bytes:
    return b"X" + len(words).to_bytes(4, "little") + words.encode()


def _of_pairs(depth: int) -> bytes:
    """Puts a list of two lists of two lists … on the stack: few bytes, and a text of 2**depth of them."""
    return b"]q\x00" + b"".join(b"(h%ch%clq%c" % (i, i, i + 1) for i in range(depth))


def test_lists_that_hold_themselves_many_times_are_no_names(tmp_path: Path) -> None:
    """A pickle of plain values may unfold to any size: no text is made of what is neither text nor number."""
    fields = ("process_group", "profiling_name", "input_sizes", "input_dtypes", "frames", "pg_id")
    one = b"}(" + b"".join(_text(name) + b"h\x28" for name in fields) + _text("state") + _text("scheduled") + b"u"
    config = b"}(" + _text("0") + b"}(" + _text("ranks") + b"h\x28" + b"uu"
    body = _text("pg_config") + config + _text("entries") + b"](" + one + b"e"
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02(" + _of_pairs(40) + b"1}(" + body + b"u.")
    run = load(tmp_path)
    assert run.in_flight["name"].tolist() == [""]
    assert rows(run.communicators) == 0


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
def test_a_dump_of_millions_of_values_is_not_unfolded(
    tmp_path: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty dict is a byte of a pickle, and a hundred of memory."""
    assert flight_recorder.MOST_VALUES == 6_000_000
    monkeypatch.setattr(flight_recorder, "MOST_VALUES", 60_000)
    count = 70_000
    pickled = b"\x80\x02}(" + _text("pg_config") + b"}" + _text("entries") + b"(" + b"}" * count + b"lu."
    text = b'{"pg_config": {}, "entries": [{}' + b",{}" * count + b"]}"
    (tmp_path / "nccl_trace_rank_0").write_bytes(text if as_json else pickled)
    with pytest.raises(UsageError, match="hostile, not read: more than 60,000 values"):
        load(tmp_path)


def test_numbers_that_no_tensor_and_no_time_has_are_unmeasured(tmp_path: Path) -> None:
    """They ended in a traceback."""
    made = _gloo(3, 2)
    for one, odd in zip(made["entries"], (10**30, -1, 1.5), strict=True):
        one |= {"input_sizes": [[odd, odd]], "input_dtypes": ["Float"], "duration_ms": 1e300}
    made["entries"][0]["time_created_ns"] = 10**25
    run = load(_stored(tmp_path, [made]))
    assert run.collectives["bytes"].tolist() == [-1, -1, -1]
    assert run.collectives["duration_ns"].tolist() == [-1, -1, -1]
    assert run.collectives["start_ns"][0] == -1
