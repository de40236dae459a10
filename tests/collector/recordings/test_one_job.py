"""Files that contradict each other are refused in one line: judged, they would clear or accuse ranks for nothing."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings.load import load

from tests.collector.foreign_files import dump, entry, profiler_line, step_lines

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
