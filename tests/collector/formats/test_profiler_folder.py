"""A folder of profiler CSVs, step times and GPU samples is one run."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings.load import load
from hindmost_collector.report import columns
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME

MS = 1_000_000
STEP = 30 * MS
BEGIN = 1_790_857_026_000_000_000


def _record(folder: Path, ranks: tuple[int, ...] = (0, 1, 2), steps: int = 3) -> Path:
    """Processes 100, 101 … whose ranks are ``ranks``; two all-reduces and one broadcast a step, GPU clocks apart."""
    for index, rank in enumerate(ranks):
        offset = 700_000 * (rank + 1)
        operations = []
        for step in range(steps):
            for i, (name, seq) in enumerate(
                (("AllReduce", 2 * step), ("AllReduce", 2 * step + 1), ("Broadcast", step))
            ):
                host = 1_000_000_000 + step * STEP + (5 + i) * MS
                gpu = host + offset + MS
                operations.append(
                    f"e9a550b719f82509,{rank},{seq},{name},1024,RING,LL,1,{host},{host + 9},{gpu},{gpu + MS},{gpu}\n"
                )
        (folder / f"prof.{100 + index}.csv").write_text("".join(operations))
        with (folder / f"steps.{rank}.jsonl").open("w") as out:
            for step in range(steps):
                start = 1_000_000_000 + step * STEP
                times = {"t_start": start, "t_data": start + 2 * MS, "t_end": start + STEP - MS}
                out.write(json.dumps({"step": step, **times, "fwd_ms": 8.5, "bwd_ms": 17.25}) + "\n")
    return folder


def test_ranks_are_those_of_the_communicator_that_has_every_process(tmp_path: Path) -> None:
    """Process ids say nothing about ranks; the world communicator does."""
    run = load(_record(tmp_path, ranks=(2, 0, 1)))
    assert dict(zip(run.ranks["pid"].tolist(), run.ranks["rank"].tolist(), strict=True)) == {100: 2, 101: 0, 102: 1}
    assert run.job.world_size == 3
    assert set(run.communicators["size"].tolist()) == {3}
    assert set(run.communicators["comm"].tolist()) == set(run.collectives["comm"].tolist())


def test_sequence_numbers_count_all_functions_of_a_communicator(tmp_path: Path) -> None:
    """The file counts per function; a run counts per communicator, alike on all members."""
    run = load(_record(tmp_path))
    for rank in range(3):
        mine = run.collectives["rank"] == rank
        assert run.collectives["seq"][mine].tolist() == list(range(9))
        assert run.collectives["op"][mine][:3].tolist() == ["all_reduce", "all_reduce", "broadcast"]


def test_operations_belong_to_the_step_that_enqueued_them(tmp_path: Path) -> None:
    """GPU times are of another clock; the host's enqueue times say the step."""
    run = load(_record(tmp_path))
    mine = run.collectives["rank"] == 1
    assert run.collectives["step"][mine].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (run.collectives["flags"] == GPU_TIME).all()
    assert (run.collectives["duration_ns"] == MS).all()


def test_a_step_lasts_until_the_next_and_unmeasured_values_are_missing(tmp_path: Path) -> None:
    """The last step ends where its work was issued; an event that was not timed is -1."""
    run = load(_record(tmp_path))
    mine = run.steps["rank"] == 0
    assert run.steps["duration_ns"][mine].tolist() == [STEP, STEP, STEP - MS]
    assert (run.steps["input_ns"] == 2 * MS).all()
    assert (run.steps["gpu_forward_ns"] == 8_500_000).all()
    assert (run.steps["gpu_optimizer_ns"] == -1).all()
    assert (run.steps["h2d_ns"] == -1).all()


def _sampled(folder: Path, gpus: int) -> None:
    header = "t_ns,gpu,util,mem_util,power_mw,sm_mhz,mem_mhz,temp,reasons\n"
    samples = "".join(f"{10**9 + i},{i},50,1,112835,1980,3201,40,4\n" for i in range(gpus))
    (folder / "nvml.csv").write_text(header + samples)


def test_gpu_samples_join_ranks_of_which_one_is_missing(tmp_path: Path) -> None:
    """Ranks 0, 1 and 3 are of a job of four, on GPUs 0, 1 and 3: their clocks count in what slow computing costs."""
    _record(tmp_path, ranks=(0, 1, 3))
    _sampled(tmp_path, 4)
    assert load(tmp_path).ranks["gpu_uuid"].tolist() == ["gpu0", "gpu1", "gpu3"]


def test_gpu_samples_join_ranks_by_index(tmp_path: Path) -> None:
    """A file that knows GPUs by index only is joined where there are as many GPUs as ranks, and a note says so."""
    _record(tmp_path)
    _sampled(tmp_path, 3)
    run = load(tmp_path)
    assert run.ranks["gpu_uuid"].tolist() == ["gpu0", "gpu1", "gpu2"]
    power = run.metrics["value"][run.metrics["name"] == "hindmost_gpu_power_watts"]
    assert power == pytest.approx([112.835] * 3)
    assert any("assumed: rank i uses GPU i" in note for note in run.notes)


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    """A process that was killed while it wrote leaves half a line; everything else counts."""
    _record(tmp_path)
    whole = (tmp_path / "prof.100.csv").read_text()
    (tmp_path / "prof.100.csv").write_text(whole[:-60])
    run = load(tmp_path)
    assert int((run.collectives["rank"] == 0).sum()) == 8
    assert any("incomplete line" in note for note in run.notes)


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00\x93,\n", b'\xc3(\n"\xa0\xa1', bytes(range(256))])
def test_bytes_that_are_no_text_are_torn_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str], junk: bytes) -> None:
    """What a full disk or a crash left behind the last line costs that, and says nothing on stderr."""
    _record(tmp_path)
    whole = (tmp_path / "prof.100.csv").read_bytes()
    (tmp_path / "prof.100.csv").write_bytes(whole + junk)
    run = load(tmp_path)
    assert int((run.collectives["rank"] == 0).sum()) == 9
    assert any("incomplete line" in note for note in run.notes)
    assert capfd.readouterr() == ("", "")


def test_point_to_point_operations_count_per_peer(tmp_path: Path) -> None:
    """The file gives a peer in place of a sequence number; sends to one peer are numbered by themselves."""
    lines = {0: [(1, "Send"), (2, "Send"), (1, "Send")], 1: [(0, "Recv"), (0, "Recv")], 2: [(0, "Recv")]}
    for rank, operations in lines.items():
        rows = [
            f"ab,{rank},{peer},{name},8,P2P,,1,{10**9 + i},{10**9 + i},{10**9 + i},{10**9 + i + 5},0\n"
            for i, (peer, name) in enumerate(operations)
        ]
        (tmp_path / f"prof.{rank}.csv").write_text("".join(rows))
    run = load(tmp_path)
    sent = run.collectives["op"] == "send"
    assert run.collectives["peer"][sent].tolist() == [1, 2, 1]
    assert run.collectives["seq"][sent].tolist() == [0, 0, 1]
    assert run.collectives["peer"][~sent].tolist() == [0, 0, 0]


def test_an_archive_is_read_like_its_folder(tmp_path: Path) -> None:
    """The same recording packed gives the same run."""
    folder = tmp_path / "run"
    folder.mkdir()
    _record(folder)
    packed = tmp_path / "run.tar.xz"
    with tarfile.open(packed, "w:xz") as archive:
        archive.add(folder, "run")
    direct, through = load(folder), load(packed)
    for name, table in direct.tables().items():
        for column, values in table.items():
            assert np.array_equal(values, through.tables()[name][column]), (name, column)


def test_what_is_not_understood_is_named(tmp_path: Path) -> None:
    """The error says what was found, without what is in it, and what would be understood."""
    (tmp_path / "secret").write_text("hello\n")
    with pytest.raises(UsageError, match=r"found 1 of no suffix \(secret\); hindmost reads .*prof\.PID\.csv") as raised:
        load(tmp_path)
    assert "hello" not in str(raised.value)
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "nowhere")


def test_steps_of_a_rank_in_the_middle_do_not_say_how_many_there_are(tmp_path: Path) -> None:
    """``steps.2.jsonl`` alone is of one rank, not of three."""
    report = judge(load(_record(tmp_path) / "steps.2.jsonl")).to_dict()
    assert columns.title(report).split(" · ")[2] == "1 rank"


def test_samples_of_gpus_alone_are_reported_as_that(tmp_path: Path) -> None:
    """No advice to start a job that was recorded: what is missing is what its ranks did."""
    (tmp_path / "nvml.csv").write_text("t_ns,gpu,util\n1000,0,30\n")
    (verdict,) = judge(load(tmp_path / "nvml.csv")).to_dict()["verdicts"]
    assert verdict["evidence"] == ["GPU samples (nvml.csv) alone: no rank's collectives or steps"]
    assert verdict["advice"][0].startswith("add what the ranks recorded")


@pytest.mark.parametrize("without", ["null", "no key"])
def test_a_log_of_steps_may_lack_when_the_input_was_there(tmp_path: Path, without: str) -> None:
    """Input is unmeasured then; the rest of each line counts."""
    times: dict[str, Any] = {"fwd_ms": 9.0, "bwd_ms": 18.0, "opt_ms": 1.0}
    for rank in range(2):
        starts = [(step, BEGIN + step * STEP + rank) for step in range(4)]
        lines = [times | {"step": step, "t_start": at, "t_end": at + STEP - 1} for step, at in starts]
        lines = [line | ({"t_data": None} if without == "null" else {}) for line in lines]
        (tmp_path / f"steps.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = load(tmp_path)
    assert set(run.steps["input_ns"].tolist()) == {-1}
    assert set(run.steps["gpu_forward_ns"].tolist()) == {9_000_000}
    assert set(run.intervals["duration_ns"].tolist()) <= {-1}


def test_a_log_without_the_forward_clears_no_rank(tmp_path: Path) -> None:
    """A rank that is slow there looks as the others do in all that is logged."""
    for rank in range(4):
        lines = [
            {"step": step, "t_start": BEGIN + step * STEP, "t_data": BEGIN + step * STEP + 1000}
            | {"t_end": BEGIN + step * STEP + 29_000_000, "bwd_ms": 20.0, "opt_ms": 1.0}
            for step in range(60)
        ]
        (tmp_path / f"steps.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (verdict,) = judge(load(tmp_path)).verdicts
    assert verdict.kind == "insufficient_data"
