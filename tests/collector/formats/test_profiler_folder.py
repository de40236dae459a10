"""A folder of profiler CSVs, step times and GPU samples is one run, however its clocks and lines are off."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.formats import profiler_csv
from hindmost_collector.formats.profiler_csv import gpu_ahead
from hindmost_collector.recordings.load import load
from hindmost_collector.report import columns
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME

from tests.collector.foreign_files import profiler_line, step_lines

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
                operations.append(profiler_line(7, rank, seq, name, host, gpu, gpu + MS, gpu))
        (folder / f"prof.{100 + index}.csv").write_text("".join(operations))
        starts = [1_000_000_000 + step * STEP for step in range(steps)]
        lines = step_lines(starts, STEP - MS, 2 * MS, fwd_ms=8.5, bwd_ms=17.25)
        (folder / f"steps.{rank}.jsonl").write_text(lines)
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


@pytest.mark.parametrize(
    ("cut", "junk"),
    [(60, b""), *((0, junk) for junk in (b"\xff\xfe\x00\x93,\n", b'\xc3(\n"\xa0\xa1', bytes(range(256))))],
)
def test_a_torn_last_line_is_left_out_and_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cut: int, junk: bytes
) -> None:
    """A process that was killed while it wrote leaves half a line, a full disk or a crash what is no text: everything
    else counts, and nothing is said on stderr."""
    _record(tmp_path)
    whole = (tmp_path / "prof.100.csv").read_bytes()
    (tmp_path / "prof.100.csv").write_bytes(whole[: len(whole) - cut] + junk)
    run = load(tmp_path)
    assert int((run.collectives["rank"] == 0).sum()) == 9 - (cut > 0)
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


def test_a_file_that_is_no_recording_is_told_in_one_line(tmp_path: Path) -> None:
    """As a script given to `report`: what to give instead, and no list of formats."""
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(UsageError, match=r"train\.py: not a recording; give a run directory") as raised:
        load(tmp_path / "train.py")
    assert len(str(raised.value)) - len(str(tmp_path)) < 120


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
        starts = [BEGIN + step * STEP for step in range(60)]
        (tmp_path / f"steps.{rank}.jsonl").write_text(step_lines(starts, 29 * MS, 1000, bwd_ms=20.0, opt_ms=1.0))
    (verdict,) = judge(load(tmp_path)).verdicts
    assert verdict.kind == "insufficient_data"


@pytest.mark.parametrize("offset", [-20_000_000, 0, 700_000, 3_600_000_000_000])
def test_how_far_a_gpu_is_ahead_shows_where_an_end_was_logged_at_once(offset: int) -> None:
    """Whatever is logged later only seems to have ended earlier."""
    ended = np.arange(1, 9) * 1_000_000
    columns = {
        "enqueue": ended - 900_000,
        "stop": ended + offset,
        "logged": ended + np.array([50, 0, 9, 80, 7, 4, 3, 2]),
    }
    assert gpu_ahead(columns) == offset


def test_no_log_or_another_clock_shows_nothing() -> None:
    """What was logged before it was enqueued was not logged by that clock."""
    ended = np.arange(1, 9) * 1_000_000
    assert gpu_ahead({"enqueue": ended, "stop": ended + 5, "logged": np.zeros(8, np.int64)}) == 0
    assert gpu_ahead({name: np.empty(0, np.int64) for name in ("enqueue", "stop", "logged")}) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The traces of 4 ranks of which rank 2 computes longer."""
    write(simulate(Scenario(4, 40, faults=(Fault("compute", (2,), 0.2),))).run, tmp_path / "traces", "traces")
    return tmp_path / "traces"


@pytest.mark.parametrize("every", [7, 1])
def test_a_line_that_is_there_twice_counts_once(folder: Path, every: int) -> None:
    """Whether of a few lines or of all: an operation that seems to be run twice would part the ranks."""
    wanted = judge(load(folder)).to_dict()["verdicts"]
    for path in (*folder.glob("prof.*"), *folder.glob("steps.*")):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line * (2 if at % every == 0 else 1) for at, line in enumerate(lines)))
    assert judge(load(folder)).to_dict()["verdicts"] == wanted


def _set(path: Path, steps: list[int], **values: float) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for at in steps:
        rows[at] |= values
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_phase_that_took_no_time_in_a_few_steps_was_not_measured_there(folder: Path) -> None:
    """An optimizer that most steps do without takes none in those."""
    _set(folder / "steps.0.jsonl", [7, 20], fwd_ms=0.0)
    _set(folder / "steps.0.jsonl", [at for at in range(40) if at % 4], opt_ms=0.0)
    steps = load(folder).steps
    mine = {name: steps[name][steps["rank"] == 0] for name in ("gpu_forward_ns", "gpu_optimizer_ns")}
    assert np.flatnonzero(mine["gpu_forward_ns"] < 0).tolist() == [7, 20]
    assert np.count_nonzero(mine["gpu_optimizer_ns"] == 0) == 30


def test_phases_missing_in_a_few_steps_leave_the_cause(folder: Path) -> None:
    """A rank's longer computing is read from the steps that say how long it computed."""
    wanted = [(verdict.kind, verdict.ranks, verdict.cause) for verdict in judge(load(folder)).verdicts]
    for path in folder.glob("steps.*"):
        _set(path, [5, 13, 30], fwd_ms=0.0, bwd_ms=0.0)
    assert [(verdict.kind, verdict.ranks, verdict.cause) for verdict in judge(load(folder)).verdicts] == wanted


FOREIGN_STEP = 20 * MS
AHEAD = 3 * MS
FOREIGN_STEPS = 40


def _columns(*, late: int = 0, drift: int = 0, logged: int = 0) -> dict[str, Any]:
    """400 sends and 400 reductions, one of either a ms; the latter's times are from so many ns before their own, the
    GPU's clock gains so much a operation, and ends are logged so much later."""
    enqueue = BEGIN + np.arange(800) * MS
    reduces = np.arange(800) % 2 == 1
    ended = enqueue + MS // 2
    stop = ended + AHEAD + drift * np.arange(800) - np.where(reduces, late, 0)
    return {
        "comm": np.full(800, 7, np.uint64),
        "op": np.where(reduces, "all_reduce", "send"),
        "enqueue": enqueue,
        "start": stop - MS // 10,
        "stop": stop,
        "logged": ended + logged,
    }


def test_what_began_before_it_was_enqueued_has_the_times_of_another() -> None:
    """Nothing else is believed then, but what that belongs to is reported."""
    columns = _columns(late=5 * MS)
    found = profiler_csv.find_foreign([columns])
    assert found == {"all_reduce"}
    (note,) = profiler_csv.foreign_notes(found)
    assert note.startswith("How long all_reduce took is not known")


def test_of_all_files_where_it_is_in_one() -> None:
    """A comparison of ranks shows which is late for an operation."""
    assert profiler_csv.find_foreign([_columns(), _columns(late=5 * MS)]) == {"all_reduce"}


@pytest.mark.parametrize("columns", [_columns(), _columns(drift=1_000), _columns(drift=-1_000), _columns(logged=MS)])
def test_clocks_that_drift_and_late_logging_make_no_time_unbelievable(columns: dict[str, Any]) -> None:
    """A GPU's clock is some ms off its host's, and gains or loses."""
    assert not profiler_csv.find_foreign([columns])


def test_another_clock_shows_nothing() -> None:
    """What was logged before it was enqueued was not logged by that clock."""
    columns = {**_columns(late=5 * MS), "logged": np.zeros(800, np.int64)}
    assert not profiler_csv.find_foreign([columns])


@pytest.mark.parametrize("early", [0, 300 * MS])
def test_a_log_that_is_none_of_ends_tells_nothing(early: int) -> None:
    """Written when operations are enqueued, of a host that is far ahead of its GPU; of sends maybe long before."""
    columns = _columns(late=5 * MS)
    queued = 50 * MS * (1 + np.arange(800) % 7)
    columns = {**columns, "start": columns["start"] + queued, "stop": columns["stop"] + queued}
    columns["enqueue"] = columns["enqueue"] - np.where(columns["op"] == "send", early, 0)
    assert not profiler_csv.find_foreign([columns])


def _experts(folder: Path, *, untrue: bool) -> Path:
    """Four ranks that exchange with each other, then reduce; that seems to take all but rank 0 three steps."""
    for rank in range(4):
        lines = []
        for step in range(FOREIGN_STEPS):
            began = BEGIN + step * FOREIGN_STEP
            for i, peer in enumerate(one for one in range(4) if one != rank):
                host = began + (2 + i) * MS
                for name in ("Send", "Recv"):
                    gpu = host + AHEAD + MS // 2
                    lines.append(profiler_line(0x2E, rank, peer, name, host, gpu, gpu + 9, host + MS // 2))
            host = began + 9 * MS
            gpu = host + AHEAD
            begin = gpu - (3 * FOREIGN_STEP if rank else FOREIGN_STEP) if untrue else gpu
            lines.append(profiler_line(0x2E, rank, step, "AllReduce", host, begin, gpu + 9, host + MS))
        (folder / f"prof.{100 + rank}.csv").write_text("".join(lines))
        starts = [BEGIN + step * FOREIGN_STEP for step in range(FOREIGN_STEPS)]
        steps = step_lines(starts, FOREIGN_STEP - MS, fwd_ms=6.0, bwd_ms=11.0, opt_ms=2.0)
        (folder / f"steps.{rank}.jsonl").write_text(steps)
    return folder


def test_a_step_never_holds_more_than_itself(tmp_path: Path) -> None:
    """Reductions that seemed to take three steps made rank 0 the one that all ranks wait for."""
    report = judge(load(_experts(tmp_path, untrue=True)))
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("insufficient_data", ())]
    assert report.verdicts[0].evidence[0].startswith("6 sends and receives per step are inside phases")
    assert any(note.startswith("How long all_reduce took is not known") for note in report.notes)


def test_operations_without_times_remain_known(tmp_path: Path) -> None:
    """When the host enqueued them, and how many: a hang or a mismatch shows in that."""
    run = load(_experts(tmp_path, untrue=True))
    reduces = run.collectives["op"] == "all_reduce"
    assert int(reduces.sum()) == 4 * FOREIGN_STEPS
    assert (run.collectives["duration_ns"] == -1).all()
    assert (run.collectives["start_ns"] == run.collectives["enqueue_ns"]).all()
    assert not (run.collectives["flags"] & GPU_TIME).any()


def test_times_that_can_be_are_believed(tmp_path: Path) -> None:
    """Together with the same exchanges."""
    run = load(_experts(tmp_path, untrue=False))
    assert (run.collectives["duration_ns"] == 9).all()
    assert not any("took is not known" in note for note in run.notes)


def _pipeline(folder: Path, *, seed: int) -> Path:
    run = simulate(Scenario(4, 60, seed, "pp_dp", pipeline=2, step_ms=30)).run
    write(run, folder / "run", "traces")
    return folder / "run"


def test_of_a_pipeline_whose_reductions_have_other_times_no_rank_is_named(tmp_path: Path) -> None:
    """The last stage waits in them, and seemed to work meanwhile."""
    folder = _pipeline(tmp_path, seed=403)
    for path in folder.glob("prof.*.csv"):
        rows = [line.split(",") for line in path.read_text().splitlines()]
        for row in rows:
            if row[3] == "AllReduce":
                row[10:12] = (str(int(one) - 90 * MS) for one in row[10:12])
        path.write_text("".join(",".join(row) + "\n" for row in rows))
    assert not any(verdict.ranks for verdict in judge(load(folder)).verdicts)


def test_a_simulated_pipeline_has_its_own_times(tmp_path: Path) -> None:
    """They are logged when operations have ended."""
    folder = _pipeline(tmp_path, seed=1)
    run = load(folder)
    assert not any("took is not known" in note for note in run.notes)
    assert [verdict.kind for verdict in judge(run).verdicts] == ["balanced"]
