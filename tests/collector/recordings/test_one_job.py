"""Files that contradict each other are refused in one line: judged, they would clear or accuse ranks for nothing."""

import contextlib
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hindmost_collector
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hindmost.errors import UsageError
from hindmost_cli import main
from hindmost_collector.recordings import load as hindmost_run
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import run_directory, write
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge

from tests.collector.foreign_files import dump, entry, profiler_line, step_lines
from tests.commands import Says

BASE_NS = 1_790_857_026_000_000_123
MS = 1_000_000
MINUTE = 60_000 * MS
WORLD = 0xE9A550B719F82509


def _csv(rank: int, shift: int = 0, comm: int = WORLD) -> str:
    hosts = [BASE_NS + shift + seq * 10 * MS + rank for seq in range(40)]
    lines = (
        profiler_line(comm, rank, seq, "AllReduce", at, at + MS, at + 2 * MS, at + MS) for seq, at in enumerate(hosts)
    )
    return "".join(lines)


def _steps(rank: int, shift: int = 0, first: int = 0) -> str:
    return step_lines([BASE_NS + shift + number * 30 * MS + rank for number in range(40)], 29 * MS, first=first)


def _inspector(rank: int, shift: int = 0, comm: int = WORLD) -> str:
    header = {"id": f"{comm:#x}", "rank": rank, "n_ranks": 4}
    lines = []
    for number in range(40):
        metadata = {"dump_timestamp_us": (BASE_NS + shift) // 1000 + number, "hostname": "n", "pid": 100 + rank}
        perf = {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 8, "coll_exec_time_us": 5.0 + rank}
        lines.append(json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}) + "\n")
    return "".join(lines)


def _flight(rank: int, shift: int = 0) -> bytes:
    entries = [entry(seq, BASE_NS + shift + seq * MS + rank) for seq in range(20)]
    return pickle.dumps(dump(entries, **{"0": "[0, 1, 2, 3]"}), protocol=2)


def _kineto(rank: int, shift: int = 0, first: int = 7, size: int = 4) -> str:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{first + at}", "ts": at * 1000.0, "dur": 900.0}
        for at in range(3)
    ]
    info = {"rank": rank, "world_size": size}
    return json.dumps(
        {
            "schemaVersion": 1,
            "distributedInfo": info,
            "baseTimeNanoseconds": BASE_NS + shift + rank,
            "traceEvents": events,
        }
    )


#: What each format calls a rank's file, and what writes it.
FORMATS: dict[str, tuple[str, Callable[..., Any]]] = {
    "csv": ("prof.{}.csv", _csv),
    "steps": ("steps.{}.jsonl", _steps),
    "inspector": ("n-pid{}.log", _inspector),
    "flight": ("nccl_trace_rank_{}", _flight),
    "kineto": ("trace.{}.json", _kineto),
}


def _write(folder: Path, kind: str, called: int, *args: Any, **kwargs: Any) -> None:
    name, content = FORMATS[kind][0].format(called), FORMATS[kind][1](*args, **kwargs)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_one_job_are_one_run(tmp_path: Path, kind: str) -> None:
    """Each rank's own file, made at one time: nothing to refuse."""
    for rank in range(4):
        _write(tmp_path, kind, rank, rank)
    assert sorted(load(tmp_path).ranks["rank"].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_copy_under_another_rank_s_name_is_refused(tmp_path: Path, kind: str) -> None:
    """The copy would be a rank that is never later than its twin, and whose file it took the place of would be gone."""
    for called, rank in enumerate((0, 1, 2, 0)):
        _write(tmp_path, kind, called, rank)
    with pytest.raises(UsageError, match=r"the same, byte for byte|under two names|of one rank") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_rank_of_another_job_is_refused(tmp_path: Path, kind: str) -> None:
    """It worked in another communicator, or at another time."""
    for rank in range(3):
        _write(tmp_path, kind, rank, rank)
    other = {"comm": WORLD + 1} if kind in ("csv", "inspector") else {}
    _write(tmp_path, kind, 3, 3, shift=MINUTE, **other)
    with pytest.raises(UsageError, match=r"no communicator in common|begins 59 s after|begins 60 s after"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "inspector"])
def test_two_whole_jobs_are_separated_by_time(tmp_path: Path, kind: str) -> None:
    """Groups that no communicator joins may be a pipeline's stages, but not a minute apart."""
    for called in range(4):
        later = called >= 2
        rank = called if kind == "inspector" else called % 2
        _write(tmp_path, kind, called, rank, shift=MINUTE * later, comm=WORLD + later)
    with pytest.raises(UsageError, match=r"begins \d+ s after .* different jobs"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["csv", "inspector"])
def test_a_communicator_proves_one_job_whatever_the_clocks_say(tmp_path: Path, kind: str) -> None:
    """NCCL's number of a communicator is unique: a host's clock may be a minute off."""
    for rank in range(4):
        _write(tmp_path, kind, rank, rank, shift=MINUTE * (rank == 2))
    assert len(load(tmp_path).ranks["rank"]) == 4


@pytest.mark.parametrize("kind", ["steps", "kineto"])
def test_ranks_without_a_common_step_are_refused(tmp_path: Path, kind: str) -> None:
    """There is nothing to compare."""
    for rank in range(4):
        _write(tmp_path, kind, rank, rank, first=500 if rank == 1 else 7)
    with pytest.raises(UsageError, match="rank 1 has no step in common with any other"):
        load(tmp_path)


def test_two_processes_in_one_place_of_a_communicator_are_refused(tmp_path: Path) -> None:
    """Neither is a copy of the other, byte for byte, and both cannot be rank 1."""
    for called, rank in enumerate((0, 1, 1)):
        _write(tmp_path, "csv", called, rank, shift=called)
    with pytest.raises(UsageError, match=r"prof\.1\.csv and prof\.2\.csv are both rank 1 of communicator 0xe9a5"):
        load(tmp_path)


def test_step_files_of_one_rank_in_two_folders_are_refused(tmp_path: Path) -> None:
    """The one would silently take the place of the other."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        _write(tmp_path / name, "steps", 0, 0, shift=len(name))
    _write(tmp_path / "a", "steps", 1, 1)
    (tmp_path / "b" / "steps.0.jsonl").write_text(_steps(0, shift=77))
    with pytest.raises(UsageError, match="two files of one rank"):
        load(tmp_path)


def test_traces_of_jobs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    """The profiler writes how many ranks its job has."""
    for rank in range(2):
        _write(tmp_path, "kineto", rank, rank, size=4 * (rank + 1))
    with pytest.raises(UsageError, match="of jobs of 4 and 8 ranks"):
        load(tmp_path)


def test_formats_of_different_times_are_not_one_run(tmp_path: Path) -> None:
    """One job's operations are not in another's steps."""
    for rank in range(4):
        _write(tmp_path, "csv", rank, rank)
        _write(tmp_path, "steps", rank, rank, shift=MINUTE)
    with pytest.raises(UsageError, match=r"what the step times .* recorded begins 60 s after"):
        load(tmp_path)


def test_ranks_that_begin_their_only_step_at_one_ns_are_two(tmp_path: Path) -> None:
    """A job that hangs in its first step has one time a rank, which two may share by chance."""
    for rank in range(4):
        (tmp_path / f"steps.{rank}.jsonl").write_text(_steps(rank, shift=-rank).splitlines()[0])
    assert load(tmp_path).ranks["rank"].tolist() == [0, 1, 2, 3]


def _work(slow: bool) -> tuple[tuple[str, float], ...]:
    return (("forward-compute", 0.2 + 0.2 * slow), ("backward-compute", 0.3))


def _study(folder: Path, slow: int) -> None:
    """Traces of two jobs in the straggler study's columns: four workers, of which one may be slow."""
    for job, slowest in (("one", slow), ("two", -1)):
        rows = [
            {"dp_rank": dp, "stage": 0, "rank": dp, "step": step, "optype": op, "start_ts": at + step, "duration": took,
             "seq_id": at, "mc": 0, "mb_id": 0}
            for step in range(3)
            for dp in range(4)
            for at, (op, took) in enumerate(_work(dp == slowest))
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), folder / f"trace-{job}.parquet")


def test_each_trace_of_a_study_is_reported(tmp_path: Path, says: Says) -> None:
    """They are of jobs of their own, and the folder is what was published."""
    _study(tmp_path, slow=2)
    first, second = says(0, ["report", str(tmp_path)]).out.split("\n\n")
    assert first.startswith("hindmost · one · 4 ranks")
    assert second.startswith("hindmost · two · 4 ranks")


@pytest.mark.parametrize("kind", ["json", "csv", "html"])
def test_a_format_of_one_report_asks_which(tmp_path: Path, kind: str, says: Says) -> None:
    """Two JSON documents in a file are none."""
    _study(tmp_path, slow=2)
    said = says(2, ["report", "--format", kind, str(tmp_path)]).err
    assert said.count("\n") == 1
    assert (
        f"2 recordings of different jobs (trace-one.parquet, trace-two.parquet); name one for --format {kind}" in said
    )


def test_a_folder_of_runs_says_which_is_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``hindmost-runs`` is, whatever lies in the runs."""
    run = simulate(Scenario(4, 20)).run
    for name in ("a", "b"):
        write(run, tmp_path / name, "run")
    assert main(["report", str(tmp_path)]) == 2
    said = f"holds runs (2), each a recording; name one: `hindmost report {tmp_path / 'b'}`"
    assert f"{tmp_path}: {said}" in capsys.readouterr().err


def test_a_folder_of_the_hosts_of_one_job_is_that_job(tmp_path: Path) -> None:
    """One `hindmost run` on each host records its own ranks; `compare` takes such a folder for a run."""
    run = simulate(Scenario(4, 20)).run
    for host, ranks in (("a", (0, 1)), ("b", (2, 3))):
        tables = {
            name: chosen(table, np.isin(table["rank"], ranks))
            for name, table in run.tables().items()
            if "rank" in table
        }
        write(replace(run, **tables), tmp_path / host, "run")
    assert load(tmp_path).ranks["rank"].tolist() == [0, 1, 2, 3]


def test_where_run_was_typed_the_runs_below_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hindmost run` writes them into `hindmost-runs`; the logs of the ranks in there are no recording."""
    newest = tmp_path / "hindmost-runs" / "job"
    write(simulate(Scenario(4, 20)).run, newest, "run")
    (newest / "stacks.txt").write_text('Process 7: python\nThread 7 (active): "MainThread"\n    step (train.py:3)\n')
    assert main(["report", str(tmp_path)]) == 2
    said = "holds runs (1), each a recording; name one"
    assert capsys.readouterr().err == f"hindmost report: {tmp_path}: {said}: `hindmost report {newest}`\n"


def test_a_folder_of_archives_says_so(tmp_path: Path, says: Says) -> None:
    """An archive is a recording; several are several."""
    write(simulate(Scenario(4, 20)).run, tmp_path / "traces", "traces")
    for name in ("a", "b"):
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "traces", "traces")
    shutil.rmtree(tmp_path / "traces")
    (tmp_path / "README.md").write_text("# two\n")
    assert "holds archives (2), each a recording; name one: `hindmost report " in says(2, ["report", str(tmp_path)]).err
    (tmp_path / "over" / "inside").mkdir(parents=True)
    shutil.copy(tmp_path / "a.tar.gz", tmp_path / "over" / "inside")
    for one in (tmp_path / "a.tar.gz", tmp_path / "over"):  # a folder of one is that one, at whatever depth
        assert json.loads(says(0, ["report", "--format", "json", str(one)]).out)["job"]["world_size"] == 4


def test_a_file_that_cannot_be_read_is_reported_in_a_line(tmp_path: Path, says: Says) -> None:
    """A bad disk, or a network file system that has lost it."""
    (tmp_path / "prof.1.csv").symlink_to("/proc/self/mem")
    assert says(2, ["report", str(tmp_path)]).err.endswith("prof.1.csv: cannot be read (Input/output error)\n")


@pytest.mark.parametrize("early", ["nothing", "no ranks"])
def test_a_running_job_without_rows_yet_is_no_damaged_recording(tmp_path: Path, early: str) -> None:
    """Nothing of its folder is shown: it holds the job's credentials."""
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials/secret").write_text("do-not-show")
    if early == "no ranks":
        (tmp_path / "segments").mkdir()
    with contextlib.closing(ParquetStore(tmp_path, single=True)), pytest.raises(UsageError) as raised:
        load(tmp_path)
    assert "its job runs, and nothing is stored yet; wait a minute, or use the address of its page" in str(raised.value)


@pytest.mark.parametrize("part", ["report.html", "segments", "segments/ranks"])
def test_a_part_of_a_run_directory_names_the_directory(tmp_path: Path, part: str) -> None:
    """As one pastes the path that ``hindmost run`` prints last."""
    write(simulate(Scenario(2, 8)).run, tmp_path / "a", "run")
    (tmp_path / "a/report.html").write_text("<!doctype html>")
    with pytest.raises(UsageError, match=rf"{part}: a part of a run directory; give the run directory: {tmp_path}/a$"):
        load(tmp_path / "a" / part)


def test_a_question_over_several_jobs_says_so(tmp_path: Path, says: Says) -> None:
    """Unless it asks for the job."""
    for seed, name in enumerate(("a", "b")):
        write(simulate(Scenario(2, 8, seed)).run, tmp_path / name, "run")
    assert "over 2 jobs; for one: where job = '" in says(0, ["query", str(tmp_path), "select count(*) from ranks"]).err
    assert says(0, ["query", str(tmp_path), "select job, count(*) from ranks group by job"]).err == ""


def test_one_answer_is_printed_and_so_one_statement_taken(tmp_path: Path) -> None:
    """The first answer of two would be lost."""
    write(simulate(Scenario(2, 8)).run, tmp_path / "a", "run")
    with pytest.raises(UsageError, match="2 statements: give one"):
        hindmost_collector.open(tmp_path / "a").sql("select 1; select 2")


def _run(folder: Path) -> Path:
    (folder / "segments").mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"schema": "hindmost.run/1", "job_id": "j7", "command": "train"}))
    return folder


def test_a_run_directory_is_read_as_one(tmp_path: Path) -> None:
    """Named directly, or as the only folder in what was named, as an archive holds it."""
    _run(tmp_path / "deep" / "run")
    assert load(tmp_path / "deep" / "run").job.id == "j7"
    assert load(tmp_path / "deep").job.id == "j7"


def test_someone_else_s_meta_json_makes_no_run(tmp_path: Path) -> None:
    """Only our own schema counts; a file of the same name is nothing special."""
    (tmp_path / "meta.json").write_text('{"schema": "other/1"}')
    assert hindmost_run.find_run_directory(tmp_path) is None
    with pytest.raises(UsageError, match=r"found 1 of \.json"):
        load(tmp_path)


@pytest.mark.parametrize("slow", [None, 1, 6])
def test_half_of_a_job_s_ranks_do_not_clear_the_others(tmp_path: Path, slow: int | None) -> None:
    """Of 8 ranks 4 are in the directory: none is cleared without the rest, and the slow one is reported."""
    faults = () if slow is None else (Fault("compute", (slow,), 0.3),)
    run = simulate(Scenario(8, 60, faults=faults)).run
    half = {name: chosen(one, one["rank"] < 4) if "rank" in one else one for name, one in run.tables().items()}
    half["ranks"]["world_size"] = np.full(4, 8, np.int32)
    write(replace(run, **half), tmp_path, "run")
    (verdict,) = judge(load(tmp_path)).verdicts
    if slow == 1:
        assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    else:
        assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
        assert verdict.evidence[0].startswith(
            "no rank of the 4 recorded is late, but they may wait for ranks 4 to 7, not recorded"
        )


def test_times_that_no_job_has_are_left_out_and_counted(tmp_path: Path) -> None:
    """A step of 146 years, and calls of the year 2116, are an agent's nonsense: the rest is judged as without them."""
    run = simulate(Scenario(4, 60, faults=(Fault("compute", (1,), 0.3),))).run
    steps, calls = ({**one, "start_ns": one["start_ns"].copy()} for one in (run.steps, run.collectives))
    steps["duration_ns"] = np.where(np.arange(len(steps["step"])) == 5, 2**62, steps["duration_ns"])
    calls["start_ns"][[7, 9]] = 2**62, -(2**62)
    run_directory([replace(run, steps=steps, collectives=calls)], tmp_path)
    report = judge(load(tmp_path))
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("straggler", (1,))]
    assert (report.job.step_ms["mean"] or 0.0) < 10_000
    assert [note for note in report.notes if "left out" in note] == [
        "rows with times that no job has, a year long or after 2100, are left out: 1 of steps, 2 of collectives"
    ]
