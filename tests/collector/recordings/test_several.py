"""A folder is a run directory, or holds recordings: each is reported, or one line says how to name one."""

import contextlib
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

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
from hindmost_collector.simulate.write import write
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge


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


def test_each_trace_of_a_study_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are of jobs of their own, and the folder is what was published."""
    _study(tmp_path, slow=2)
    assert main(["report", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("hindmost · one · 4 ranks")
    assert second.startswith("hindmost · two · 4 ranks")


@pytest.mark.parametrize("kind", ["json", "csv", "html"])
def test_a_format_of_one_report_asks_which(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two JSON documents in a file are none."""
    _study(tmp_path, slow=2)
    assert main(["report", "--format", kind, str(tmp_path)]) == 2
    said = capsys.readouterr().err
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


def test_a_folder_of_archives_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive is a recording; several are several."""
    write(simulate(Scenario(4, 20)).run, tmp_path / "traces", "traces")
    for name in ("a", "b"):
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "traces", "traces")
    shutil.rmtree(tmp_path / "traces")
    (tmp_path / "README.md").write_text("# two\n")
    assert main(["report", str(tmp_path)]) == 2
    assert "holds archives (2), each a recording; name one: `hindmost report " in capsys.readouterr().err
    (tmp_path / "over" / "inside").mkdir(parents=True)
    shutil.copy(tmp_path / "a.tar.gz", tmp_path / "over" / "inside")
    for one in (tmp_path / "a.tar.gz", tmp_path / "over"):  # a folder of one is that one, at whatever depth
        assert main(["report", "--format", "json", str(one)]) == 0
        assert json.loads(capsys.readouterr().out)["job"]["world_size"] == 4


def test_a_file_that_cannot_be_read_is_reported_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad disk, or a network file system that has lost it."""
    (tmp_path / "prof.1.csv").symlink_to("/proc/self/mem")
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("prof.1.csv: cannot be read (Input/output error)\n")


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


def test_a_question_over_several_jobs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it asks for the job."""
    for seed, name in enumerate(("a", "b")):
        write(simulate(Scenario(2, 8, seed)).run, tmp_path / name, "run")
    assert main(["query", str(tmp_path), "select count(*) from ranks"]) == 0
    assert "over 2 jobs; for one: where job = '" in capsys.readouterr().err
    assert main(["query", str(tmp_path), "select job, count(*) from ranks group by job"]) == 0
    assert capsys.readouterr().err == ""


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
            "no rank of the 4 recorded is late, but they may wait for one of them: 4 other ranks are not recorded"
        )


def test_times_that_no_job_has_are_left_out_and_counted(tmp_path: Path) -> None:
    """A step of 146 years, and calls of the year 2116, are an agent's nonsense: the rest is judged as without them."""
    run = simulate(Scenario(4, 60, faults=(Fault("compute", (1,), 0.3),))).run
    steps, calls = ({**one, "start_ns": one["start_ns"].copy()} for one in (run.steps, run.collectives))
    steps["duration_ns"] = np.where(np.arange(len(steps["step"])) == 5, 2**62, steps["duration_ns"])
    calls["start_ns"][[7, 9]] = 2**62, -(2**62)
    write(replace(run, steps=steps, collectives=calls), tmp_path, "run")
    report = judge(load(tmp_path))
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("straggler", (1,))]
    assert (report.job.step_ms["mean"] or 0.0) < 10_000
    assert [note for note in report.notes if "left out" in note] == [
        "rows with times that no job has, a year long or after 2100, are left out: 1 of steps, 2 of collectives"
    ]
