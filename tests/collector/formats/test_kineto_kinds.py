"""What PyTorch profiler traces look like besides DDP on GPUs: CPU collectives, graphs, cycles, groups, input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.formats.kineto import before_copies
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.rank_mapping import rank_in_name
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, rows

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


@pytest.mark.parametrize(
    "kernel", ["ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16", "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32"]
)
def test_kernels_on_symmetric_memory_are_collectives(tmp_path: Path, kernel: str) -> None:
    """NCCL 2.27 and later have kernels of their own for registered windows, under other names."""
    happened = [_step(0), _complete("kernel", kernel, 500.0, 50.0, correlation=1)]
    happened.append(_complete("cuda_driver", "cuLaunchKernelEx", 100.0, 2.0, correlation=1))
    _write(tmp_path / "trace.0.json", 0, happened, WORLD)
    assert load(tmp_path).collectives["op"].tolist() == ["all_reduce"]


@pytest.mark.parametrize(
    ("named", "op"),
    [("_reduce_scatter_base", "reduce_scatter"), ("allreduce_coalesced", "all_reduce"), (None, "generic")],
)
def test_a_generic_kernel_is_the_collective_that_the_profiler_names(tmp_path: Path, named: str | None, op: str) -> None:
    """All of RCCL's are called so; PyTorch's name for it is one of those that have a plain one."""
    args = {"correlation": 1} | ({"Collective name": named} if named else {})
    happened = [_step(0), _complete("kernel", "ncclDevKernel_Generic_4(ncclDevKernelArgs)", 500.0, 50.0, **args)]
    happened.append(_complete("cuda_runtime", "hipExtLaunchKernel", 100.0, 2.0, correlation=1))
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
