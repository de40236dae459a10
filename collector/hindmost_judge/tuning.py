"""Settings that would help a job whose ranks are all alike: each with its threshold, its evidence and what to type.

A rule looks at one thing that was recorded. What was not recorded has no rule, and gets no advice.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from hindmost_judge import communication, efficiency, usage
from hindmost_judge.causes import cpu_sharing, cpu_wait
from hindmost_judge.causes.slow_computing import READS, SMALL_READ
from hindmost_judge.causes.telemetry import POWER_CAP, SLOWING_REASONS, Metrics
from hindmost_judge.communication import Traffic
from hindmost_judge.model import Run
from hindmost_judge.overview import Overview
from hindmost_judge.stats.robust import lower_median, median
from hindmost_judge.timeline import messages
from hindmost_judge.types import Floats
from hindmost_judge.verdict import advice
from hindmost_judge.verdict.schema import AT_LEAST, LATE, UNSURE, Verdict
from hindmost_judge.verdict.wording import ms, names, percent


@dataclass(frozen=True)
class Advice:
    """One setting: what was ``found`` (with its numbers), the ``threshold`` that it passed, what to ``set``.

    ``share`` is the part of the step that it is about, to put the largest first; 0 where unknown. ``adds``: it asks
    for more processes or threads, which need CPUs. ``ranks`` are those that it is about; empty: all.
    """

    name: str
    found: str
    threshold: str
    set: str
    share: float = 0.0
    adds: bool = False
    ranks: tuple[int, ...] = ()


#: From these shares of the step on: waiting for input, copies to the GPU, small collectives, waits for a GPU.
INPUT, COPIES, SMALL, WAITS = 0.10, 0.05, 0.05, 0.10
#: A collective is small up to this size, and many are this many calls of a rank in a step.
SMALL_BYTES, MANY = 256 << 10, 16
#: CPUs of a node are full from this share on, a quota holds from this on.
FULL, QUOTA = 0.90, cpu_sharing.QUOTA
#: Threads of a rank, on a CPU or in its queue, are too many from so many times its CPUs on: one thread fills only one.
DEMAND = 1.35
#: Workers that compute for this share of the time are what input waits for.
WORKERS_BUSY = 0.7
#: A rank that uses at most this many CPUs has one thread that computes.
ONE_THREAD = 1.1
#: GPUs: busy, memory nearly full or half empty, SMs active, tensor cores idle, clock of the highest one.
BUSY, NEARLY_FULL, HALF, ACTIVE, IDLE_TENSOR, CLOCK = 0.90, 0.95, 0.50, 0.50, 0.02, 0.90
#: Page faults that read from disk, a second.
FAULTS = 10.0
#: FP32 pipes that work this much have arithmetic for tensor cores.
ARITHMETIC = 0.10
#: Memory that is allocated on another NUMA node than that of its process: pages a second, share of all.
REMOTE_PAGES, REMOTE = 1000.0, 0.20
#: Hosts launch, or compute, for this share of the step, and GPUs idle more than half of it.
LAUNCHES = 0.50
#: Large collectives take this share of the step beyond any waiting, and nothing else is done meanwhile.
EXPOSED = 0.20
#: A disk is full from this share of the time on; ranks that read less than this share of its best do not load it.
DISK_FULL, FAR_BELOW = 0.80, 0.50
#: Ranks wait for storage for this share of the time: they, or their workers, sleep in the disk's queue.
BLOCKED = 0.20
#: Who waits for what it writes writes a page or more a second, in bytes.
WRITES = 4096.0
#: The mean rank of a compiled program works this much less than the longest, whose memory or messages are so much more
#: than the others'.
UNEVEN, MORE = 0.10, 1.10
#: How sure it is that work is uneven.
_SURE_OF_DOMAINS = 0.9
#: PCIe's bytes a second of one lane by generation, and the share of it that copies from pinned memory reach.
LANE, PINNED = {3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}, 0.60


#: Programs that start jobs of PyTorch, where its probe did not name itself.
_TORCH = re.compile(r"\b(torchrun|torch\.distributed|accelerate|deepspeed)\b")


_Whose = TypeVar("_Whose")
_Number = TypeVar("_Number")


class Facts:
    """What the rules look at, each read when first asked for. Arrays are [R] in the order of ``seen.ranks``."""

    def __init__(self, run: Run, seen: Overview | None, traffic: Sequence[Traffic]) -> None:
        self.run, self.seen, self.traffic = run, seen, traffic
        self.metrics = Metrics.of(run)
        span = usage.of_steps(run, seen)
        self._of_steps = self.metrics if span is None else self.metrics.during(*span)
        self.frameworks = {str(name) for name in run.ranks["framework"].tolist()} - {""}
        self.torch = bool(self.frameworks & {"torch", "horovod"}) or bool(_TORCH.search(run.job.command or ""))
        self.on = dict(zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True))

    @cached_property
    def step(self) -> float:
        """ns of the mean step; NaN where unknown."""
        return self.seen.step if self.seen is not None else float("nan")

    def share(self, plane: str) -> float:
        """What half of the ranks spend at least in a part of the step, as a share; NaN where it was not measured."""
        block = None if self.seen is None else self.seen.planes.get(plane)
        if block is None or np.isnan(block).all():
            return float("nan")
        known = block[~np.isnan(block).all(axis=1)]
        return float(lower_median(np.nanmean(known, axis=1), axis=0)) / self.step

    @cached_property
    def input(self) -> float:
        """The share of the step that the typical rank waits for input, as far as this makes the step longer."""
        return float(np.minimum(self.share("input"), self._input_cost))

    @cached_property
    def _input_cost(self) -> float:
        """COST of input as a share of the step, whichever rank waits for it; NaN where unknown."""
        without = efficiency.free(self.seen).get("input") if self.seen is not None else None
        return float("nan") if without is None else 1.0 - without * 1e6 / self.step

    @property
    def input_costs(self) -> str:
        """The same in words: COST may be more, by a rank that waits longer."""
        waits = 1.01 * self.share("input") < self._input_cost
        return f"{'the typical rank waits for input' if waits else 'input costs'} {percent(self.input)} of the step"

    def _sampled(self, read: Callable[..., dict[_Whose, _Number]], *asked: str) -> dict[_Whose, _Number]:
        """In the steps, where there are samples of these, else in all of the recording."""
        return read(self._of_steps, *asked) or read(self.metrics, *asked)

    def rank(self, name: str, how: str) -> dict[int, float]:
        """Rank to the number of its process."""
        return self._sampled(usage.by_rank, f"hindmost_process_{name}", how)

    def typical(self, name: str, how: str) -> float:
        """The median rank's number; NaN where no process was sampled."""
        return _median(self.rank(name, how).values())

    def gpu(self, name: str, how: str) -> Floats:
        """[G] of the job's GPUs that have it."""
        found = self._sampled(usage.summary, f"hindmost_gpu_{name}", "gpu_uuid", how)
        return np.array([value for (_, uuid), value in found.items() if uuid in self.gpus])

    def typical_gpu(self, name: str) -> float:
        """The median GPU's mean; NaN where none has it."""
        return _median(self.gpu(name, "mean"))

    @cached_property
    def gpus(self) -> set[str]:
        """Those of its ranks; where it is not known which these are, those of its nodes that did anything."""
        ours = {str(one) for one in self.run.ranks["gpu_uuid"].tolist()} - {""}
        busy = usage.summary(self.metrics, "hindmost_gpu_utilization_ratio", "gpu_uuid", "highest")
        return ours or {uuid for (_, uuid), most in busy.items() if most > 0}

    @cached_property
    def waits(self) -> float:
        """The share of the step that the typical rank waits for others: in collectives, and in messages of hosts."""
        if self.seen is None or len(self.seen.ranks) < 2:
            return float("nan")
        own = float("nan") if self.seen.on_gpu else self.share("self")
        return self.share("wait") if np.isnan(own) else max(1.0 - own, 0.0)

    def node(self, name: str, how: str) -> dict[str, float]:
        """Node to the number, all its series together."""
        found = self._sampled(usage.summary, f"hindmost_node_{name}", "", how)
        return {node: value for (node, _), value in found.items()}

    @cached_property
    def queued(self) -> float:
        """ns of the step that the typical rank waits for a CPU; 0 where it was not sampled. Collectives may hold it."""
        waits = self.typical("runqueue_seconds_total", "rate")
        return waits * self.step if waits > 0 else 0.0

    @cached_property
    def compiled(self) -> bool:
        """Whether it is a program of MPI calls that no framework of Python makes."""
        return bool(self.frameworks) and self.frameworks <= {"mpi", "mpi4py", "python"}

    @cached_property
    def batch(self) -> float:
        """Samples or tokens of a rank in a step; NaN where they were not counted."""
        if self.seen is None or self.seen.work is None or not np.nanmax(self.seen.work, initial=0.0) > 0:
            return float("nan")
        return float(np.nanmean(self.seen.work)) / len(self.seen.ranks)

    @cached_property
    def blocked(self) -> float:
        """The share of the time that the typical rank, with its workers, waits for storage; 0 where not sampled."""
        waits = [self.rank(f"{name}blocked", "mean") for name in ("", "children_")]
        each = [sum(wait.get(rank, 0.0) for wait in waits) for rank in set().union(*waits)]
        return _median(each or [0.0])

    @cached_property
    def cpus(self) -> dict[str, float]:
        """Node to its CPUs."""
        return self.node("cpus", "median")

    @cached_property
    def cpus_each(self) -> float:
        """CPUs that each rank of the fullest node has to itself; NaN where unknown."""
        return min((share for _, share in self.shares_of_cpus), default=float("nan"))

    @cached_property
    def shares_of_cpus(self) -> list[tuple[str, float]]:
        """Nodes, and how many of its CPUs there are for each of its ranks."""
        return [(node, self.cpus[node] / count) for node, count in self.ranks_on.items() if node in self.cpus]

    @cached_property
    def ranks_on(self) -> dict[str, int]:
        """Node to how many ranks it has; a job of which no rank is known is one process of the only node."""
        return Counter(self.on.values() or ([*self.cpus] if len(self.cpus) == 1 else ()))

    @property
    def who(self) -> str:
        """The typical rank; the process of a command that starts none."""
        return "the typical rank" if self.on else "the process"

    @cached_property
    def cpu_use(self) -> dict[str, usage.CpuUse]:
        """Node to who uses its CPUs."""
        return self._sampled(usage.cpu_use)

    @cached_property
    def busiest(self) -> float:
        """The share in use of the CPUs of the node that uses most; NaN where none was sampled."""
        return max(self._sampled(usage.cpu_busy).values(), default=float("nan"))

    @cached_property
    def longest(self) -> _Longest | None:
        """Uneven work, its CPU time if measured, of a compiled program; ``None`` where it is even."""
        return _longest_work(self)


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return float(np.median(known)) if known else float("nan")


def find(run: Run, seen: Overview | None, traffic: Sequence[Traffic]) -> list[Advice]:
    """The advice on a job, what is about the largest part of the step first."""
    facts = Facts(run, seen, traffic)
    found = [one for rule in RULES for one in (rule(facts),) if one is not None]
    return sorted(found, key=lambda one: -one.share)


def _binding(facts: Facts) -> Advice | None:
    bound = [one for one in cpu_sharing.bound(facts.run) if one.listed]
    if not bound:
        return None
    return Advice(
        "CPU binding",
        str(bound[0]),
        "more ranks than CPUs in their set while the node has others",
        "; ".join(advice.of_binding(facts.run, bound)),
        1.0,
    )


def _quota(facts: Facts) -> Advice | None:
    groups = usage.by_label(facts.metrics, "hindmost_node_cgroup_cpu_throttled_seconds_total", "", "rate", "cgroup")
    stopped = {owner: max(each.values()) for owner, each in groups.items()}
    most = max(stopped, key=lambda owner: stopped[owner], default=None)
    if most is None or stopped[most] < QUOTA:
        return None
    return Advice(
        "CPU quota",
        f"a control group on {most[0]} was stopped {percent(stopped[most])} of the time by its CPU quota",
        f"stopped for {percent(QUOTA)} of the time",
        f"raise the limit: {advice.CPU_QUOTA}",
        min(stopped[most], 1.0),
    )


#: What these libraries take before OMP_NUM_THREADS, where it is set.
_OF_LIBRARIES = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def _too_many_threads(facts: Facts) -> Advice | None:
    waiting = facts.typical("threads_runqueue_seconds_total", "rate")
    used, full = facts.typical("cpu_seconds_total", "rate"), facts.busiest
    if not waiting + used >= DEMAND * facts.cpus_each or not facts.cpus_each >= 1.0 or not full >= FULL:
        return None
    each, job = int(facts.cpus_each), facts.run.job
    words = " ".join([*map("=".join, job.settings), job.command or ""])
    libraries = [name for name in _OF_LIBRARIES if name in re.findall(r"\w+", words)]
    now = next(iter(re.findall(r"OMP_NUM_THREADS=(\d+)", words)), "")
    export = " ".join(f"{name}={each}" for name in ("OMP_NUM_THREADS", *libraries))
    return Advice(
        "threads of each rank",
        f"{waiting + used:.1f} threads of {facts.who} run or wait for a CPU at a time, its share is {each}"
        f" CPU{'s' * (each > 1)}, and the node's CPUs are {percent(full)} busy",
        f"{DEMAND} times as many threads as CPUs, and CPUs {percent(FULL)} busy",
        f"`export {export}`{f', now {now}' * bool(now)}: one thread for each CPU of a rank"
        + (f"; `torch.set_num_threads({each})`, `torch.set_num_interop_threads(1)`" if facts.torch else ""),
        min(waiting / (waiting + used), 1.0),
    )


def _too_many_ranks(facts: Facts) -> Advice | None:
    """More ranks that compute than CPUs, which no other processes use."""
    waits = facts.typical("runqueue_seconds_total", "rate")
    used, full = facts.typical("cpu_seconds_total", "rate"), facts.busiest
    if not facts.cpus_each < 1.0 or not waits >= cpu_wait.QUEUED or not waits >= used or not full >= FULL:
        return None
    node, _ = min(facts.shares_of_cpus, key=lambda one: one[1])
    use = facts.cpu_use.get(node)
    if use is not None and use.others > use.ranks:
        return None
    most = max(int(facts.cpus[node]), 1)
    return Advice(
        "ranks per node",
        f"{facts.ranks_on[node]} ranks share the {facts.cpus[node]:.0f} CPUs of {node}; the typical rank waits for one"
        f" {percent(waits)} of the time and has one {percent(used)}",
        f"more ranks than CPUs, waits of {percent(cpu_wait.QUEUED)} of the time, CPUs {percent(FULL)} busy",
        advice.fewer_ranks(facts.run, most),
        waits / (waits + used),
    )


def _too_few_threads(facts: Facts) -> Advice | None:
    if not facts.cpus_each >= 2.0 or (facts.run.ranks["gpu_uuid"] != "").any():
        return None
    used, busiest = facts.typical("cpu_seconds_total", "rate"), facts.busiest
    if not 0.8 <= used <= ONE_THREAD or not busiest <= HALF + 0.1:
        return None
    cpus = int(facts.cpus_each)
    set_threads = f"`export OMP_NUM_THREADS={cpus}`"
    by_torch = facts.torch or "keras" in facts.frameworks
    allowed = facts.typical("allowed_cpus", "median")
    free = f"`mpirun --bind-to none` or `srun --cpus-per-task={cpus}`, then " if allowed < cpus else ""
    return Advice(
        "threads of each rank",
        f"{facts.who} computes on {used:.1f} of its {cpus} CPUs"
        f"{f', may run on {allowed:.0f}' * bool(free)}, and the node is {percent(busiest)} busy",
        f"at most {ONE_THREAD} CPUs of a rank in use, {percent(HALF + 0.1)} of the node",
        free + (f"{set_threads} (torchrun sets 1)" if by_torch else f"more ranks; with NumPy or OpenMP {set_threads}"),
        0.5,
        adds=True,
    )


def _spinning(facts: Facts) -> Advice | None:
    """Threads of OpenMP that spin while their rank waits for others, on CPUs that are all taken."""
    waits, cpus = facts.waits, facts.cpus_each
    used = facts.typical("cpu_seconds_total", "rate")
    needed = 1.0 + (1.0 - waits) * cpus  # one thread may poll for messages
    if not cpus >= 2.0 or not waits >= INPUT or not used >= needed + QUOTA * cpus or not facts.busiest >= FULL:
        return None
    return Advice(
        "threads that spin",
        f"each rank uses {used:.1f} of its {cpus:.0f} CPUs, though it waits for other ranks {percent(waits)} of the"
        " step",
        f"waits of {percent(INPUT)} of the step, and more CPUs in use than computing takes, CPUs {percent(FULL)} busy",
        "`export OMP_WAIT_POLICY=passive KMP_BLOCKTIME=0`: threads sleep between parallel regions",
        min((used - needed) / cpus, waits),
    )


def _numa_nodes(facts: Facts) -> dict[int, tuple[frozenset[int], frozenset[int]]]:
    """Rank to the NUMA nodes of the CPUs on which it may run, and those from which it may have memory; where known."""
    of_cpus: dict[str, dict[int, frozenset[int]]] = {}
    for one in facts.metrics.series("hindmost_node_numa_cpus_info"):
        of_cpus.setdefault(one.node, {})[int(one.labels["numa_node"])] = cpu_wait.cpus(one.labels["cpus"])
    runs_on, memory = (
        cpu_sharing.last_stated(facts.run, facts.metrics, f"hindmost_process_{name}", label)
        for name, label in (("affinity_info", "cpus"), ("memory_nodes_info", "numa_nodes"))
    )
    found = {}
    for rank in sorted(runs_on.keys() & memory.keys()):
        (node, listed), (_, nodes) = runs_on[rank], memory[rank]
        near = [numa for numa, cpus in of_cpus.get(node, {}).items() if cpus & cpu_wait.cpus(listed)]
        found[rank] = frozenset(near), cpu_wait.cpus(nodes)  # nodes are listed as CPUs are
    return found


def _far_memory(facts: Facts) -> Advice | None:
    """Ranks that may have no memory of the NUMA node on which they run, with those nodes."""
    far: dict[tuple[int, int], list[int]] = {}
    for rank, (near, memory) in _numa_nodes(facts).items():
        if near and memory and near.isdisjoint(memory):
            far.setdefault((min(near), min(memory)), []).append(rank)
    if not far:
        return None
    found = [
        f"{names(ranks)} may run on CPUs of NUMA node {cpus} and have memory of node {memory}"
        for (cpus, memory), ranks in far.items()
    ]
    do = [
        f"for {names(ranks)}: `numactl --cpunodebind={memory} --membind={memory}`, or node {cpus} in `cpuset.mems`"
        for (cpus, memory), ranks in far.items()
    ]
    return Advice(
        "NUMA-remote memory",
        "; ".join(found),
        "a set of NUMA nodes for memory without those of the CPUs",
        "; ".join(do),
        1.0,
        ranks=tuple(sorted(rank for ranks in far.values() for rank in ranks)),
    )


def _remote_memory(facts: Facts) -> Advice | None:
    remote = facts.node("numa_remote_pages_total", "rate")
    local = facts.node("numa_local_pages_total", "rate")
    worst = max(remote, key=lambda node: remote[node], default=None)
    if worst is None or remote[worst] < REMOTE_PAGES:
        return None
    share = remote[worst] / (remote[worst] + local.get(worst, 0.0))
    if share < REMOTE:
        return None
    nodes = {rank: near for rank, (near, _) in _numa_nodes(facts).items() if facts.on.get(rank) == worst}
    several = [rank for rank, near in nodes.items() if len(near) > 1]
    do = f"bind each rank to one NUMA node: {advice.by_launcher(facts.run.job.command)[1]}"
    if nodes and all(len(near) == 1 for near in nodes.values()):
        do = "ranks are bound to one NUMA node each: see whether that is full, or who else runs there (`numastat -m`)"
    return Advice(
        "NUMA-remote memory",
        f"{percent(share)} of the pages that {worst} allocates lie on another NUMA node than their process"
        f" ({remote[worst]:,.0f} pages a second)" + (f"; {names(several)} may run on several" if several else ""),
        f"{percent(REMOTE)} of the pages, {REMOTE_PAGES:,.0f} a second",
        do,
        share * min(np.nan_to_num(facts.share("self"), nan=1.0), 1.0),
    )


#: Each has a process and batches of its own.
_MOST_WORKERS = 16


def _workers(facts: Facts) -> Advice | None:
    """More DataLoader workers, or fewer, for ranks that wait for input."""
    share, room = facts.input, facts.cpus_each
    workers = facts.rank("children", "mean")
    if not share >= INPUT or not room >= 1.0 or not workers or not facts.torch or facts.blocked >= BLOCKED:
        return None
    count, wanted = _median(workers.values()), max(int(room) - 1, 1)
    busy = facts.typical("children_cpu_seconds_total", "rate") / count if count >= 0.5 else float("nan")
    why = f"{percent(INPUT)} of the step"
    if count < 0.5:
        found, why = "and the typical rank has no worker process", f"{why}, no workers"
        waits = facts.share("input")
        if facts.typical("cpu_seconds_total", "rate") < waits / 2:  # workers that wait need no CPU of their own
            found, wanted = (
                f"{found}, which would mostly wait",
                min(math.ceil(waits / max(1.0 - waits, 0.01)), _MOST_WORKERS),
            )
    elif count > room:
        cpus = f"{room:.0f} CPU{'s' * (room >= 1.5)}"
        found, why = f"and a rank shares {cpus} with its {count:.0f} workers", f"{why}, more workers than CPUs"
    elif count < wanted and busy >= WORKERS_BUSY:
        found = f"a rank's {count:.0f} workers compute {percent(busy)} of the time, and it has {room:.0f} CPUs"
        why = f"{why}, workers {percent(WORKERS_BUSY)} busy, fewer than CPUs"
    else:
        return None
    return Advice(
        "DataLoader workers",
        f"{facts.input_costs}, {found}",
        why,
        f"`num_workers={wanted}, prefetch_factor=4, persistent_workers=True` in its `DataLoader`",
        share,
        adds=count < wanted,
    )


def _small_collectives(facts: Facts) -> Advice | None:
    if facts.seen is None or not len(facts.seen.ranks) or not facts.step > 0:
        return None
    small = [one for one in facts.traffic if one.bytes is not None and 0 < one.bytes <= SMALL_BYTES and one.transfer_ms]
    sums: dict[str, tuple[float, float]] = {}
    turns = _rank_steps(facts)
    for one in small:
        calls, took = sums.get(one.operation, (0.0, 0.0))
        sums[one.operation] = calls + one.calls / turns, took + one.calls * (one.transfer_ms or 0.0) * 1e6 / turns
    for operation, (calls, took) in sorted(sums.items(), key=lambda item: -item[1][1]):
        if calls >= MANY and took - facts.queued >= SMALL * facts.step:
            fuse = "send them together: one call with all of the data, or a nonblocking one"
            if "horovod" in facts.frameworks:
                fuse = "`HOROVOD_FUSION_THRESHOLD=134217728 HOROVOD_CYCLE_TIME=5`"
            elif facts.torch:
                fuse = "`DistributedDataParallel(..., bucket_cap_mb=100, gradient_as_bucket_view=True)`"
            return Advice(
                "many small collectives",
                f"{calls:.0f} {operation} of at most {SMALL_BYTES >> 10} KiB per step take {ms(took)}"
                f" ({percent(took / facts.step)} of it) beyond any waiting",
                f"{MANY} calls, {percent(SMALL)} of the step",
                fuse,
                took / facts.step,
            )
    return None


def _exposed(facts: Facts) -> Advice | None:
    """Large transfers that nothing hides."""
    large = [one for one in facts.traffic if one.exposed and one.transfer_ms and (one.bytes or 0) > SMALL_BYTES]
    if facts.seen is None or not large or not facts.step > 0:
        return None
    most = max(large, key=lambda one: one.calls * (one.transfer_ms or 0.0))
    took = most.calls * (most.transfer_ms or 0.0) * 1e6 / _rank_steps(facts)
    if took - facts.queued < EXPOSED * facts.step:
        return None
    do = "start it early and wait late: `MPI_I...` and `MPI_Wait` around the computing that does not need it"
    if (rest := facts.step - took) < took:  # this is all that could hide it
        do = f"send less data, or less often: overlap can hide {ms(rest)}; {advice.of_transfers(facts.run, ())}"
    if "horovod" in facts.frameworks:
        do = f"`DistributedOptimizer(..., compression=hvd.Compression.fp16, backward_passes_per_step=4)`, {_LARGER}"
    elif most.operation.startswith("ddp"):
        do = f"`with model.no_sync():` in 3 of 4 steps, {_LARGER}; `model.register_comm_hook(None, fp16_compress_hook)`"
    elif facts.torch:
        do = (
            "`DistributedDataParallel` sends gradients in backward;"
            f" `with model.no_sync()` in 3 of 4 steps sends them in the fourth, {_LARGER}"
        )
    pace = f", {_a_second(most.bandwidth)} of each rank" if most.bandwidth else ""
    return Advice(
        "collectives not overlapped",
        f"{most.operation} of up to {(most.bytes or 0) / (1 << 20):,.1f} MiB takes {ms(took)} of the step"
        f" ({percent(took / facts.step)}) beyond any waiting{pace}, and the rank does nothing else",
        f"{percent(EXPOSED)} of the step, calls of more than {SMALL_BYTES >> 10} KiB",
        do,
        min(took / facts.step, 1.0),
    )


#: Gradients of several steps that are sent together are those of one larger batch.
_LARGER = "if a batch 4 times as large is fine"


def _a_second(bandwidth: float) -> str:
    return f"{bandwidth / 1e6:.3g} MB/s" if bandwidth < 999.5e6 else f"{bandwidth / 1e9:,.3g} GB/s"


def _rank_steps(facts: Facts) -> float:
    """Steps of all ranks together that the traffic is of; no number is as large as that of calls beyond all steps."""
    assert facts.seen is not None  # noqa: S101 - asked before
    return (communication.steps_of(facts.run, facts.seen) or math.inf) * len(facts.seen.ranks)


def _copies(facts: Facts) -> Advice | None:
    call, copied = facts.share("device_copy"), facts.share("h2d")
    share = call if call >= COPIES else copied if copied >= COPIES else float("nan")
    if not share >= COPIES or not facts.torch:
        return None
    where = "hosts wait in copy calls" if call >= COPIES else "copies to the GPU take"
    found = f"{where} {percent(share)} of the step ({ms(share * facts.step)})"
    do = "`DataLoader(..., pin_memory=True)` and `batch.to(device, non_blocking=True)`: copies then overlap"
    received = facts.gpu("pcie_receive_bytes_per_second", "mean")
    generation, width = (facts.gpu(f"pcie_link_{name}", "highest") for name in ("generation", "width"))
    link = LANE.get(int(generation.min()), 0.0) * float(width.min()) if len(generation) and len(width) else 0.0
    if len(received) and link:
        pace = float(np.median(received)) / share
        found += f", at {pace / 1e9:.1f} of PCIe's {link / 1e9:.0f} GB/s"
        if pace >= PINNED * link:
            do = (
                "copies are as fast as the link: copy the next batch meanwhile (`non_blocking=True`), send less (uint8)"
            )
    return Advice("copies to the GPU", found, f"{percent(COPIES)} of the step", do, share)


def _launches(facts: Facts) -> Advice | None:
    """GPUs that idle while hosts are in forward, backward and optimizer, and do not wait there for their GPU."""
    busy, waits = facts.typical_gpu("utilization_ratio"), facts.share("device_wait")
    hosts = sum(facts.share(name) for name in ("forward", "backward", "optimizer")) - waits
    if not busy <= HALF or not hosts >= LAUNCHES or not facts.torch:
        return None
    return Advice(
        "tiny kernels",
        f"hosts launch kernels, or compute, for {percent(hosts)} of the step, and GPUs are busy {percent(busy)} of the"
        " time",
        f"{percent(LAUNCHES)} of the step, GPUs at most {percent(HALF)} busy",
        "`torch.compile(model, mode='reduce-overhead')` (CUDA graphs), `fused=True` in the optimizer, a larger batch",
        min(hosts, 1.0),
    )


def _synchronising(facts: Facts) -> Advice | None:
    share, busy = facts.share("device_wait"), facts.typical_gpu("utilization_ratio")
    if not share >= WAITS or not busy < BUSY:
        return None
    return Advice(
        "waiting for the GPU each step",
        f"hosts wait for their GPU {percent(share)} of the step, and GPUs are busy {percent(busy)}",
        f"waits of {percent(WAITS)} of the step on GPUs less than {percent(BUSY)} busy",
        "read `.item()`, `print(loss)` and metrics every 50 steps, not each",
        share,
    )


def _memory(facts: Facts) -> Advice | None:
    used, total = (facts.gpu(f"memory_{name}_bytes", "highest") for name in ("used", "total"))
    busy = facts.typical_gpu("utilization_ratio")
    if not len(used) or len(used) != len(total):
        return None
    peak = float((used / total).max())
    if peak >= NEARLY_FULL:
        return Advice(
            "GPU memory nearly full",
            f"its peak is {percent(peak)} of the GPU's memory",
            f"{percent(NEARLY_FULL)} of the GPU's memory",
            "`export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, or a smaller batch"
            + ("" if np.isnan(facts.batch) else f": {0.9 / peak * facts.batch:,.0f} instead of {facts.batch:,.0f}"),
        )
    if peak <= HALF and busy < BUSY:
        more = max(int(0.9 / max(peak, 0.05)), 2)
        return Advice(
            "GPU memory half empty",
            f"its peak is {percent(peak)} of the GPU's memory, and GPUs are busy {percent(busy)}",
            f"at most {percent(HALF)} of the memory, and GPUs less than {percent(BUSY)} busy",
            f"a larger batch: {more} times as large would fit, as far as memory grows with it"
            + ("" if np.isnan(facts.batch) else f" ({more * facts.batch:,.0f} items a rank)"),
        )
    return None


def _tensor_cores(facts: Facts) -> Advice | None:
    active, used, arithmetic = (facts.typical_gpu(f"{name}_activity_ratio") for name in ("sm", "tensor", "fp32"))
    if not active >= ACTIVE or not used <= IDLE_TENSOR or not arithmetic >= ARITHMETIC:
        return None
    return Advice(
        "tensor cores idle",
        f"SMs are active {percent(active)} of the time, FP32 works at {percent(arithmetic)} of its peak,"
        f" tensor cores at {percent(used)}",
        f"SMs active {percent(ACTIVE)}, FP32 at {percent(ARITHMETIC)}, tensor cores at most {percent(IDLE_TENSOR)}",
        "`torch.autocast('cuda', dtype=torch.bfloat16)`, or `torch.set_float32_matmul_precision('high')`",
        active,
    )


def _clocks(facts: Facts) -> Advice | None:
    clock, top = facts.gpu("sm_clock_hertz", "median"), facts.gpu("sm_clock_max_hertz", "highest")
    if not len(clock) or len(clock) != len(top) or not (top > 0).all():
        return None
    least = float((clock / top).min())
    reasons = facts.gpu("clocks_event_reasons", "median")
    why = [text for bit, text in SLOWING_REASONS.items() if any(int(one) & bit for one in reasons.tolist())]
    if least >= CLOCK or not why:
        return None
    cap = any(int(one) & POWER_CAP for one in reasons.tolist())
    return Advice(
        "GPU clocks",
        f"the slowest GPU runs at {percent(least)} of its highest clock: {', '.join(why)}",
        f"below {percent(CLOCK)} of the highest clock, with a reason that slows",
        "`nvidia-smi -q -d POWER,PERFORMANCE`; "
        + ("a higher power limit: `nvidia-smi -pl WATTS`" if cap else "look at its cooling"),
        1.0 - least,
    )


def _small_reads(facts: Facts) -> Advice | None:
    calls = facts.rank("read_calls_total", "rate")
    asked = facts.rank("read_characters_total", "rate")
    both = [rank for rank in calls if rank in asked and calls[rank] > 0]
    if not both or not facts.input >= INPUT:
        return None
    rate, size = _median(calls[rank] for rank in both), _median(asked[rank] / calls[rank] for rank in both)
    if rate < READS or size > SMALL_READ:
        return None
    return Advice(
        "small reads",
        f"{facts.input_costs}; the typical rank makes {rate:,.0f} reads a second, of {size:,.0f} bytes: many small"
        " files, or large ones in small pieces",
        f"{READS:,.0f} reads a second of at most {SMALL_READ >> 10} KiB",
        "pack samples into shards (WebDataset, TFRecord, Parquet), or read whole files at once",
        facts.input,
    )


def _writes(facts: Facts) -> Advice | None:
    """Ranks that wait for storage though neither for input nor for checkpoints: what they write is waited for.

    Where input is marked, saving a checkpoint is, too: no checkpoint was recorded then, and none was saved.
    """
    written, read = (facts.typical(f"{name}_bytes_total", "rate") for name in ("written", "read"))
    if facts.blocked < BLOCKED or not facts.input < INPUT or facts.share("checkpoint") >= INPUT:
        return None
    if not written >= WRITES or read > written:
        return None
    return Advice(
        "writes in the loop",
        f"the typical rank waits for storage {percent(facts.blocked)} of the time, not for input or checkpoints, and"
        f" writes {written / 1e3:,.1f} kB/s",
        f"{percent(BLOCKED)} of the time, input and checkpoints below {percent(INPUT)} of the step each, more written"
        " than read",
        "log every 50 steps, and without `flush()` and `os.fsync()`",
        facts.blocked,
    )


def _storage(facts: Facts) -> Advice | None:
    """Ranks whose input waits for storage, by what the node's busiest disk does meanwhile."""
    if facts.blocked < BLOCKED or not facts.input >= INPUT:
        return None
    busy, now, best = (
        usage.by_label(facts.metrics, f"hindmost_node_disk_{name}_total", "", how, "device")
        for name, how in (("busy_seconds", "rate"), ("read_bytes", "rate"), ("read_bytes", "peak_rate"))
    )
    found = f"{facts.input_costs}; a rank and its workers wait for storage {percent(facts.blocked)} of the time"
    disks = [(rate, owner, disk) for owner, of in now.items() for disk, rate in of.items() if rate > 0]
    do = "a local copy of the data, or one in memory (`/dev/shm`)"
    if disks:
        rate, owner, disk = max(disks)
        most, full = best.get(owner, {}).get(disk, rate), busy.get(owner, {}).get(disk, 0.0)
        found += f"; {disk} of {owner[0]} gives {rate / 1e6:,.1f} MB/s, at best {most / 1e6:,.1f}, busy {percent(full)}"
        if full < DISK_FULL and rate < FAR_BELOW * most:
            do = "ask for more at a time, the disk can do more: " + (
                "`DataLoader(..., num_workers=4, prefetch_factor=4)`, larger reads" if facts.torch else "larger reads"
            )
    why = f"{percent(BLOCKED)} of the time, input {percent(INPUT)} of the step"
    return Advice("storage", found, why, do, facts.input)


def with_domains(found: Sequence[Verdict], run: Run, seen: Overview | None, *, stalled: bool) -> list[Verdict]:
    """The verdicts, with that on an uneven domain for those in doubt. A rank that computes longer all along may have
    a larger domain or a slower CPU: it is advised on both, first on what memory and messages show, with the cost of
    each."""

    def may_be_uneven(one: Verdict) -> bool:
        if one.kind == "balanced":
            return one.confidence == UNSURE and not stalled
        all_along = not one.since_step and one.until_step is None
        return one.kind in LATE and one.cause in ("compute", "unknown") and all_along

    facts = Facts(run, seen, ())
    longest = facts.longest if any(map(may_be_uneven, found)) else None
    if longest is None:
        return list(found)
    uneven = _domains(facts)

    def advised(one: Verdict) -> Verdict:
        another = one.kind in LATE and not set(one.ranks) <= set(longest.ranks)
        cost = one.cost_ratio or 0.0
        if not may_be_uneven(one) or another or (one.cause != "compute" and cost > _WHOLE * longest.gone):
            return one
        saves = longest.of_cost(one)
        if one.ranks and uneven is not None:
            words = f"spread it evenly {saves}" if one.cause == "compute" and cost > 0 else ""
            shown = _domains(facts, words) or uneven
            return replace(one, advice=(f"{shown.set} ({shown.found})", *one.advice))
        if one.kind == "straggler" and one.cause == "compute" and not one.on_host and one.advice and cost > 0:
            how = "" if advice.in_python(run) else f" ({_BALANCERS})"
            return replace(one, advice=(*one.advice, advice.to_spread(one.ranks, how, saves)))
        if one.ranks or uneven is None:
            return one
        return Verdict(
            "uneven_workload",
            cause="workload",
            since_step=0,
            cost_ms_per_step=uneven.share * facts.step / 1e6,
            cost_ratio=uneven.share,
            confidence=_SURE_OF_DOMAINS,
            explained=1.0,
            evidence=(uneven.found,),
            advice=(uneven.set,),
        )

    return [advised(one) for one in found]


#: How to divide a domain by work.
_BALANCERS = "LAMMPS `fix balance`, another process grid"
_DIVIDE = f"divide the domain by work: the program's load balancer, {_BALANCERS}"
#: A verdict of unknown cause costs at most this many times what a rank works longer than the typical other one.
_WHOLE = 1.25


@dataclass(frozen=True)
class _Longest:
    """The ``rank`` that works longest, with ``ranks`` that work about as long; ns of the ``longest`` and ``mean`` work.

    Shares of the mean step that are saved: ``spread`` evenly over all, or with what it works longer than the typical
    other one ``gone``."""

    rank: int
    ranks: tuple[int, ...]
    longest: float
    mean: float
    spread: float
    gone: float

    def of_cost(self, one: Verdict) -> str:
        """``to save 36 %, not 72 %``: of what a verdict costs; of one that costs at least that, no limit is known."""
        less = (one.cost_ratio or 0.0) > self.spread and one.cost_is != AT_LEAST
        return f"to save {percent(self.spread)}" + (f", not {percent(one.cost_ratio or 0.0)}" if less else "")


def _longest_work(facts: Facts) -> _Longest | None:
    if facts.seen is None or not facts.compiled or len(facts.seen.ranks) < 2:
        return None
    cpu = facts.seen.planes.get("self_cpu")
    own = facts.seen.planes["self"] if cpu is None or np.isnan(cpu).all(axis=1).any() else cpu
    if np.isnan(own).all():
        return None
    work = median(own, axis=1)  # what it saves now and then is no domain
    row = int(np.nanargmax(work))
    longest, mean = float(work[row]), float(np.nanmean(work))
    spread = longest - mean
    if spread < UNEVEN * longest or not facts.step > 0:
        return None
    in_mean = float(np.nanmean(own[row]) - np.nanmean(own))  # of the mean step, as that is
    gone = longest - float(np.nanmedian(np.delete(work, row)))
    return _Longest(
        int(facts.seen.ranks[row]),
        tuple(facts.seen.ranks[work >= mean + spread / 2].tolist()),
        longest,
        mean,
        min(spread, in_mean) / facts.step,
        gone / facts.step,
    )


def _domains(facts: Facts, saves: str = "") -> Advice | None:
    """Uneven work of which memory or messages show that it is no slower CPU, and what spreading it ``saves``."""
    longest = facts.longest
    shown = _more_of(facts, longest.rank) if longest is not None else ""
    if longest is None or not shown:
        return None
    return Advice(
        "uneven domains",
        f"rank {longest.rank} works {ms(longest.longest)} of the step, the mean rank {ms(longest.mean)}, and has"
        f" {shown}; {saves or f'spread evenly, a step is {percent(longest.spread)} shorter'}",
        f"the mean rank works {percent(UNEVEN)} less than the longest, which has {MORE:.1f} times the others' memory,"
        " calls or bytes",
        _DIVIDE,
        longest.spread,
        ranks=longest.ranks,
    )


def _more_of(facts: Facts, rank: int) -> str:
    """Of what this rank has more than the median one of the others, in all and by neighbour; empty where nothing.

    The middle stages of a pipeline have two neighbours, its ends one.
    """
    table = facts.run.collectives
    known, row = np.unique(table["rank"], return_inverse=True)
    row = row.ravel()
    calls = np.where(table["comm"] == 0, np.maximum(table["seq"], 1), 1)  # many short ones share a row
    sums = {"calls": calls, "bytes sent and received": np.maximum(table["bytes"], 0)}
    counts = {name: np.bincount(row, values, len(known)).tolist() for name, values in sums.items()}
    by_rank = {"memory": facts.rank("resident_memory_bytes", "median")}
    by_rank |= {name: dict(zip(known.tolist(), values, strict=True)) for name, values in counts.items()}
    near = dict(zip(known.tolist(), messages.neighbours(facts.run, row).tolist(), strict=True))
    found = []
    for name, of in by_rank.items():
        others = [other for other in of if other != rank]
        usual, each = _median(of[one] for one in others), _median(of[one] / near.get(one, 1) for one in others)
        more = of.get(rank, 0.0)
        if usual > 0 and more >= MORE * usual and (name == "memory" or more / near[rank] >= MORE * each):
            found.append(f"{more / usual:.1f} times the {name} of the others")
    return " and ".join(found)


def _page_faults(facts: Facts) -> Advice | None:
    faults = facts.rank("major_page_faults_total", "rate")
    worst = max(faults, key=lambda rank: faults[rank], default=None)
    if worst is None or faults[worst] < FAULTS:
        return None
    return Advice(
        "memory of the node",
        f"rank {worst} has {faults[worst]:.0f} page faults from disk a second",
        f"{FAULTS:.0f} a second",
        "fewer workers or ranks per node, or more memory: `free -h`, `vmstat 1` shows swapping",
        ranks=(worst,),
    )


#: In no order: what is about the largest share of the step comes first.
RULES: tuple[Callable[[Facts], Advice | None], ...] = (
    _binding,
    _quota,
    _too_many_threads,
    _too_many_ranks,
    _too_few_threads,
    _spinning,
    _far_memory,
    _remote_memory,
    _workers,
    _small_collectives,
    _exposed,
    _copies,
    _launches,
    _synchronising,
    _memory,
    _tensor_cores,
    _clocks,
    _small_reads,
    _storage,
    _writes,
    _domains,
    _page_faults,
)
