"""Each setting is advised from its threshold on, with its evidence and what to type, and not below it."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge import tuning, usage
from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.communication import Traffic
from hindmost_judge.model import Run
from hindmost_judge.overview import Overview
from hindmost_judge.verdict.schema import AT_LEAST, UNSURE, Verdict

from tests.runs import made, only, with_job
from tests.scenarios.loads import metrics

MS = 1e6
RANKS, CPUS = 4, 16
GPU = "hindmost_gpu_"
PROCESS = "hindmost_process_"


def job(
    *samples: tuple[str, dict[str, str], float], framework: str = "torch", gpus: bool = False, cpus: int = CPUS
) -> Run:
    """4 ranks on a node of 16 CPUs. A counter's sample is its rate a second; a ``rank`` of ``*`` is each rank."""
    rows = [("hindmost_node_cpus", {}, float(cpus)), *samples]
    each = [
        (name, json.dumps(labels).replace("*", str(rank)), second, level * (second if name.endswith("_total") else 1))
        for name, labels, level in rows
        for rank in (range(RANKS) if "*" in labels.values() else range(1))
        for second in (0, 10)
    ]
    uuids = [f"g{rank}" if gpus else "" for rank in range(RANKS)]
    who = {"node": "n0", "framework": framework, "gpu_uuid": uuids}
    return made(RANKS, who=who, more={"metrics": metrics(each) | {"node": np.full(len(each), "n0")}})


def unknown(run: Run) -> Run:
    """The same, of which no rank was seen."""
    return only(run, ranks=[])


def seen(**planes: float) -> Overview:
    """Ten steps of 100 ms; planes in ms."""
    blocks = {name: np.full((RANKS, 10), value * MS) for name, value in planes.items()}
    for name in ("self", "wait", "transfer", "caused", "last", "delay"):
        blocks.setdefault(name, np.full((RANKS, 10), 90.0 * MS if name == "self" else np.nan))
    each, steps = np.arange(RANKS), np.arange(10)
    return Overview(each, steps, np.full(10, 100 * MS), each * 0, blocks, False, False, np.zeros(10, bool))


def cpu_time(busy: float, cpus: int = CPUS) -> list[Any]:
    modes = {"user": busy * cpus, "idle": (1 - busy) * cpus}
    return [("hindmost_node_cpu_seconds_total", {"mode": mode}, value) for mode, value in modes.items()]


def of_ranks(**values: float) -> list[Any]:
    return [(f"{PROCESS}{name}", {"rank": "*"}, value) for name, value in values.items()]


def of_gpus(**values: float) -> list[Any]:
    return [
        (f"{GPU}{name}", {"gpu_uuid": f"g{rank}"}, value) for name, value in values.items() for rank in range(RANKS)
    ]


def calls(count: int, size: int, each_ms: float) -> list[Traffic]:
    """So many calls of each rank and step."""
    return [
        Traffic(
            "all_reduce", size, size, None, None, RANKS, 1, count * RANKS * 10, each_ms, 0.0, each_ms, None, None, 1.0
        )
    ]


def bound(*listed: str) -> list[Any]:
    return [(f"{PROCESS}affinity_info", {"rank": str(rank), "cpus": cpus}, 1.0) for rank, cpus in enumerate(listed)]


def of_pages(**values: float) -> list[Any]:
    return [(f"hindmost_node_numa_{name}_pages_total", {"numa_node": "0"}, value) for name, value in values.items()]


def two_numa_nodes(cpus: str, numa_nodes: str) -> list[Any]:
    """A node of two, of which each rank may run on these CPUs, and have memory of these NUMA nodes."""
    there = [
        ("hindmost_node_numa_cpus_info", {"numa_node": str(at), "cpus": f"{8 * at}-{8 * at + 7}"}, 1.0) for at in (0, 1)
    ]
    may = [(f"{PROCESS}affinity_info", {"rank": "*", "cpus": cpus}, 1.0)]
    return [*there, *may, (f"{PROCESS}memory_nodes_info", {"rank": "*", "numa_nodes": numa_nodes}, 1.0)]


def of_disk(busy: float, read: float) -> list[Any]:
    counts = {"busy_seconds": busy, "read_bytes": read}
    return [(f"hindmost_node_disk_{name}_total", {"device": "vda"}, value) for name, value in counts.items()]


def of_memory(*values: float) -> list[Any]:
    return [(f"{PROCESS}resident_memory_bytes", {"rank": str(rank)}, value) for rank, value in enumerate(values)]


def works(*each_ms: float, plane: str = "self") -> Overview:
    """Each rank's self time in steps of 100 ms, or its time in another plane."""
    found = seen()
    return replace(found, planes={**found.planes, plane: np.outer(np.array(each_ms) * MS, np.ones(10))})


def input_of(*each_ms: float) -> Overview:
    return works(*each_ms, plane="input")


#: Ranks of which the last has a larger domain, or all have as large ones.
LARGER = job(*of_memory(1.0, 1.0, 1.0, 2.0), framework="mpi")
ALIKE = job(*of_memory(1.0, 1.0, 1.0, 1.0), framework="mpi")


CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "CPU binding",
        "2 ranks run only on CPU number 0 (n0 has 16 CPUs)",
        {"run": job(*bound("0", "0", "2", "3"))},
        {"run": job(*bound("0", "1", "2", "3"))},
    ),
    (
        "CPU quota",
        "stopped 10 % of the time",
        {"run": job(("hindmost_node_cgroup_cpu_throttled_seconds_total", {"cgroup": "/pod"}, 0.10))},
        {"run": job(("hindmost_node_cgroup_cpu_throttled_seconds_total", {"cgroup": "/pod"}, 0.02))},
    ),
    (
        "threads of each rank",
        "11.9 threads of the typical rank run or wait for a CPU at a time, its share is 4 CPUs",
        {"run": job(*of_ranks(threads_runqueue_seconds_total=8.0, cpu_seconds_total=3.9), *cpu_time(0.98))},
        {"run": job(*of_ranks(threads_runqueue_seconds_total=0.2, cpu_seconds_total=3.9), *cpu_time(0.98))},
    ),
    (  # two threads on one CPU; one thread next to other programs
        "threads of each rank",
        "1.5 threads of the typical rank run or wait for a CPU at a time, its share is 1 CPU, and",
        {"run": job(*of_ranks(threads_runqueue_seconds_total=0.7, cpu_seconds_total=0.8), *cpu_time(0.98, 4), cpus=4)},
        {"run": job(*of_ranks(threads_runqueue_seconds_total=0.9, cpu_seconds_total=0.3), *cpu_time(0.98, 4), cpus=4)},
    ),
    (
        "threads of each rank",
        "computes on 1.0 of its 4 CPUs",
        {"run": job(*of_ranks(cpu_seconds_total=1.0), *cpu_time(0.25))},
        {"run": job(*of_ranks(cpu_seconds_total=3.5), *cpu_time(0.9))},
    ),
    (  # of NumPy, too
        "threads of each rank",
        "computes on 1.0 of its 4 CPUs",
        {"run": job(*of_ranks(cpu_seconds_total=1.0), *cpu_time(0.25), framework="mpi4py")},
        {"run": job(*of_ranks(cpu_seconds_total=3.5), *cpu_time(0.9), framework="mpi4py")},
    ),
    (  # bound to one CPU, as mpirun does with one rank or two
        "threads of each rank",
        "computes on 1.0 of its 4 CPUs, may run on 1, and",
        {"run": job(*of_ranks(cpu_seconds_total=1.0, allowed_cpus=1.0), *cpu_time(0.25), framework="mpi4py")},
        {"run": job(*of_ranks(cpu_seconds_total=3.5, allowed_cpus=4.0), *cpu_time(0.9), framework="mpi4py")},
    ),
    (  # a program that no probe knows
        "threads of each rank",
        "the process computes on 1.0 of its 16 CPUs, and the node is 6.2 % busy",
        {"run": unknown(job((f"{PROCESS}cpu_seconds_total", {"rank": "0"}, 1.0), *cpu_time(1 / 16)))},
        {"run": unknown(job((f"{PROCESS}cpu_seconds_total", {"rank": "0"}, 4.0), *cpu_time(4 / 16)))},
    ),
    (
        "DataLoader workers",
        "input costs 30 % of the step, and the typical rank has no worker process",
        {"run": job(*of_ranks(children=0.0)), "seen": seen(input=30.0)},
        {"run": job(*of_ranks(children=0.0)), "seen": seen(input=5.0)},
    ),
    (  # that one rank waits longer is its verdict's
        "DataLoader workers",
        "input costs 20 % of the step, and the typical rank has no worker process",
        {"run": job(*of_ranks(children=0.0)), "seen": input_of(20.0, 20.0, 20.0, 80.0)},
        {"run": job(*of_ranks(children=0.0)), "seen": input_of(5.0, 5.0, 5.0, 80.0)},
    ),
    (
        "DataLoader workers",
        "a rank's 2 workers compute 95 % of the time, and it has 4 CPUs",
        {"run": job(*of_ranks(children=2.0, children_cpu_seconds_total=1.9)), "seen": seen(input=30.0)},
        {"run": job(*of_ranks(children=2.0, children_cpu_seconds_total=0.2)), "seen": seen(input=30.0)},
    ),
    (
        "DataLoader workers",
        "a rank shares 4 CPUs with its 12 workers",
        {"run": job(*of_ranks(children=12.0, children_cpu_seconds_total=4.0)), "seen": seen(input=30.0)},
        {"run": job(*of_ranks(children=12.0, children_cpu_seconds_total=4.0)), "seen": seen(input=3.0)},
    ),
    (
        "many small collectives",
        "100 all_reduce of at most 256 KiB per step take 20.0 ms",
        {"run": job(), "seen": seen(), "traffic": calls(100, 4096, 0.2)},
        {"run": job(), "seen": seen(), "traffic": calls(100, 4 << 20, 0.2)},
    ),
    (
        "copies to the GPU",
        "hosts wait in copy calls 12 % of the step (12.0 ms)",
        {"run": job(), "seen": seen(device_copy=12.0)},
        {"run": job(), "seen": seen(device_copy=2.0)},
    ),
    (
        "copies to the GPU",
        "at 8.0 of PCIe's 63 GB/s",
        {
            "run": job(
                *of_gpus(pcie_receive_bytes_per_second=4e9, pcie_link_generation=5, pcie_link_width=16), gpus=True
            ),
            "seen": seen(device_copy=50.0),
        },
        {"run": job(gpus=True), "seen": seen(device_copy=1.0)},
    ),
    (
        "tiny kernels",
        "hosts launch kernels, or compute, for 85 % of the step, and GPUs are busy 20 % of the time",
        {
            "run": job(*of_gpus(utilization_ratio=0.2), gpus=True),
            "seen": seen(forward=20.0, backward=40.0, optimizer=30.0, device_wait=5.0),
        },
        {
            "run": job(*of_gpus(utilization_ratio=0.2), gpus=True),
            "seen": seen(forward=20.0, backward=40.0, optimizer=30.0, device_wait=80.0),
        },
    ),
    (
        "ranks per node",
        "4 ranks share the 2 CPUs of n0; the typical rank waits for one 55 % of the time and has one 40 %",
        {"run": job(*of_ranks(runqueue_seconds_total=0.55, cpu_seconds_total=0.4), *cpu_time(0.99, 2), cpus=2)},
        {"run": job(*of_ranks(runqueue_seconds_total=0.55, cpu_seconds_total=0.4), *cpu_time(0.99, 4), cpus=4)},
    ),
    (
        "ranks per node",
        "4 ranks share the 2 CPUs of n0",
        {"run": job(*of_ranks(runqueue_seconds_total=0.7, cpu_seconds_total=0.25), *cpu_time(0.99, 2), cpus=2)},
        {"run": job(*of_ranks(runqueue_seconds_total=0.7, cpu_seconds_total=0.2), *cpu_time(0.99, 2), cpus=2)},
    ),
    (
        "threads that spin",
        "each rank uses 3.8 of its 4 CPUs, though it waits for other ranks 50 % of the step",
        {"run": job(*of_ranks(cpu_seconds_total=3.8), *cpu_time(0.98)), "seen": seen(self=50.0, wait=50.0)},
        {"run": job(*of_ranks(cpu_seconds_total=2.9), *cpu_time(0.98)), "seen": seen(self=50.0, wait=50.0)},
    ),
    (
        "NUMA-remote memory",
        "50 % of the pages that n0 allocates lie on another NUMA node",
        {"run": job(*of_pages(remote=5000.0, local=5000.0))},
        {"run": job(*of_pages(remote=5000.0, local=500000.0))},
    ),
    (
        "NUMA-remote memory",
        "ranks 0 to 3 may run on CPUs of NUMA node 0 and have memory of node 1",
        {"run": job(*two_numa_nodes("0-3", "1"))},
        {"run": job(*two_numa_nodes("0-3", "0-1"))},
    ),
    (
        "collectives not overlapped",
        "all_reduce of up to 64.0 MiB takes 40.0 ms of the step (40 %)",
        {"run": job(), "seen": seen(), "traffic": calls(2, 64 << 20, 20.0)},
        {"run": job(), "seen": seen(), "traffic": calls(2, 64 << 20, 2.0)},
    ),
    (
        "collectives not overlapped",
        "all_reduce of up to 64.0 MiB takes 40.0 ms of the step (40 %)",
        {"run": job(*of_ranks(runqueue_seconds_total=0.1)), "seen": seen(), "traffic": calls(2, 64 << 20, 20.0)},
        {"run": job(*of_ranks(runqueue_seconds_total=0.3)), "seen": seen(), "traffic": calls(2, 64 << 20, 20.0)},
    ),
    (
        "storage",
        "wait for storage 60 % of the time; vda of n0 gives 20.0 MB/s, at best 20.0, busy 95 %",
        {"run": job(*of_ranks(children_blocked=0.6), *of_disk(busy=0.95, read=2e7)), "seen": seen(input=30.0)},
        {"run": job(*of_ranks(children_blocked=0.0), *of_disk(busy=0.95, read=2e7)), "seen": seen(input=30.0)},
    ),
    (
        "writes in the loop",
        "waits for storage 30 % of the time, not for input or checkpoints, and writes 28.0 kB/s",
        {"run": job(*of_ranks(blocked=0.3, written_bytes_total=28e3)), "seen": seen(input=2.0)},
        {"run": job(*of_ranks(blocked=0.3, written_bytes_total=28e3)), "seen": seen(input=2.0, checkpoint=30.0)},
    ),
    (
        "uneven domains",
        "has 2.0 times the memory of the others; spread evenly, a step is 30 % shorter",
        {"run": LARGER, "seen": works(50.0, 50.0, 50.0, 90.0)},
        {"run": ALIKE, "seen": works(50.0, 50.0, 50.0, 90.0)},
    ),
    (
        "waiting for the GPU each step",
        "wait for their GPU 40 % of the step, and GPUs are busy 50 %",
        {"run": job(*of_gpus(utilization_ratio=0.5), gpus=True), "seen": seen(device_wait=40.0)},
        {"run": job(*of_gpus(utilization_ratio=0.99), gpus=True), "seen": seen(device_wait=40.0)},
    ),
    (
        "GPU memory nearly full",
        "its peak is 97 % of the GPU's memory",
        {"run": job(*of_gpus(memory_used_bytes=97.0, memory_total_bytes=100.0), gpus=True)},
        {"run": job(*of_gpus(memory_used_bytes=90.0, memory_total_bytes=100.0), gpus=True)},
    ),
    (
        "GPU memory half empty",
        "its peak is 20 % of the GPU's memory, and GPUs are busy 50 %",
        {"run": job(*of_gpus(memory_used_bytes=20.0, memory_total_bytes=100.0, utilization_ratio=0.5), gpus=True)},
        {"run": job(*of_gpus(memory_used_bytes=20.0, memory_total_bytes=100.0, utilization_ratio=0.99), gpus=True)},
    ),
    (
        "tensor cores idle",
        "SMs are active 90 % of the time, FP32 works at 40 % of its peak, tensor cores at 0 %",
        {"run": job(*of_gpus(sm_activity_ratio=0.9, tensor_activity_ratio=0.0, fp32_activity_ratio=0.4), gpus=True)},
        {"run": job(*of_gpus(sm_activity_ratio=0.9, tensor_activity_ratio=0.0, fp32_activity_ratio=0.0), gpus=True)},
    ),
    (
        "GPU clocks",
        "the slowest GPU runs at 70 % of its highest clock: software power cap",
        {"run": job(*of_gpus(sm_clock_hertz=1.4e9, sm_clock_max_hertz=2e9, clocks_event_reasons=4), gpus=True)},
        {"run": job(*of_gpus(sm_clock_hertz=1.4e9, sm_clock_max_hertz=2e9, clocks_event_reasons=1), gpus=True)},
    ),
    (
        "small reads",
        "makes 5,000 reads a second, of 4,096 bytes",
        {"run": job(*of_ranks(read_calls_total=5000.0, read_characters_total=5000 * 4096.0)), "seen": seen(input=30.0)},
        {"run": job(*of_ranks(read_calls_total=5000.0, read_characters_total=5e9)), "seen": seen(input=30.0)},
    ),
    (
        "memory of the node",
        "rank 0 has 50 page faults from disk a second",
        {"run": job(*of_ranks(major_page_faults_total=50.0))},
        {"run": job(*of_ranks(major_page_faults_total=1.0))},
    ),
]


def advised(run: Run, seen: Overview | None = None, traffic: Any = ()) -> dict[str, tuning.Advice]:
    return {one.name: one for one in tuning.find(run, seen, traffic)}


@pytest.mark.parametrize(
    ("name", "evidence", "bad", "good"), CASES, ids=[f"{case[0]}: {case[1][:24]}" for case in CASES]
)
def test_a_setting_is_advised_from_its_threshold_on(name: str, evidence: str, bad: Any, good: Any) -> None:
    """With the numbers that it is advised for; below the threshold nothing is."""
    found = advised(**bad)[name]
    assert evidence in found.found
    assert found.set
    assert found.threshold
    assert name not in advised(**good)


def test_threads_of_a_library_are_set_where_the_job_sets_them() -> None:
    """OpenBLAS and MKL take their own variable first, of the environment or of mpirun's command."""
    run = job(*of_ranks(threads_runqueue_seconds_total=8.0, cpu_seconds_total=3.9), *cpu_time(0.98))
    command = "mpirun -x OPENBLAS_NUM_THREADS=8 python a.py"
    (advice,) = tuning.find(with_job(run, command=command, settings=(("MKL_NUM_THREADS", "8"),)), None, [])
    assert advice.set.startswith("`export OMP_NUM_THREADS=4 MKL_NUM_THREADS=4 OPENBLAS_NUM_THREADS=4`")


def test_writes_are_not_accused_where_something_else_may_be_waited_for() -> None:
    """Input that no step marks, a few bytes, or more that is read than written."""
    wait = {"blocked": 0.3, "written_bytes_total": 28e3}
    for samples, planes in ((wait, {}), (wait | {"written_bytes_total": 10.0}, {"input": 2.0})):
        assert "writes in the loop" not in advised(job(*of_ranks(**samples)), seen(**planes))
    for read, accused in ((1e3, True), (1e6, False)):
        found = advised(job(*of_ranks(**wait, read_bytes_total=read)), seen(input=2.0))
        assert ("writes in the loop" in found) == accused


def test_a_rank_that_waits_for_a_cpu_has_no_larger_domain() -> None:
    """Its self time is longer by its wait, and its work is that of the others."""
    slow = works(50.0, 50.0, 50.0, 90.0)
    waits = np.full((RANKS, 10), 50.0 * MS)
    assert "uneven domains" not in advised(LARGER, replace(slow, planes={**slow.planes, "self_cpu": waits}))
    needs = advised(LARGER, replace(slow, planes={**slow.planes, "self_cpu": slow.planes["self"]}))
    assert needs["uneven domains"].ranks == (3,)


LATE = Verdict(
    "straggler", ranks=(3,), cause="compute", advice=("look elsewhere; if slow there too, give it less work",)
)
COSTLY = replace(LATE, cost_ratio=1.0)
DOUBTFUL = Verdict("balanced", confidence=UNSURE, advice=("wait",))


def spread(late: Verdict, run: Run, seen: Overview, *, stalled: bool = False) -> Verdict:
    """What becomes of a verdict where ranks' domains may be uneven."""
    (found,) = tuning.with_domains([late], run, seen, stalled=stalled)
    return found


@pytest.mark.parametrize(
    ("late", "stalled", "kind", "cause", "first"),
    [
        pytest.param(LATE, False, "straggler", "compute", True, id="which may have a slow CPU, too"),
        pytest.param(replace(LATE, kind="intermittent"), False, "intermittent", "compute", True, id="sometimes"),
        pytest.param(replace(LATE, ranks=(2,)), False, "straggler", "compute", False, id="another rank"),
        pytest.param(replace(LATE, cause="cpu_contention"), False, "straggler", "cpu_contention", False, id="waits"),
        pytest.param(replace(LATE, since_step=40), False, "straggler", "compute", False, id="domains do not change"),
        pytest.param(replace(COSTLY, cause="unknown"), False, "straggler", "unknown", False, id="it saves too little"),
        pytest.param(DOUBTFUL, False, "uneven_workload", "workload", True, id="noise may be as long"),
        pytest.param(DOUBTFUL, True, "balanced", None, False, id="a stall has another reason"),
        pytest.param(replace(DOUBTFUL, confidence=0.9), False, "balanced", None, False, id="it costs nothing"),
    ],
)
def test_an_uneven_domain_is_the_reason_of_a_wait(
    late: Verdict, stalled: bool, kind: str, cause: str | None, first: bool
) -> None:
    """Rank 3 has twice the memory, and works longer. Its verdict says in every format what to divide."""
    found = spread(late, LARGER, works(50.0, 50.0, 50.0, 90.0), stalled=stalled)
    assert (found.kind, found.cause) == (kind, cause)
    assert found.advice[0].startswith("divide the domain by work") == first


def test_a_rank_that_works_four_times_as_long_may_have_a_slow_cpu() -> None:
    """A clock held down, or a debug build, does that: nothing else says that its work is larger."""
    assert spread(DOUBTFUL, ALIKE, works(20.0, 20.0, 20.0, 90.0)) == DOUBTFUL


@pytest.mark.parametrize(
    ("command", "how"),
    [("mpirun -np 4 lmp -in melt.in", "(LAMMPS `fix balance`, "), ("mpirun -np 4 python train.py", "to save 42 %")],
)
def test_a_rank_that_computes_longer_is_advised_on_its_cpu_and_on_its_work(command: str, how: str) -> None:
    """Where neither memory nor messages tell which it is, with what spreading the work saves, as unequal as it is."""
    run, seen, costs = with_job(ALIKE, command=command), works(20.0, 20.0, 60.0, 90.0), replace(LATE, cost_ratio=0.7)
    found = spread(costs, run, seen)
    assert found.advice[:-1] == costs.advice
    assert found.advice[-1].startswith(f"if its work is larger, spread it evenly {how}")
    assert found.advice[-1].endswith("to save 42 %, not 70 %")
    assert spread(replace(costs, cost_is=AT_LEAST), run, seen).advice[-1].endswith("to save 42 %")
    host = replace(costs, on_host=True)  # of a GPU: its self time holds more than work
    assert spread(host, run, seen) == host


def test_what_spreading_a_larger_domain_saves_is_set_against_the_cost() -> None:
    found = spread(replace(LATE, cost_ratio=0.4), LARGER, works(50.0, 50.0, 50.0, 90.0))
    assert found.advice[0].endswith("the others; spread it evenly to save 30 %, not 40 %)")


def test_short_calls_that_share_a_record_are_counted_each() -> None:
    """Rank 3 waits for none, and has few records of 300 calls each; the others have 301 records."""
    each = [(rank, 7, 0) for rank in range(3) for _ in range(301)] + [(3, 7, 0), (3, 0, 300)]
    rank, comm, seq = np.array(each).T
    calls = table("collectives", rank=rank, comm=comm, seq=seq, op="wait", peer=-1)
    seen = works(20.0, 20.0, 20.0, 90.0)
    assert "uneven domains" not in advised(replace(ALIKE, collectives=calls), seen)
    many = replace(ALIKE, collectives=calls | {"seq": 2 * calls["seq"]})
    assert "2.0 times the calls" in advised(many, seen)["uneven domains"].found


def test_spreading_work_saves_no_more_than_its_part_of_the_mean_step() -> None:
    """Rank 3 works five times as long in 6 of 10 steps: that is 18 ms of the mean step, not 30."""
    seen = works(10.0, 10.0, 10.0, 10.0)
    seen.planes["self"][3, :6] *= 5
    assert spread(DOUBTFUL, LARGER, seen).cost_ms_per_step == pytest.approx(34.0 - 16.0)


def test_what_a_rank_saves_now_and_then_is_no_domain() -> None:
    """In one step of ten it computes nine times as long, which is not the size of its domain."""
    seen = works(50.0, 50.0, 50.0, 50.0)
    seen.planes["self"][3, 4] *= 9
    assert "uneven domains" not in advised(LARGER, seen)


@pytest.mark.parametrize(("middle", "uneven"), [(100, False), (200, True)])
def test_the_middle_of_a_pipeline_has_no_larger_domain(middle: int, uneven: bool) -> None:
    """It exchanges with two neighbours, the ends with one: calls are compared by neighbour."""
    sent = {(0, 1): 100, (1, 0): middle, (1, 2): middle, (2, 1): 100, (2, 3): 100, (3, 2): 100}
    peers = np.repeat(np.array(list(sent)), list(sent.values()), axis=0)
    calls = table("collectives", rank=peers[:, 0], peer=peers[:, 1], bytes=8)
    found = advised(replace(ALIKE, collectives=calls), works(50.0, 90.0, 50.0, 50.0))
    assert ("uneven domains" in found) == uneven


def test_memory_is_asked_for_by_the_nodes_of_each_rank() -> None:
    """What rank 0 lacks is not what rank 3 lacks."""
    samples = [
        ("hindmost_node_numa_cpus_info", {"numa_node": str(node), "cpus": f"{4 * node}-{4 * node + 3}"}, 1.0)
        for node in range(3)
    ]
    for rank, cpus, memory in ((0, "0-3", "1"), (3, "8-11", "0")):
        samples.append((f"{PROCESS}affinity_info", {"rank": str(rank), "cpus": cpus}, 1.0))
        samples.append((f"{PROCESS}memory_nodes_info", {"rank": str(rank), "numa_nodes": memory}, 1.0))
    found = advised(job(*samples))["NUMA-remote memory"]
    assert "rank 3 may run on CPUs of NUMA node 2 and have memory of node 0" in found.found
    assert "for rank 3: `numactl --cpunodebind=0 --membind=0`" in found.set


@pytest.mark.parametrize(("each", "pace"), [(999.4e6, "999 MB/s"), (1e9, "1 GB/s"), (12.3e9, "12.3 GB/s")])
def test_bandwidth_is_written_in_a_unit_of_its_size(each: float, pace: str) -> None:
    """Without an exponent."""
    large = [one._replace(bandwidth=each) for one in calls(2, 64 << 20, 20.0)]
    assert f"waiting, {pace} of each rank" in advised(job(), seen(), large)["collectives not overlapped"].found


@pytest.mark.parametrize(
    ("cpus", "do", "found"),
    [
        ("0-15", "`numactl --cpunodebind=N --membind=N`", "ranks 0 to 3 may run on several"),
        ("8-11", "ranks are bound to one NUMA node each", "another NUMA node than their process"),
        ("16-31", "`numactl", ""),  # these may be of nodes whose CPUs are not known
    ],
)
def test_remote_pages_are_seen_with_where_ranks_may_run(cpus: str, do: str, found: str) -> None:
    """Binding helps those that are not bound."""
    run = job(*two_numa_nodes(cpus, "0-1"), *of_pages(remote=5000.0, local=5000.0))
    one = advised(run, None)["NUMA-remote memory"]
    assert do in one.set
    assert found in one.found


def test_a_process_before_the_ranks_is_none_of_them() -> None:
    """A script that holds much memory, then runs mpirun, adds nothing to rank 0. Without ranks it is all there is."""
    memory = f"{PROCESS}resident_memory_bytes"
    run = job((memory, {"rank": "-1"}, 4e8), (memory, {"rank": "0"}, 1e8))
    assert usage.by_rank(Metrics.of(run), memory, "highest") == {0: 1e8}
    alone = replace(job((memory, {"rank": "-1"}, 4e8)), ranks=Run(run.job).ranks)
    assert usage.by_rank(Metrics.of(alone), memory, "highest") == {0: 4e8}


def test_a_lone_rank_waits_for_no_other() -> None:
    """Where nothing is known of its step but the length, either."""
    run = job(*of_ranks(cpu_seconds_total=3.8), *cpu_time(0.98))
    alone = replace(seen(self=0.0), ranks=np.zeros(1, np.int64))
    assert "threads that spin" in advised(run, seen(self=0.0, wait=90.0))
    assert "threads that spin" not in advised(run, alone)


def test_transfers_that_take_most_of_a_step_are_not_to_be_hidden() -> None:
    """80 ms of 100: the other 20 hide no more than 20. Less data, or a faster network, helps."""
    hide, most = (advised(job(framework="mpi"), seen(), calls(2, 64 << 20, ms)) for ms in (20.0, 40.0))
    assert "start it early" in hide["collectives not overlapped"].set
    assert most["collectives not overlapped"].set.startswith("send less data, or less often: overlap can hide 20.0 ms")


def test_calls_that_are_mostly_outside_of_steps_have_no_advice() -> None:
    """A benchmark's sweep of sizes: steps of 100 ms were found in one of its 100 seconds."""
    sweep = replace(job(), collectives=table("collectives", start_ns=np.array([0, 10**11])))
    assert "collectives not overlapped" in advised(job(), seen(), calls(2, 64 << 20, 40.0))
    assert "collectives not overlapped" not in advised(sweep, seen(), calls(2, 64 << 20, 40.0))


@pytest.mark.parametrize("framework", ["torch", "horovod"])
def test_gradients_that_are_sent_every_few_steps_make_a_larger_batch(framework: str) -> None:
    """The advice says of how many steps."""
    traffic = [one._replace(operation="ddp_gradients") for one in calls(2, 64 << 20, 20.0)]
    found = advised(job(framework=framework), seen(), traffic)["collectives not overlapped"]
    assert "if a batch 4 times as large is fine" in found.set


def test_every_rule_has_its_case() -> None:
    """A rule that nothing shows would rot."""
    names = {case[0] for case in CASES}
    fired = [
        rule for rule in tuning.RULES if any((one := rule(_facts(case[2]))) and one.name in names for case in CASES)
    ]
    assert len(fired) == len(tuning.RULES)


def _facts(case: dict[str, Any]) -> tuning.Facts:
    return tuning.Facts(case["run"], case.get("seen"), case.get("traffic", ()))


def test_what_was_not_recorded_has_no_advice() -> None:
    """Nothing is known of a run without samples and steps."""
    assert advised(made(RANKS)) == {}


def test_what_is_about_most_of_the_step_comes_first() -> None:
    """Input of half the step before copies of a tenth."""
    run = job(*of_ranks(children=0.0))
    found = tuning.find(run, seen(input=50.0, device_copy=10.0), ())
    assert [one.name for one in found] == ["DataLoader workers", "copies to the GPU"]


@pytest.mark.parametrize(("cpu", "workers"), [(0.1, 4), (0.9, 3)])
def test_workers_that_mostly_wait_are_as_many_as_hide_the_input(cpu: float, workers: int) -> None:
    """78 ms of input next to 22 ms of the rest take four in turn; else as many as there are CPUs."""
    found = advised(job(*of_ranks(children=0.0, cpu_seconds_total=cpu)), seen(input=78.0))["DataLoader workers"]
    assert found.set.startswith(f"`num_workers={workers},")


def test_input_that_costs_nothing_needs_no_workers() -> None:
    """GPUs that have work all the while hide it."""
    run = job(*of_ranks(children=0.0))
    assert "DataLoader workers" not in advised(run, seen(input=30.0, gpu_forward=40.0, gpu_backward=60.0))
