"""NCCL Inspector's lines, terse and verbose."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.trace_files import MAX_LINE_BYTES
from hindmost_collector.report import columns
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME

from tests.collector.foreign_files import dump, entry, step_lines, write

WRITTEN_US = 1_795_225_915_000_000


def _line(rank: int, name: str, number: int, at: int, **more: Any) -> str:
    header = {"id": "0xd723b9a52ab1d2", "rank": rank, "n_ranks": 2, "nnodes": 1}
    metadata = {"dump_timestamp_us": WRITTEN_US + at, "hostname": f"n{rank}", "pid": 40 + rank}
    perf = {"coll": name, "coll_sn": number, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 250, **more}
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}) + "\n"


def _terse(folder: Path, missing: tuple[int, ...] = ()) -> None:
    """A broadcast, then eight all-reduces on each of two ranks; rank 1 misses some."""
    for rank in range(2):
        lines = [_line(rank, "Broadcast", 0, 0)]
        lines += [_line(rank, "AllReduce", n, 1000 * (n + 1)) for n in range(8) if rank == 0 or n not in missing]
        (folder / f"host-pid{40 + rank}.log").write_text("".join(lines))


def test_terse_lines_have_durations_and_no_starts(tmp_path: Path) -> None:
    """When an operation began was not measured, and a note says so."""
    _terse(tmp_path)
    run = load(tmp_path)
    assert (run.collectives["duration_ns"] == 250_000).all()
    assert (run.collectives["start_ns"] == -1).all()
    assert run.ranks["node"].tolist() == ["n0", "n1"]
    assert run.ranks["pid"].tolist() == [40, 41]
    assert any("no start times" in note for note in run.notes)


def test_missed_operations_leave_gaps_not_shifts(tmp_path: Path) -> None:
    """What one rank's Inspector missed does not move the numbers of what came after it."""
    _terse(tmp_path, missing=(2, 3))
    run = load(tmp_path)
    mine = run.collectives["rank"] == 1
    assert run.collectives["seq"][mine].tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert any("missed 2 of 18" in note for note in run.notes)


def test_verbose_lines_have_starts(tmp_path: Path) -> None:
    """The first channel's kernel start is the operation's: it runs on the GPU, asynchronously to the host's
    launches."""
    events = [{"channel_id": c, "kernel_start_ts": WRITTEN_US - 400 + c, "kernel_stop_ts": WRITTEN_US} for c in (1, 0)]
    trace = {"coll_start_ts": WRITTEN_US - 900, "coll_stop_ts": WRITTEN_US - 890, "kernel_events": events}
    for rank in range(2):
        line = _line(rank, "ReduceScatter", 7, 0, event_trace_ts=trace, event_trace_sn={"coll_start_sn": 1})
        (tmp_path / f"{rank}.log").write_text(line)
    run = load(tmp_path)
    assert run.collectives["start_ns"].tolist() == [(WRITTEN_US - 400) * 1000] * 2
    assert run.collectives["op"].tolist() == ["reduce_scatter"] * 2
    assert run.collectives["flags"].tolist() == [GPU_TIME] * 2
    assert not run.notes


def test_point_to_point_lines_have_peers(tmp_path: Path) -> None:
    """``p2p_perf`` names the peer; sends to one peer are numbered by themselves."""
    for rank, kind in ((0, "Send"), (1, "Recv")):
        line = json.loads(_line(rank, "x", 0, 0))
        del line["coll_perf"]
        perf = {"p2p": kind, "p2p_sn": 3, "p2p_peer": 1 - rank, "p2p_msg_size_bytes": 64, "p2p_exec_time_us": 9}
        (tmp_path / f"{rank}.log").write_text(json.dumps({**line, "p2p_perf": perf}) + "\n")
    run = load(tmp_path)
    assert run.collectives["op"].tolist() == ["send", "recv"]
    assert run.collectives["peer"].tolist() == [1, 0]
    assert run.collectives["bytes"].tolist() == [64, 64]


def test_torn_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    """Half a line, and one whose number is a word, cost only themselves."""
    _terse(tmp_path)
    torn = _line(0, "AllReduce", 8, 9000)
    with (tmp_path / "host-pid40.log").open("a") as out:
        out.write(torn.replace('"coll_sn": 8', '"coll_sn": "eight"') + torn[:80])
    run = load(tmp_path)
    assert int((run.collectives["rank"] == 0).sum()) == 9
    assert any("2 incomplete lines" in note for note in run.notes)


def test_flight_recorder_next_to_it_says_in_which_step(tmp_path: Path) -> None:
    """Inspector knows durations, the recorder when the host enqueued: together, an operation has its step."""
    _terse(tmp_path)
    for rank in range(2):
        names = ["nccl:broadcast", *8 * ["nccl:all_reduce"]]
        write(tmp_path, rank, dump([entry(seq, seq * 1000, profiling_name=name) for seq, name in enumerate(names)]))
        (tmp_path / f"steps.{rank}.jsonl").write_text(step_lines([1000, 5000], 3900, 1))
    run = load(tmp_path)
    mine = run.collectives["rank"] == 0
    assert run.collectives["step"][mine].tolist() == [-1, 0, 0, 0, 0, 1, 1, 1, 1]


def test_a_line_without_end_ends_in_one_line(tmp_path: Path) -> None:
    """A file that is one enormous line is refused by its length, not read into memory."""
    with (tmp_path / "host.log").open("w") as out:
        out.write(_line(0, "AllReduce", 0, 0))
        out.write('{"header":{"id":"' + "a" * (MAX_LINE_BYTES + 10))
    with pytest.raises(UsageError, match=r"host\.log: line 2 is longer than 4 MiB"):
        load(tmp_path)


def test_terse_lines_alone_name_a_late_rank(tmp_path: Path) -> None:
    """How long a step takes was not recorded, but its average is known from when the lines were written."""
    for rank in range(4):
        took = 200 if rank == 2 else 2200
        lines = [_line(rank, "AllReduce", n, 20_000 * n, coll_exec_time_us=took + n % 7) for n in range(60)]
        text = "".join(lines).replace('"n_ranks": 2', '"n_ranks": 4')
        (tmp_path / f"host-pid{40 + rank}.log").write_text(text)
    report = judge(load(tmp_path))
    assert report.job.step_ms["p50"] == pytest.approx(20.0)
    assert (report.verdicts[0].kind, report.verdicts[0].ranks) == ("straggler", (2,))


def test_durations_without_any_clock_are_not_called_balanced(tmp_path: Path) -> None:
    """If not even that is known, the last rank is reported, and that its weight is not known."""
    _terse(tmp_path)
    run = load(tmp_path)
    report = judge(replace(run, job=replace(run.job, pace_ns=None)))
    assert report.verdicts[0].kind == "insufficient_data"


def test_one_ranks_file_says_whose_it_is_and_of_how_many(tmp_path: Path) -> None:
    """The rank is the communicator's, not a count of files; the title, the reason and the remedy speak of the rest."""
    _terse(tmp_path)
    report = judge(load(tmp_path / "host-pid41.log")).to_dict()
    assert (report["job"]["world_size"], [row["rank"] for row in report["ranks"]]) == (2, [1])
    assert columns.title(report) == "hindmost · host-pid41.log · 1 of 2 ranks on 1 node"
    (verdict,) = report["verdicts"]
    assert verdict["evidence"] == ["one rank of 2 is recorded here: no other rank to compare it with"]
    assert verdict["advice"] == ["name the folder that holds the files of all ranks"]
    assert not any("order of process ids" in note for note in report["notes"])


@pytest.mark.parametrize("batch_us", [1, 500_000])
def test_the_pace_of_terse_lines_is_that_of_the_job(tmp_path: Path, batch_us: int) -> None:
    """NCCL 2.30 writes what has ended in half a second in one go; for the first batch the begin is unknown."""
    for rank in range(2):
        ended = [4000 * number for number in range(1000)]
        dumped = [(one // batch_us + 1) * batch_us + number % 125 for number, one in enumerate(ended)]
        lines = [_line(rank, "AllReduce", number, at) for number, at in enumerate(dumped)]
        (tmp_path / f"host-pid{40 + rank}.log").write_text("".join(lines))
    assert load(tmp_path).job.pace_ns == pytest.approx(4_000_000, rel=0.001)
