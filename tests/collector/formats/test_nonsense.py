"""A line that cannot be true, and a file that is damaged, cost themselves: it is said, and the rest is judged."""

import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.judge import judge
from hindmost_judge.model import UNMEASURED

pytestmark = pytest.mark.torture

HUGE = "9" * 27
BOUND = str(9 * 10**18)
COLUMNS = {"comm": 0, "rank": 1, "seq": 2, "count": 4, "enqueue": 8, "start": 10, "stop": 11}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of 4 ranks of which rank 2 computes longer."""
    made = tmp_path_factory.mktemp("whole") / "traces"
    write(simulate(Scenario(4, 40, faults=(Fault("compute", (2,), 0.2),))).run, made, "traces")
    return made


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return shutil.copytree(whole, tmp_path / "traces")


def _csv(folder: Path) -> Path:
    return min(folder.glob("prof.*.csv"))


def _with(path: Path, line: int, change: Callable[[str], str]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[line] = change(lines[line])
    path.write_text("".join(lines))


def _set(column: str, value: str) -> Callable[[str], str]:
    def changed(line: str) -> str:
        cells = line.split(",")
        cells[COLUMNS[column]] = value
        return ",".join(cells)

    return changed


@pytest.mark.parametrize("line", [0, 30])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        *((column, HUGE) for column in COLUMNS),
        *((column, "-5") for column in COLUMNS),
        *((column, BOUND) for column in ("enqueue", "start", "stop", "rank")),
        ("comm", "nonsense"),
        ("rank", "77"),
        ("enqueue", "12"),
        ("start", "12"),
        ("start", "1e18"),
        ("count", "NaN"),
    ],
)
def test_a_number_out_of_all_range_costs_its_row(folder: Path, line: int, column: str, value: str) -> None:
    """One row in thousands, and the report says which file had it."""
    _with(_csv(folder), line, _set(column, value))
    report = judge(load(folder))
    assert report.verdicts[0].ranks == (2,)
    (note,) = [note for note in report.notes if note.startswith(f"{_csv(folder).name}: 1 line that cannot be true")]
    assert note.endswith("left out.")


def test_a_profile_of_nothing_but_nonsense_is_left_out(folder: Path) -> None:
    """Its rank is missing then, and the steps tell of it."""
    path = _csv(folder)
    path.write_text("".join(_set("stop", "0")(line) for line in path.read_text().splitlines(keepends=True)))
    report = judge(load(folder))
    assert report.verdicts[0].ranks == (2,)
    assert any("cannot be true" in note for note in report.notes)
    assert any("rank 0's file is missing" in note for note in report.notes)


def test_nothing_but_nonsense_is_refused(folder: Path) -> None:
    """Where no line of any file can be true there is no recording."""
    for path in (*folder.glob("steps.*"), *folder.glob("nvml.csv")):
        path.unlink()
    for path in folder.glob("prof.*"):
        path.write_text("".join(_set("stop", "0")(line) for line in path.read_text().splitlines(keepends=True)))
    with pytest.raises(UsageError, match="no whole line"):
        load(folder)


@pytest.mark.parametrize("line", [0, 20])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", 10**30),
        ("step", 10**9),
        ("step", -3),
        ("t_start", 10**30),
        ("t_start", 12),
        ("t_end", 9 * 10**18),
        ("t_end", None),
        ("t_start", float("nan")),
        ("t_start", float("inf")),
    ],
)
def test_a_step_that_cannot_be_costs_its_line(folder: Path, line: int, key: str, value: object) -> None:
    """A log of the steps: numbers that no int64 holds, no clock shows, and no run reaches."""
    _with(folder / "steps.1.jsonl", line, lambda text: json.dumps(json.loads(text) | {key: value}) + "\n")
    report = judge(load(folder))
    assert report.verdicts[0].ranks == (2,)
    assert [note for note in report.notes if note.startswith("steps.1.jsonl: 1 ")]
    assert report.job.steps == 40


@pytest.mark.parametrize("value", [None, "long", [], "nan"])
@pytest.mark.parametrize("key", ["t_data", "fwd_ms", "bwd_ms", "opt_ms"])
def test_what_a_log_of_steps_need_not_have_may_be_null(folder: Path, key: str, value: object) -> None:
    """A loop without a GPU, or with no optimizer of its own, writes null: every step is read, and none is left out."""
    path = folder / "steps.1.jsonl"
    lines = [json.loads(line) | {key: value} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for other in (*folder.glob("prof.*"), *folder.glob("nvml.csv")):
        other.unlink()
    run = load(folder)
    mine = run.steps["rank"] == 1
    assert mine.sum() == len(lines)
    assert not [note for note in run.notes if "left out" in note.lower()]
    column = {
        "t_data": "input_ns",
        "fwd_ms": "gpu_forward_ns",
        "bwd_ms": "gpu_backward_ns",
        "opt_ms": "gpu_optimizer_ns",
    }
    assert (run.steps[column[key]][mine] == UNMEASURED).all()


def test_a_log_without_one_step_is_left_out(folder: Path) -> None:
    """The others' are read."""
    (folder / "steps.1.jsonl").write_text('{"step": "a", "t_start": 1, "t_end": 2}\n' * 3)
    report = judge(load(folder))
    assert report.verdicts[0].ranks == (2,)
    assert "Left out: steps.1.jsonl: no step in it can be read; is it whole?" in report.notes


def test_a_compressed_log_that_was_cut_is_read_up_to_there(folder: Path) -> None:
    """A gzip file without its end: half a line is torn, and the report says that the file ends early."""
    path = folder / "steps.1.jsonl"
    data = gzip.compress(path.read_bytes(), 1)
    path.unlink()
    (folder / "steps.1.jsonl.gz").write_bytes(data[: len(data) * 7 // 10])
    report = judge(load(folder))
    assert report.verdicts[0].ranks == (2,)
    assert any("rank 1's file ends at step" in note for note in report.notes)


@pytest.mark.parametrize(
    "line", ["x,0,1,1,1,1,1,1,0", f"{HUGE},0,1,1,1,1,1,1,0", "12,0,1,1,1,1,1,1,0", f"1,{HUGE},1,1,1,1,1,1,0", "1,0"]
)
def test_a_sample_that_cannot_be_costs_its_line(folder: Path, line: str) -> None:
    """GPU samples in addition: a torn one refuses nothing."""
    header = "t_ns,gpu,util,mem_util,power_mw,sm_mhz,mem_mhz,temp,reasons\n"
    began = json.loads((folder / "steps.0.jsonl").read_text().splitlines()[0])["t_start"]
    samples = "".join(f"{began + i * 10**8},{gpu},50,1,112835,1980,3201,40,4\n" for i in range(5) for gpu in range(4))
    (folder / "nvml.csv").write_text(f"{header}{samples}{line}\n")
    report = judge(load(folder))
    assert report.verdicts[0].ranks == (2,)
    assert "nvml.csv: 1 incomplete line left out." in report.notes


def test_samples_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    """As a spreadsheet writes them."""
    file = folder / "nvml.csv"
    file.write_bytes(b"\xef\xbb\xbft_ns,gpu,util\r\n1795225661000000000,0,50\r\n")
    assert load(file).metrics["value"].tolist() == [0.5]


def test_a_value_that_is_no_number_is_missing(folder: Path) -> None:
    """The sample's other values stand."""
    (folder / "nvml.csv").write_text("t_ns,gpu,util,temp\n1000,0,broken,40\n1001,0,50,41\n")
    for path in (*folder.glob("prof.*"), *folder.glob("steps.*")):
        path.unlink()
    metrics = load(folder).metrics
    assert dict(zip(*(metrics[name].tolist() for name in ("time_ns", "value")), strict=True))[1000] == 40
    assert len(metrics["value"]) == 3


def _inspector(one: int, number: int, **changes: object) -> str:
    header: dict[str, object] = {"id": "0xab", "rank": one, "n_ranks": 4}
    header |= {name: value for name, value in changes.items() if name in header}
    metadata = {"dump_timestamp_us": 1_790_000_000_000_000 + number, "hostname": "n", "pid": 100 + one}
    perf: dict[str, object] = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": 8,
        "coll_exec_time_us": 5.0 + one,
    }
    perf |= {name: value for name, value in changes.items() if name in perf}
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}) + "\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "nonsense"},
        {"rank": 77},
        {"rank": -3},
        {"n_ranks": 2_000_000_000},
        {"coll_sn": -4},
        {"coll_sn": 10**30},
        {"coll_exec_time_us": 1e300},
    ],
)
def test_a_line_of_inspector_that_cannot_be_costs_itself(tmp_path: Path, changes: dict[str, object]) -> None:
    """Also a number of ranks that no job has, which would be believed of all."""
    for rank in range(4):
        lines = [_inspector(rank, number) for number in range(30)]
        if rank == 1:
            lines[3] = _inspector(rank, 3, **changes)
        (tmp_path / f"n-pid{100 + rank}.log").write_text("".join(lines))
    run = load(tmp_path)
    assert run.job.world_size == 4
    assert sorted(set(run.collectives["rank"].tolist())) == [0, 1, 2, 3]
    assert len(run.collectives["rank"]) == 119
    assert any("left out" in note for note in run.notes)


def test_lines_that_differ_between_files_make_no_file_short(folder: Path) -> None:
    """Each file lacks another line: what no other rank numbers alike is no end of the recording."""
    for at, path in enumerate(sorted(folder.glob("prof.*.csv"))):
        lines = path.read_text().splitlines(keepends=True)
        del lines[100 + 20 * at]
        path.write_text("".join(lines))
    for path in folder.glob("steps.*"):
        path.unlink()
    report = judge(load(folder))
    assert report.verdicts[0].ranks == (2,)
    assert not [note for note in report.notes if "file ends" in note]


@pytest.mark.parametrize("value", ["1e308", "-1e308", "99999999999999999999", "-5.0"])
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # of earlier tests
def test_a_gpu_time_that_cannot_be_is_not_measured(folder: Path, value: str) -> None:
    """One phase of one step goes, without a word of arithmetic; the step and the verdict stay."""
    path = folder / "steps.0.jsonl"
    _with(path, 4, lambda line: json.dumps({**json.loads(line), "fwd_ms": 7e7}).replace("70000000.0", value) + "\n")
    run = load(folder)
    assert run.steps["gpu_forward_ns"][(run.steps["rank"] == 0) & (run.steps["step"] == 4)] == -1
    assert judge(run).verdicts[0].ranks == (2,)


def test_steps_that_end_before_they_begin_are_refused(tmp_path: Path) -> None:
    """In one line, which names the file."""
    lines = [json.dumps({"step": step, "t_start": 100 - step, "t_end": 5}) for step in range(50)]
    (tmp_path / "steps.0.jsonl").write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"steps\.0\.jsonl: no step in it can be true"):
        load(tmp_path)


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_every_file_of_a_trace_folder_may_be_compressed(
    tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    """GPU samples and Flight Recorder dumps too: what is judged is the same."""
    hung, run = tmp_path / "hung", simulate(Scenario(4, 40, faults=(Fault("hang", (1,), onset=20),))).run
    write(run, hung, "traces")
    began = int(run.steps["start_ns"].min())
    (hung / "nvml.csv").write_text("t_ns,gpu,util\n" + "".join(f"{began + at},0,{at}\n" for at in range(9)))
    as_they_were = judge(load(hung)).to_dict()["verdicts"]
    for path in list(hung.iterdir()):
        path.with_name(path.name + ending).write_bytes(compress(path.read_bytes()))
        path.unlink()
    assert as_they_were[0]["kind"] == "hang"
    assert judge(load(hung)).to_dict()["verdicts"] == as_they_were
    assert len(load(hung).metrics["value"]) == 9


@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # of earlier tests
def test_a_pipeline_that_hangs_in_its_first_step_hangs(tmp_path: Path) -> None:
    """One step is enough for that, and too little for all checks that need several, which do not run."""
    scenario = Scenario(4, 40, layout="pp_dp", pipeline=2, faults=(Fault("hang", (2,), onset=1),))
    write(simulate(scenario).run, tmp_path / "hung", "traces")
    assert [(verdict.kind, verdict.ranks) for verdict in judge(load(tmp_path / "hung")).verdicts] == [("hang", (2,))]
