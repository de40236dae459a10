"""Flight Recorder dumps of other formats than NCCL's newest: gloo's, older ones, those of a status alone."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.formats import flight_recorder
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.model import rows

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


def _first_format(entered: int, ended: int, *, members: bool) -> dict[str, Any]:
    """A dump of format 1: one number for all operations, groups by the process' own number, with members since 1.4."""
    fields = {
        "seq_id": lambda i: i + 1,
        "profiling_name": lambda _: "nccl:all_reduce",
        "state": lambda i: "completed" if i < ended else "scheduled",
        "time_discovered_started_ns": lambda _: None,
        "retired": lambda i: i < ended,
    }
    dump = {"version": "1.4" if members else "1.1", "entries": _entries(entered, **fields)}
    return {**dump, "pg_config": {0: [0, 1, 2, 3]}} if members else dump


def _stored(folder: Path, dumps: list[dict[str, Any]], *, after_s: int = 600, as_json: bool = False) -> Path:
    for rank, dump in enumerate(dumps):
        path = folder / f"comm_lib_trace_rank_{rank}{'.json' if as_json else ''}"
        path.write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2))
        os.utime(path, ns=(0, BEGIN_NS + after_s * 10**9))
    return folder


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
def test_what_gloo_has_retired_has_ended(tmp_path: Path, as_json: bool) -> None:
    """It stays scheduled for ever: gloo is not polled for an operation's progress."""
    _stored(tmp_path, [_gloo(20, 20) if rank == 1 else _gloo(21, 20) for rank in range(4)], as_json=as_json)
    run = load(tmp_path)
    assert run.in_flight["rank"].tolist() == [0, 2, 3]
    assert set(run.communicators["size"].tolist()) == {4}
    verdict = judge(run).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))


def test_what_the_watchdog_aborted_had_not_ended(tmp_path: Path) -> None:
    """It is retired like what ended; the last that its group completed came before it."""
    dump = _gloo(21, 21)
    dump["pg_status"]["0"]["last_completed_collective"] = 20
    for entry in dump["entries"]:
        entry["profiling_name"] = "nccl:all_reduce"
    _stored(tmp_path, [dump])
    assert load(tmp_path).in_flight["seq"].tolist() == [20]


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
    for rank, dump in enumerate(dumps):
        dump["pg_config"][1] = [0, 1] if rank < 2 else [2, 3]
        for entry in dump["entries"][2:]:
            entry["pg_id"] = 1
    run = load(_stored(tmp_path, dumps))
    assert sorted(set(run.communicators["size"].tolist())) == [2, 4]
    comms = [set(run.collectives["comm"][run.collectives["rank"] == rank].tolist()) for rank in range(4)]
    assert comms[0] == comms[1] != comms[2] == comms[3]


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
def test_a_status_without_operations_tells_who_did_not_come(tmp_path: Path, as_json: bool) -> None:
    """Dumps may be asked for without collectives: how many each rank enqueued and completed is in them all the same."""
    dumps = [_gloo(20, 20) if rank == 1 else _gloo(21, 20) for rank in range(4)]
    for dump in dumps:
        del dump["entries"]
        if as_json:  # numbers of a status are in quotes there
            dump["pg_status"]["0"] = {name: str(one) for name, one in dump["pg_status"]["0"].items()}
    verdict = judge(load(_stored(tmp_path, dumps, as_json=as_json))).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0, 2, 3))


@pytest.mark.parametrize("after_s", [0, 600])
def test_another_operation_at_one_number_is_reported_at_any_age(tmp_path: Path, after_s: int) -> None:
    """No moment of a job at work shows two operations where one was to be."""
    odd = _gloo(21, 20, last_name="gloo:broadcast")
    _stored(tmp_path, [odd if rank == 1 else _gloo(21, 20) for rank in range(4)], after_s=after_s)
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (1,), (0, 2, 3))


def test_operations_grouped_under_one_number_are_no_divergence(tmp_path: Path) -> None:
    """Of those that were begun together one rank may have one left, another both."""
    dumps = [_gloo(21, 20) for _ in range(4)]
    for rank, dump in enumerate(dumps):
        dump["entries"].append({**dump["entries"][-1], "profiling_name": "gloo:all_gather"})
        dump["entries"][-2]["state"] = "completed" if rank == 1 else "scheduled"
    assert judge(load(_stored(tmp_path, dumps))).verdicts[0].kind == "insufficient_data"


@pytest.mark.parametrize("after_s", [1, 8])
def test_a_job_at_work_is_not_said_to_hang(tmp_path: Path, after_s: int) -> None:
    """Looking up the lines of all calls took torch 8 s: the report lists what was open then, and that work looks
    alike."""
    _stored(tmp_path, [_gloo(20, 20) if rank == 2 else _gloo(21, 20) for rank in range(4)], after_s=after_s)
    (verdict,) = judge(load(tmp_path)).verdicts
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
    entry = b"}(" + b"".join(_text(name) + b"h\x28" for name in fields) + _text("state") + _text("scheduled") + b"u"
    config = b"}(" + _text("0") + b"}(" + _text("ranks") + b"h\x28" + b"uu"
    body = _text("pg_config") + config + _text("entries") + b"](" + entry + b"e"
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
    dump = _gloo(3, 2)
    for entry, odd in zip(dump["entries"], (10**30, -1, 1.5), strict=True):
        entry |= {"input_sizes": [[odd, odd]], "input_dtypes": ["Float"], "duration_ms": 1e300}
    dump["entries"][0]["time_created_ns"] = 10**25
    run = load(_stored(tmp_path, [dump]))
    assert run.collectives["bytes"].tolist() == [-1, -1, -1]
    assert run.collectives["duration_ns"].tolist() == [-1, -1, -1]
    assert run.collectives["start_ns"][0] == -1
