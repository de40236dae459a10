"""What PyTorch profiler traces say: of DDP on GPUs, CPU collectives, graphs, cycles, groups, input."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.formats.kineto import before_copies
from hindmost_collector.recordings import trace_files
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.rank_mapping import rank_in_name
from hindmost_collector.recordings.trace_files import MAX_VALUE_CHARACTERS, events
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, PROFILED, rows

from tests.collector.foreign_files import step_lines

BASE_NS = 1_790_857_026_000_000_000
STEP_US = 10_000.0


def _complete(kind: str, name: str, at: float, took: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": took, "args": args}


def _step(number: int) -> dict[str, Any]:
    return _complete("user_annotation", f"ProfilerStep#{number}", number * STEP_US, STEP_US - 100)


def _gloo(rank: int, late: int, steps: range, *, by: float = 3000.0, but: int = -1) -> list[dict[str, Any]]:
    """An all-reduce a step, that ends at 8 ms on all ranks and that the late one has its part for later, by so many us
    in all steps but one."""
    found = [_step(number) for number in steps]
    for number in steps:
        ready = 3000.0 + by if rank == late and number != but else 3000.0 + 10 * rank
        found.append(_complete("user_annotation", "gloo:all_reduce", number * STEP_US + ready, 8000.0 - ready))
    return found


def _write(path: Path, rank: int | None, happened: list[dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    info = {"distributedInfo": {"rank": rank, "world_size": 4, "pg_config": groups}} if rank is not None else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, **info, "baseTimeNanoseconds": BASE_NS, "traceEvents": happened}))


WORLD = [{"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]}]


def test_collectives_of_gloo_tell_who_is_waited_for(tmp_path: Path) -> None:
    """Without a GPU there are no kernels: each rank's span of a collective lasts from when it was ready to the end."""
    for rank in range(4):
        _write(tmp_path / f"{rank}.json", rank, _gloo(rank, 2, range(2, 16)), WORLD)
    run = load(tmp_path)
    assert not (run.collectives["flags"] & GPU_TIME).any()
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (2,))
    assert verdict.cost_ms_per_step == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("late_us", "last", "but", "named"),
    [(1500.0, 8, -1, True), (1500.0, 8, 4, False), (700.0, 8, -1, False), (1500.0, 6, -1, False)],
)
def test_a_few_profiled_steps_name_who_is_far_behind_in_each(
    tmp_path: Path, late_us: float, last: int, but: int, named: bool
) -> None:
    """By 15 % of a step in all of five after the first; not by 7 %, not in all but one, and not in three."""
    for rank in range(4):
        _write(tmp_path / f"{rank}.json", rank, _gloo(rank, 2, range(2, last), by=late_us, but=but), WORLD)
    (verdict,) = judge(load(tmp_path)).verdicts
    assert (verdict.kind, verdict.ranks) == (("straggler", (2,)) if named else ("insufficient_data", ()))


def _fetching(rank: int, slow: int, steps: range) -> list[dict[str, Any]]:
    """A batch in 0.5 ms, of the slow rank in 2.5 ms, its copy, forward, and a reduction that ends at 8 ms."""
    found = []
    for number in steps:
        at, fetched = number * STEP_US, 2500.0 if rank == slow else 500.0
        found.append({**_step(number), "tid": 7})
        found.append(
            {**_complete("cuda_runtime", "cudaMemcpyAsync", at + fetched, 20.0, correlation=3 * number), "tid": 7}
        )
        found.append(
            _complete("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + fetched + 50, 200.0, correlation=3 * number)
        )
        launched = at + fetched + 100
        found.append(_complete("cuda_runtime", "cudaLaunchKernel", launched, 10.0, correlation=3 * number + 1))
        found.append(_complete("kernel", "gemm", at + fetched + 300, 2000.0, correlation=3 * number + 1))
        found.append(_complete("cuda_runtime", "cudaLaunchKernel", launched + 50, 10.0, correlation=3 * number + 2))
        ready, kernel = at + fetched + 2400 + 5 * rank, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        named = {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}
        found.append(_complete("kernel", kernel, ready, at + 8000 - ready, correlation=3 * number + 2, **named))
    return found


def test_a_batch_that_no_loader_marks_is_what_comes_before_its_copy(tmp_path: Path) -> None:
    """A loop with its own fetching: nothing is in the trace until the copy of the batch is launched."""
    for rank in range(4):
        _write(tmp_path / f"{rank}.json", rank, _fetching(rank, 1, range(2, 20)), WORLD)
    run = load(tmp_path)
    assert set(run.steps["input_ns"][run.steps["rank"] == 1].tolist()) == {2_500_000}
    assert set(run.steps["input_ns"][run.steps["rank"] == 0].tolist()) == {500_000}
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), "input")


def test_the_waits_of_other_threads_are_none_of_the_batchs(tmp_path: Path) -> None:
    """One that pins memory waits for its copies while the host fetches; the host itself waits once, in two calls."""
    happened = _fetching(0, 1, range(2, 20))
    for number in range(2, 20):
        waits = [(9, "cudaEventSynchronize", 10.0, 480.0), (7, "cudaStreamSynchronize", 20.0, 200.0)]
        for thread, name, at, took in [*waits, (7, "cuStreamSynchronize", 21.0, 198.0)]:
            called = _complete("cuda_driver" if name.startswith("cuS") else "cuda_runtime", name, at, took)
            happened.append({**called, "tid": thread, "ts": number * STEP_US + at})
    _write(tmp_path / "trace.0.json", 0, happened, WORLD)
    assert set(load(tmp_path).steps["input_ns"].tolist()) == {300_000}


@pytest.mark.parametrize("tid", [[5], {}, None, 7.5])
def test_of_a_thread_that_is_none_no_input_is_known(tmp_path: Path, tid: Any) -> None:
    """Whatever a file calls a thread: two with the same name are not the same."""
    happened = [{**event, "tid": tid} for event in _fetching(0, 1, range(2, 20))]
    _write(tmp_path / "trace.0.json", 0, happened, WORLD)
    assert set(load(tmp_path).steps["input_ns"].tolist()) == {-1}


def test_collectives_of_gloo_among_several_groups_belong_to_none(tmp_path: Path) -> None:
    """Their spans do not name their group: who met whom is not known, and not guessed."""
    pairs = [{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "2", "ranks": [2, 3]}]
    for rank in range(4):
        _write(tmp_path / f"{rank}.json", rank, _gloo(rank, 2, range(2, 16)), [*WORLD, pairs[rank // 2]])
    run = load(tmp_path)
    assert rows(run.collectives) == 0
    assert any("do not name their process group" in note for note in run.notes)


@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")  # of earlier tests
def test_a_kernel_launched_before_the_profiler_began_has_no_time_of_its_launch(tmp_path: Path) -> None:
    """In a trace without marked steps it counts all the same; its launch was at the least of all numbers."""
    for rank in range(4):
        kernel = [
            _complete("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at * STEP_US, 50.0 + rank, correlation=at)
            for at in (1, 2)
        ]
        launch = _complete("cuda_runtime", "cudaLaunchKernelExC", 1.5 * STEP_US, 5.0, correlation=2)
        _write(tmp_path / f"{rank}.json", rank, [*kernel, launch], WORLD)
    run = load(tmp_path)
    assert rows(run.collectives) == 8


def test_steps_with_input_times_only_clear_no_rank(tmp_path: Path) -> None:
    """They take equally long on all ranks, for all wait for the slow one: once, no rank was said to hold the job
    back."""
    for rank in range(4):
        spans = [_complete("user_annotation", "enumerate(DataLoader)#x", n * STEP_US, 100.0) for n in range(2, 16)]
        _write(tmp_path / f"{rank}.json", rank, [*map(_step, range(2, 16)), *spans], WORLD)
    (verdict,) = judge(load(tmp_path)).verdicts
    assert verdict.kind == "insufficient_data"
    assert "the phases seen (input) cover 1.0 % of a step" in verdict.evidence[0]


def test_files_of_several_cycles_of_a_schedule_are_one_recording(tmp_path: Path) -> None:
    """``schedule(repeat=2)`` writes a file a cycle and rank; their steps go on counting."""
    for rank in range(4):
        for cycle, steps in enumerate((range(2, 8), range(10, 16))):
            _write(
                tmp_path / f"host_{50 + rank}.179529715554473{cycle}000.pt.trace.json",
                rank,
                _gloo(rank, 1, steps),
                WORLD,
            )
    run = load(tmp_path)
    assert run.ranks["rank"].tolist() == [0, 1, 2, 3]
    assert sorted(set(run.steps["step"].tolist())) == [*range(2, 8), *range(10, 16)]
    assert rows(run.communicators) == 4
    assert judge(run).verdicts[0].ranks == (1,)


def test_a_graphs_kernels_belong_to_the_step_that_launched_the_graph(tmp_path: Path) -> None:
    """One launch of a CUDA graph is that of all kernels in it; they come in the order in which they ran."""
    happened = []
    for number in range(3):
        at = number * STEP_US
        happened += [
            _step(number),
            _complete("cuda_runtime", "cudaGraphLaunch", at + 100, 20.0, correlation=number + 7),
        ]
        for place, op in ((2, "ReduceScatter"), (1, "AllGather")):
            kernel = f"ncclDevKernel_{op}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            happened.append(_complete("kernel", kernel, at + 9000 + 2000 * place, 50.0, correlation=number + 7))
    _write(tmp_path / "trace.0.json", 0, happened, WORLD)
    run = load(tmp_path)
    assert run.collectives["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert run.collectives["op"].tolist() == ["all_gather", "reduce_scatter"] * 3


GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgs)"


@pytest.mark.parametrize(
    ("kernel", "named", "op"),
    [
        (GENERIC, "_reduce_scatter_base", "reduce_scatter"),
        (GENERIC, "allreduce_coalesced", "all_reduce"),
        (GENERIC, None, "generic"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16", None, "all_reduce"),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32", None, "all_reduce"),
    ],
)
def test_what_a_kernel_is_called_is_its_collective(tmp_path: Path, kernel: str, named: str | None, op: str) -> None:
    """All of RCCL's are called alike: there PyTorch's name counts. NCCL 2.27 and later have kernels of their own for
    symmetric memory, under other names."""
    args = {"correlation": 1} | ({"Collective name": named} if named else {})
    happened = [_step(0), _complete("kernel", kernel, 500.0, 50.0, **args)]
    launch = ("cuda_runtime", "hipExtLaunchKernel") if kernel == GENERIC else ("cuda_driver", "cuLaunchKernelEx")
    happened.append(_complete(*launch, 100.0, 2.0, correlation=1))
    _write(tmp_path / "trace.0.json", 0, happened, WORLD)
    assert load(tmp_path).collectives["op"].tolist() == [op]


@pytest.mark.parametrize("listed", [[], list(range(64))], ids=["empty for all ranks", "all ranks"])
def test_a_large_groups_members_are_the_headers(tmp_path: Path, listed: list[int]) -> None:
    """Of more than 30 ranks a kernel lists some; the header has all, or none where they are all of the job's."""
    cut = "[" + ", ".join(map(str, range(29))) + ", ..., 63]"
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    args = {"correlation": 1, "Process Group Name": "0", "Process Group Ranks": cut}
    happened = [_step(0), _complete("kernel", name, 500.0, 50.0, **args)]
    happened.append(_complete("cuda_driver", "cuLaunchKernelEx", 100.0, 2.0, correlation=1))
    _write(tmp_path / "trace.0.json", 0, happened, [{"pg_name": "0", "pg_size": 64, "ranks": listed}])
    text = (tmp_path / "trace.0.json").read_text().replace('"world_size": 4', '"world_size": 64')
    (tmp_path / "trace.0.json").write_text(text)
    run = load(tmp_path)
    assert run.communicators["size"].tolist() == [64]
    assert run.collectives["comm"].tolist() == run.communicators["comm"].tolist()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12.json", 12),
        ("trace.3.json.gz", 3),
        ("Rank-7_step_100.json", 7),
        ("worker4.1795297155544737098.pt.trace.json.gz", 4),
        ("host_17089.1795297114721338800.pt.trace.json", None),
        ("rank2/host_17089.1795297114721338800.pt.trace.json", 2),
        ("5/trace.json", 5),
        ("trace.json", None),
        ("run-42/trace.json", None),
    ],
)
def test_whose_file_it_is_stands_in_its_name_or_its_folders(name: str, rank: int | None) -> None:
    """A process' number and a time are no rank, and nor is the number of a run."""
    assert rank_in_name(Path("/somewhere") / name) == rank


def test_a_trace_that_nothing_gives_a_rank_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """torch names files by host and process: the process' number was taken for a rank."""
    _write(tmp_path / "host_17089.1795297114721338800.pt.trace.json", None, _gloo(0, 2, range(2, 16)), WORLD)
    with pytest.raises(UsageError, match=r"name it trace\.RANK\.json\.gz"):
        load(tmp_path)


def test_ranks_of_a_group_meet_in_it_whatever_its_number_is(tmp_path: Path) -> None:
    """Of two ranks' shards, each reduced with its like: identities are of 64 bits, and no rank may round its own."""
    for rank in range(4):
        shard, like = sorted({rank, rank ^ 1}), sorted({rank, rank ^ 2})
        groups = [
            {"pg_name": str(1 + rank // 2), "ranks": shard, "pg_size": 2},
            {"pg_name": str(3 + rank % 2), "ranks": like, "pg_size": 2},
        ]
        happened = [_step(number) for number in range(2, 16)]
        for number in range(2, 16):
            for at, group in ((2000.0, groups[0]), (6000.0, groups[1])):
                named = {"Process Group Name": group["pg_name"], "Process Group Ranks": str(group["ranks"])}
                kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                happened.append(_complete("kernel", kernel, number * STEP_US + at, 500.0, **named))
        _write(tmp_path / f"{rank}.json", rank, happened, groups)
    collectives = load(tmp_path).collectives
    for comm in np.unique(collectives["comm"]):
        assert len(np.unique(collectives["rank"][collectives["comm"] == comm])) == 2


BEGIN, END = np.array([0.0, 100.0]), np.array([100.0, 200.0])


@pytest.mark.parametrize(
    ("copies", "others", "waits", "took"),
    [
        ([30.0, 40.0, 120.0], [50.0, 150.0], [], [30.0, 20.0]),
        ([30.0, 120.0], [20.0, 150.0], [], [-1.0, 20.0]),  # a kernel of the first step comes before its copy
        ([30.0], [50.0], [], [30.0, -1.0]),  # the second has none
        ([30.0, 120.0], [50.0], [(5.0, 10.0), (115.0, 50.0), (125.0, 9.0)], [20.0, 15.0]),
        ([], [], [], [-1.0, -1.0]),
    ],
)
def test_it_is_what_precedes_all_work_of_the_gpu_but_waiting_for_it(
    copies: list[float], others: list[float], waits: list[Any], took: list[float]
) -> None:
    """Two steps of 100 us: unknown where anything else was launched first."""
    assert before_copies(BEGIN, END, np.array(copies), np.array(others), waits).tolist() == took


@pytest.mark.parametrize(
    ("waits", "took"),
    [
        ([(100.0, 200.0), (101.0, 198.0)], 300.0),  # the runtime's, and the driver's within it
        ([(101.0, 198.0), (100.0, 200.0), (250.0, 100.0)], 250.0),
        ([(-100.0, 400.0)], 200.0),  # begun before the step
        ([(-200.0, 200.0), (500.0, 9.0), (-300.0, 2000.0)], 0.0),
        ([(-200.0, 100.0), (600.0, 50.0)], 500.0),
    ],
)
def test_a_wait_counts_once_and_by_as_much_as_lies_in_the_step(waits: list[Any], took: float) -> None:
    """The copy is launched 500 us into the only step."""
    found = before_copies(np.array([0.0]), np.array([1000.0]), np.array([500.0]), np.array([]), waits)
    assert found.tolist() == [took]


@pytest.mark.parametrize("seed", range(5))
def test_of_many_waits_each_microsecond_before_a_copy_counts_once(seed: int) -> None:
    """As if each were ticked off."""
    random = np.random.default_rng(seed)
    begin, copies = np.arange(0.0, 5000.0, 100.0), np.sort(random.integers(0, 5000, 60)).astype(float)
    waits = [(float(start), float(random.integers(0, 40))) for start in random.integers(-50, 5000, 100)]
    free = np.ones(5100, bool)
    for start, length in waits:
        free[max(int(start), 0) : max(int(start + length), 0)] = False
    first = [next((int(at) for at in copies if one <= at < one + 100), None) for one in begin]
    expected = [-1 if to is None else free[int(one) : to].sum() for one, to in zip(begin, first, strict=True)]
    assert before_copies(begin, begin + 100, copies, np.array([]), waits).tolist() == expected


KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


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


def _written(folder: Path, name: str, trace: Any) -> Path:
    (folder / name).write_bytes(gzip.compress(json.dumps(trace).encode()))
    return folder / name


def test_nccl_kernels_are_collectives_of_the_step_that_launched_them(tmp_path: Path) -> None:
    """The kernel may run in a later step; both ranks number it alike though one trace began earlier."""
    _written(tmp_path, "a.json.gz", _trace(0, earlier=3))
    _written(tmp_path, "b.json.gz", _trace(1))
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
    _written(tmp_path, "a.json.gz", _trace(0))
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
    _written(tmp_path, "a.json.gz", trace)
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
    _written(tmp_path, "a.json.gz", _trace(0))
    assert (load(tmp_path).collectives["flags"] == GPU_TIME).all()


def test_steps_that_a_profiler_disturbed_are_known_among_those_of_a_log(tmp_path: Path) -> None:
    """It warms up some steps before the first that it records, and the step after the last waits for its writing."""
    _written(tmp_path, "trace.0.json.gz", _trace(0))
    starts = [BASE_NS + (step - 10) * 1_000_000 for step in range(20)]
    (tmp_path / "steps.0.jsonl").write_text(step_lines(starts, 900_000, 1000))
    steps = load(tmp_path).steps
    assert steps["step"][steps["kind"] == PROFILED].tolist() == list(range(5, 13))
    assert set(steps["kind"].tolist()) == {"train", PROFILED}


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    """Two jobs in one folder are not one run."""
    for name in ("a.json.gz", "b.json.gz"):
        _written(tmp_path, name, _trace(0))
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
        _written(tmp_path, f"trace.{rank}.json.gz", _late(rank, 4))
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
    path = _written(tmp_path, "a.json.gz", {"metadata": {"a": 1}, "traceEvents": [], "distributedInfo": {"rank": 0}})
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
