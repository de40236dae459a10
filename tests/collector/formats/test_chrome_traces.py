"""Chrome traces: the PyTorch profiler's, one a rank, and Horovod's timeline."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings import trace_files
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.trace_files import MAX_VALUE_CHARACTERS, events
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, PROFILED

from tests.collector.foreign_files import step_lines

BASE_NS = 1_790_857_026_000_000_000
KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _complete(kind: str, name: str, at: float, took: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": took, "args": args}


def _trace(rank: int, earlier: int = 0) -> dict[str, Any]:
    """Steps 7 and 8 of 1 ms with two all-reduces each; ``earlier`` kernels were launched before the profiler began."""
    happened = [_complete("kernel", KERNEL, 10.0 + i, 1.0, correlation=900 + i) for i in range(earlier)]
    for step in (7, 8):
        begin = (step - 7) * 1000.0
        happened += [
            _complete("user_annotation", f"ProfilerStep#{step}", begin, 900.0),
            _complete("gpu_user_annotation", "DistributedDataParallel.forward", begin + 100, 200.0),
            _complete("gpu_user_annotation", "Optimizer.step#AdamW.step", begin + 700, 50.0),
            _complete("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin + 20, 30.0),
        ]
        for i in range(2):
            correlation = step * 10 + i
            happened += [
                _complete("kernel", KERNEL, begin + 950 + 200 * i, 5.0 + rank, correlation=correlation),
                _complete("cuda_driver", "cuLaunchKernelEx", begin + 400 + i, 2.0, correlation=correlation),
            ]
    info = {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    return {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": BASE_NS, "traceEvents": happened}


def _late(rank: int, steps: int) -> dict[str, Any]:
    """So many steps, in each of which rank 0 comes last to an all-reduce that rank 1 waits in."""
    trace = _trace(rank)
    happened = []
    for step in range(steps):
        begin, took = step * 1000.0, 5.0 if rank == 0 else 205.0
        happened += [
            _complete("user_annotation", f"ProfilerStep#{step}", begin, 900.0),
            _complete("kernel", KERNEL, begin + 900 - took, took, correlation=step + 1),
            _complete("cuda_driver", "cuLaunchKernelEx", begin + 400, 2.0, correlation=step + 1),
        ]
    return trace | {"traceEvents": happened}


def _write(folder: Path, name: str, trace: Any) -> Path:
    (folder / name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder / name


def test_nccl_kernels_are_collectives_of_the_step_that_launched_them(tmp_path: Path) -> None:
    """The kernel may run in a later step; both ranks number it alike though one trace began earlier."""
    _write(tmp_path, "a.json.gz", _trace(0, earlier=3))
    _write(tmp_path, "b.json.gz", _trace(1))
    run = load(tmp_path)
    for rank, took in ((0, 5000), (1, 6000)):
        mine = run.collectives["rank"] == rank
        assert run.collectives["step"][mine].tolist() == [7, 7, 8, 8]
        assert run.collectives["duration_ns"][mine].tolist() == [took] * 4
        assert run.collectives["seq"][mine].tolist() == run.collectives["seq"][:4].tolist()
    assert run.collectives["start_ns"][0] == BASE_NS + 950_000
    assert run.communicators["size"].tolist() == [2, 2]
    assert run.job.world_size == 2


def test_marked_phases_are_read_and_others_are_missing(tmp_path: Path) -> None:
    """Forward and optimizer are marked on the GPU, backward lies between, input is not marked."""
    _write(tmp_path, "a.json.gz", _trace(0))
    steps = load(tmp_path).steps
    assert steps["duration_ns"].tolist() == [1_000_000, 900_000]
    assert steps["gpu_forward_ns"].tolist() == [200_000] * 2
    assert steps["gpu_backward_ns"].tolist() == [400_000] * 2
    assert steps["gpu_optimizer_ns"].tolist() == [50_000] * 2
    assert steps["h2d_ns"].tolist() == [30_000] * 2
    assert steps["input_ns"].tolist() == [-1, -1]


def test_process_groups_and_sizes_of_newer_traces_are_read(tmp_path: Path) -> None:
    """A kernel that names its process group, element type and count belongs to that group."""
    trace = _trace(0)
    more = {"Process Group Name": "5", "Process Group Ranks": "[0, 2]", "In msg nelems": 8, "dtype": "BFloat16"}
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel":
            event["args"] |= more
    _write(tmp_path, "a.json.gz", trace)
    run = load(tmp_path)
    assert set(run.collectives["bytes"].tolist()) == {16}
    sizes = dict(zip(run.communicators["comm"].tolist(), run.communicators["size"].tolist(), strict=True))
    assert [sizes[comm] for comm in set(run.collectives["comm"].tolist())] == [2]


def test_a_trace_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    """A profiler that was killed leaves half an event; the steps before it count, and a note says so."""
    text = json.dumps(_trace(0))
    (tmp_path / "trace.0.json").write_text(text[: text.rindex("cuLaunchKernelEx")])
    run = load(tmp_path)
    assert run.collectives["step"].tolist() == [7, 7, 8]
    assert any("cut off" in note for note in run.notes)


def test_kernels_take_gpu_time(tmp_path: Path) -> None:
    """They run asynchronously to their host, so that they wait in place of it, and a step is as long as on the GPU."""
    _write(tmp_path, "a.json.gz", _trace(0))
    assert (load(tmp_path).collectives["flags"] == GPU_TIME).all()


def test_steps_that_a_profiler_disturbed_are_known_among_those_of_a_log(tmp_path: Path) -> None:
    """It warms up some steps before the first that it records, and the step after the last waits for its writing."""
    _write(tmp_path, "trace.0.json.gz", _trace(0))
    starts = [BASE_NS + (step - 10) * 1_000_000 for step in range(20)]
    (tmp_path / "steps.0.jsonl").write_text(step_lines(starts, 900_000, 1000))
    steps = load(tmp_path).steps
    assert steps["step"][steps["kind"] == PROFILED].tolist() == list(range(5, 13))
    assert set(steps["kind"].tolist()) == {"train", PROFILED}


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    """Two jobs in one folder are not one run."""
    for name in ("a.json.gz", "b.json.gz"):
        _write(tmp_path, name, _trace(0))
    with pytest.raises(UsageError, match=r"two .* of one rank"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"schemaVersion": 1, "traceEvents": [' + "[" * 200_000, "nested too deeply"),
        ('{"schemaVersion": 1, "traceEvents": [] "x" 5}', "is not JSON"),
        (
            '{"schemaVersion": 1, "traceEvents": [{"a": "' + "a" * (MAX_VALUE_CHARACTERS + (3 << 20)),
            "one value of more",
        ),
        ('{"schemaVersion": 1, "traceEvents": [' + " " * (3 << 20), "nothing but blanks"),
    ],
    ids=["deep", "no JSON", "one long value", "blanks"],
)
def test_a_hostile_trace_ends_in_one_line(tmp_path: Path, content: str, complaint: str) -> None:
    """Whatever is wrong with it, the file is named and nothing is read into memory whole."""
    (tmp_path / "trace.0.json").write_text(content)
    with pytest.raises(UsageError, match=complaint) as caught:
        load(tmp_path)
    assert "trace.0.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_gzip_bomb_is_refused_by_its_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that inflates many hundredfold is no trace: reading stops at the greatest ratio that traces reach."""
    monkeypatch.setattr(trace_files, "SMALL_BYTES", 1 << 20)
    bomb = b'{"schemaVersion": 1, "traceEvents": [' + b" " * 900_000 + b'{"ph": "M"},' * 100_000
    (tmp_path / "trace.0.json.gz").write_bytes(gzip.compress(bomb, 9))
    with pytest.raises(UsageError, match="times its size"):
        load(tmp_path)


def test_events_come_one_by_one_across_the_window(tmp_path: Path) -> None:
    """Whatever an event's length, none is lost or doubled where the window ends."""
    wanted = [{"ph": "X", "ts": i, "pad": "é" * (i * 37 % 4000)} for i in range(2500)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(wanted, ensure_ascii=False))
    rest: dict[str, Any] = {}
    assert list(events(path, rest)) == wanted
    assert not rest


def _horovod(folder: Path, late: int) -> Path:
    happened: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad"}}]
    for step in range(3):
        at = step * 1000
        happened.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": 1})
        ready = {rank: at + (400 if rank == late else 10) for rank in range(3)}
        happened += [{"ph": "X", "name": str(rank), "ts": when, "dur": 0, "pid": 1} for rank, when in ready.items()]
        happened += [
            {"ph": "E", "ts": at + 410, "pid": 1},
            {"ph": "B", "name": "ALLREDUCE", "ts": at + 420, "pid": 1},
            {"ph": "B", "name": "MPI_ALLREDUCE", "ts": at + 430, "pid": 1},
            {"ph": "E", "ts": at + 480, "pid": 1},
            {"ph": "E", "ts": at + 490, "pid": 1},
        ]
    text = json.dumps(happened)
    (folder / "timeline.json").write_text(text)
    return folder / "timeline.json"


def test_a_horovod_timeline_says_who_was_ready_last(tmp_path: Path) -> None:
    """From being ready until the negotiation's end a rank waited; the last one waited least."""
    run = load(_horovod(tmp_path, late=2))
    waited = {rank: set(run.collectives["duration_ns"][run.collectives["rank"] == rank].tolist()) for rank in range(3)}
    assert waited == {0: {400_000}, 1: {400_000}, 2: {10_000}}
    assert run.collectives["step"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert run.collectives["op"][0] == "all_reduce"
    assert any("is of rank 0" in note for note in run.notes)


def test_a_timeline_may_begin_with_nothing_but_cycles(tmp_path: Path) -> None:
    """With HOROVOD_TIMELINE_MARK_CYCLES a minute of start-up is thousands of them before the first tensor."""
    path = _horovod(tmp_path, late=1)
    cycles = [{"ph": "i", "name": "CYCLE_START", "ts": i, "s": "g"} for i in range(3000)]
    path.write_text(json.dumps(cycles + json.loads(path.read_text())))
    assert load(path).job.world_size == 3


def test_a_mark_of_a_rank_that_cannot_be_is_left_out_and_counted(tmp_path: Path) -> None:
    """One torn number made a job of ten million ranks of it, and the report took all memory."""
    path = _horovod(tmp_path, late=1)
    path.write_text(path.read_text().replace('"name": "2", "ts": 1010', '"name": "9999999", "ts": 1010'))
    run = load(path)
    assert run.job.world_size == 3
    assert "1 incomplete event of the timeline left out." in run.notes


def test_an_unfinished_timeline_is_read_to_where_it_ends(tmp_path: Path) -> None:
    """Horovod closes the array at a clean exit only."""
    path = _horovod(tmp_path, late=0)
    path.write_text(path.read_text()[:-30])
    run = load(path)
    assert run.job.world_size == 3
    assert any("cut off" in note for note in run.notes)


def test_a_few_profiled_steps_say_how_to_get_more_and_who_was_waited_for_so_far(tmp_path: Path) -> None:
    """Ten steps are needed for a name: the report says that in the profiler's own words."""
    for rank in range(2):
        _write(tmp_path, f"trace.{rank}.json.gz", _late(rank, 4))
    (verdict,) = judge(load(tmp_path)).verdicts
    assert verdict.kind == "insufficient_data"
    assert verdict.evidence[0].endswith("; others waited longest for rank 0 in 4 of them")
    assert verdict.advice == ("record 10 steps or more: `torch.profiler.schedule(wait=1, warmup=1, active=12)`",)


@pytest.mark.parametrize("torn", ['{"ph": "X", "name": "half', '{"ph": "X", "ts": 1, "dur": }', '"ph", {"ph"'])
def test_a_torn_event_costs_itself(tmp_path: Path, torn: str) -> None:
    """What follows it is read, and the note counts it."""
    trace = _trace(0)
    whole = json.dumps(trace)
    text = whole.replace('{"ph": "X", "cat": "gpu_memcpy"', torn + ', {"ph": "X", "cat": "gpu_memcpy"', 1)
    assert text != whole
    (tmp_path / "trace.0.json").write_text(text)
    run = load(tmp_path)
    assert len(run.collectives["rank"]) == 4
    assert any(note.startswith("trace.0.json: ") and "incomplete event" in note for note in run.notes)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """As editors on other systems leave it."""
    (tmp_path / "trace.0.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(_trace(0)).encode())
    assert len(load(tmp_path).collectives["rank"]) == 4


@pytest.mark.parametrize("odd", ["1" + "0" * 400, "1e300", "NaN", "-Infinity", '"7"', "null"])
def test_a_time_that_cannot_be_is_no_event(tmp_path: Path, odd: str) -> None:
    """Whatever stands there: that event alone is not counted."""
    text = json.dumps(_trace(0))
    (tmp_path / "trace.0.json").write_text(text.replace('"ts": 950.0', f'"ts": {odd}', 1))
    assert len(load(tmp_path).collectives["rank"]) == 3


OLD = {"kernel": "Kernel", "cuda_driver": "Runtime", "gpu_memcpy": "Memcpy", "user_annotation": "Operator"}


def _rewritten(trace: dict[str, Any], how: str) -> dict[str, Any]:
    """The trace as another program may have written it."""
    without = {key: value for key, value in trace.items() if key != "schemaVersion"}
    happened = trace["traceEvents"]
    return {
        "events first": {"traceEvents": happened, **trace},
        "sorted": {key: trace[key] for key in sorted(trace)},
        "long metadata first": {"metadata": ["x" * 1000] * 100, "traceEvents": happened, **trace},
        "no schema": without,
        "header last": {"traceEvents": happened, **without},
        "old categories": {
            **trace,
            "traceEvents": [one | {"cat": OLD.get(one["cat"], one["cat"])} for one in happened],
        },
    }[how]


@pytest.mark.parametrize(
    "how", ["events first", "sorted", "long metadata first", "no schema", "header last", "old categories"]
)
@pytest.mark.parametrize("indent", [None, 1])
def test_how_a_trace_was_written_changes_nothing(tmp_path: Path, how: str, indent: int | None) -> None:
    """What has read and written a trace puts its events or metadata first, as public traces show: all is read alike."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for rank in range(2):
        trace = _trace(rank)
        for traceevent in trace["traceEvents"]:
            if traceevent["cat"] == "kernel":  # a large group: a kernel lists its first ranks, and the header all
                traceevent["args"] |= {"Process Group Name": "0", "Process Group Ranks": "[0, ...]"}
        (tmp_path / f"a/{rank}.json").write_text(json.dumps(trace))
        (tmp_path / f"b/{rank}.json").write_text(json.dumps(_rewritten(trace, how), indent=indent))
    usual, other = load(tmp_path / "a").tables(), load(tmp_path / "b").tables()
    assert usual["communicators"]["size"].tolist() == [2, 2]
    for name, columns in usual.items():
        for column, values in columns.items():
            assert other[name][column].tolist() == values.tolist(), (name, column)


def test_an_array_of_events_is_a_trace(tmp_path: Path) -> None:
    """Only the events were written: the file's name says whose they are."""
    for rank in range(2):
        (tmp_path / f"trace.{rank}.json").write_text(json.dumps(_trace(rank)["traceEvents"]))
    run = load(tmp_path)
    assert (len(run.steps["rank"]), len(run.collectives["rank"])) == (4, 8)


def test_a_lone_process_without_collectives_is_rank_0(tmp_path: Path) -> None:
    """A profile of one process has no distributedInfo, and a name that gives no rank."""
    happened = [traceevent for traceevent in _trace(0)["traceEvents"] if traceevent["cat"] != "kernel"]
    (tmp_path / "profile.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": happened}))
    run = load(tmp_path)
    assert (run.ranks["rank"].tolist(), run.job.world_size) == ([0], 1)


def test_other_chrome_traces_are_not_taken_for_the_profilers(tmp_path: Path) -> None:
    """A browser's trace has the same frame and other categories."""
    event = {"ph": "X", "cat": "devtools.timeline", "name": "RunTask", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    (tmp_path / "trace.0.json").write_text(json.dumps({"traceEvents": [event] * 3000, "metadata": {}}))
    with pytest.raises(UsageError, match="hindmost reads"):
        load(tmp_path)


def test_what_stands_beside_the_events_is_not_kept(tmp_path: Path) -> None:
    """Memory stays bounded: of the other values those are kept that are wanted."""
    path = _write(tmp_path, "a.json.gz", {"metadata": {"a": 1}, "traceEvents": [], "distributedInfo": {"rank": 0}})
    rest: dict[str, Any] = {}
    assert list(events(path, rest, ("distributedInfo",))) == []
    assert rest == {"distributedInfo": {"rank": 0}}


RANKS, TENSORS, STEPS, LATE_US = 4, 6, 40, 900


def _operation(ready: dict[int, int], tensor: int) -> list[dict[str, Any]]:
    """One tensor's negotiation, which ends when the last rank is ready, and its operation of 200 us."""
    marks = [{"ph": "X", "name": str(rank), "ts": at, "dur": 0, "pid": tensor} for rank, at in ready.items()]
    end = max(ready.values()) + 15
    return [
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": min(ready.values()), "pid": tensor},
        *marks,
        {"ph": "E", "ts": end, "pid": tensor},
        {"ph": "B", "name": "ALLREDUCE", "ts": end + 5, "pid": tensor},
        {"ph": "E", "ts": end + 200, "pid": tensor},
    ]


def _timeline(path: Path, *, one_by_one: bool) -> Path:
    """Rank 2 begins each step later by ``LATE_US``; a tensor is ready each 300 us, or when the last is reduced."""
    happened, at = [], 0
    for _ in range(STEPS):
        late, begin = LATE_US, at + 8000
        for tensor in range(TENSORS):
            ready = {rank: begin + 10 * rank + (late if rank == 2 else 0) for rank in range(RANKS)}
            happened += _operation(ready, tensor)
            at = max(ready.values()) + 215
            begin, late = (at + 300, 0) if one_by_one else (begin + 300, late)
    path.write_text(json.dumps(happened))
    return path


@pytest.mark.parametrize("one_by_one", [False, True], ids=["overlapped", "one by one"])
def test_a_rank_is_late_once_a_step(tmp_path: Path, one_by_one: bool) -> None:
    """Where the others go on it is late for every operation by as much: six times that was not what it cost."""
    verdict = judge(load(_timeline(tmp_path / "timeline.json", one_by_one=one_by_one))).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("straggler", (2,))
    assert verdict.cost_ms_per_step == pytest.approx(LATE_US / 1000, rel=0.05)
