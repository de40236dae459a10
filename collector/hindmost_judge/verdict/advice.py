"""What to do about a verdict: with the GPUs, processes and nodes of that machine, and the command to type.

A job without GPUs gets no advice about GPUs, one whose processes are not Python none about Python.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import CpuBinding
from hindmost_judge.causes import cpu_sharing, cpu_wait
from hindmost_judge.job_command import (
    ACCELERATE,
    HOROVODRUN,
    INTERPRETER,
    MPIRUN,
    SRUN,
    START_PYTHON,
    program_name,
    split,
)
from hindmost_judge.model import GPU_TIME, Job, Run, rows
from hindmost_judge.verdict import stacks
from hindmost_judge.verdict.schema import LATE, Verdict
from hindmost_judge.verdict.wording import SAVING, attach, names, percent, with_cause

#: Nodes, and processes, that an advice lists.
_NAMED, _PIDS = 4, 4
#: Computing on a rank's CPU that its GPU waits for: what to do differs from that about a slow GPU.
ON_HOST = "host"
#: Frameworks whose ranks load batches by torch's DataLoader.
_TORCH = ("torch", "horovod")
#: A GPU as recordings name it, and as ``nvidia-smi -i`` takes it.
_INDEX, _UUID = re.compile(r"(?:gpu)?(\d+)"), re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]+")


#: Frameworks of ranks that only the MPI shim or the NCCL plugin recorded, or nothing did.
_NATIVE = {"", "mpi", "nccl"}


@dataclass(frozen=True)
class Place:
    """Where the ranks of a verdict run: what a command needs, and whether it can be typed now (``runs``)."""

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    pids: tuple[int, ...]
    gpus: tuple[str, ...]
    with_gpus: bool
    framework: str
    python: bool
    runs: bool
    #: The control group whose CPU quota stops the only rank, and no other.
    quota: cpu_sharing.QuotaGroup | None = None
    #: Whether ranks with late input were seen to read from storage.
    storage: bool = False

    @property
    def on(self) -> str:
        """`` on vm``; empty where no node, or too many, are known."""
        return f" on {' and '.join(self.nodes)}" if 0 < len(self.nodes) <= 2 else ""

    @property
    def smi(self) -> str:
        """`` -i GPU-5c2e…``: the option that has nvidia-smi show these GPUs."""
        return f" -i {','.join(self.gpus)}" if self.gpus else ""


def place(run: Run, ranks: Sequence[int]) -> Place:
    """What is known of where these ranks run; of all, where there are none. Processes of a job that ended are gone."""
    table = run.ranks
    own = run.job.source == Job.source
    mask = np.isin(table["rank"], ranks) if len(ranks) else np.ones(len(table["rank"]), bool)
    gpus = [_gpu(str(name)) for name in table["gpu_uuid"][mask].tolist()]
    frameworks = {str(name) for name in table["framework"].tolist()} - {""}
    pids = sorted({int(pid) for pid in table["pid"][mask].tolist() if pid > 0})
    return Place(
        ranks=tuple(ranks),
        nodes=tuple(sorted({str(node) for node in table["node"][mask].tolist()} - {""})),
        pids=tuple(pids) if own and run.at_work and 0 < len(pids) <= _PIDS else (),
        gpus=tuple(gpus) if gpus and all(gpus) and len(gpus) <= _NAMED else (),
        with_gpus=with_gpus(run) or not own,
        framework=min(frameworks, default=""),
        python=in_python(run),
        runs=run.at_work,
    )


def in_python(run: Run) -> bool:
    """Whether ranks are Python processes, as far as frameworks and the command tell."""
    words = split(run.job.command or "")
    programs = {word.rpartition("/")[2] for word in words}
    return (
        run.job.source != Job.source
        or not words
        or not {str(name) for name in run.ranks["framework"].tolist()} <= _NATIVE
        or any(word.endswith(".py") or INTERPRETER.fullmatch(word) or word in START_PYTHON for word in programs)
    )


def with_gpus(run: Run) -> bool:
    """Whether anything recorded is of a GPU."""
    timed = [run.steps[name] for name in ("gpu_forward_ns", "gpu_backward_ns", "gpu_optimizer_ns") if name in run.steps]
    on_gpu = run.collectives["flags"] & GPU_TIME if rows(run.collectives) else np.zeros(0, np.int32)
    return bool((run.ranks["gpu_uuid"] != "").any() or on_gpu.any() or any((one > 0).any() for one in timed))


def _gpu(name: str) -> str:
    index = _INDEX.fullmatch(name)
    return index[1] if index else name if _UUID.fullmatch(name) else ""


def on(found: Verdict, run: Run, *, storage: bool = False, usual: float = 0.0) -> Verdict:
    """The verdict with what to do about late ranks, slow transfers and slow input; others say it themselves.

    ``storage``: ranks with late input were seen to read from storage. ``usual``: share of a step that the others are
    off the CPU between collectives.
    """
    if found.cause == "network":
        return replace(found, advice=(of_transfers(run, found.ranks),))
    if found.kind == "input_bound":
        ahead = f"{_LOAD_AHEAD[by_torch(run)]}, use faster storage, or copy the data to the node"
        return replace(found, advice=(ahead,))
    if found.kind not in LATE:
        return found
    cause = ON_HOST if found.on_host else found.cause or "unknown"
    where, causes = replace(place(run, found.ranks), storage=storage), found.causes or (cause,)
    if "cpu_contention" in causes and len(found.ranks) == 1:
        quota = cpu_sharing.own_quota(run, found.ranks[0])
        if quota is not None and quota.stopped >= (found.cost_ratio or 0.0) / 2:  # else others keep it waiting
            stopped = f"its control group was stopped {percent(quota.stopped)} of the time by its CPU quota"
            partial = "quota" if found.cause == "cpu_contention" else found.partial
            found = replace(found, partial=partial, evidence=(stopped, *found.evidence))
            where = replace(where, quota=quota)
    if found.partial in _OF_CAUSE and found.cause != "unknown":
        causes = (found.partial,)
    blocked = found.cause == "unknown" and found.partial == "blocked"
    off = stacks.off_cpu(run, found.ranks[:_NAMED], found.cost_ratio or 0.0, usual) if blocked else {}
    others = [rank for rank in found.ranks if rank not in off]
    do = [_see(run, rank, *seen) for rank, seen in off.items()]
    do += [of_cause(cause, place(run, others) if off else where) for cause in causes if others or not off]
    if off:
        lines = [f"rank {rank} was off the CPU at {line} in {often}" for rank, (line, often) in off.items()]
        found = replace(found, evidence=(*found.evidence[:1], *with_cause(lines, found.evidence[1:])))
    phase = "input" if found.kind == "straggler" else "checkpoint"  # perhaps, by code of its own
    marked = bool((run.steps[f"{phase}_ns"] >= 0).any() or (run.intervals["name"] == phase).any())
    saves = phase == "checkpoint" and found.cause == "compute"
    if (blocked or saves) and run.job.source == Job.source and not marked:
        perhaps = [_PERHAPS[phase]] * (phase == "checkpoint" or in_python(run))
        do = [*perhaps, *do] if saves and found.ranks == (0,) else [*do, *perhaps]  # who saves for all is the first
    return replace(found, advice=tuple(do))


#: How to load ahead: with torch's loader, and with one of the job's own.
_LOAD_AHEAD = {True: "use more DataLoader workers (num_workers)", False: "load batches ahead in a second thread"}


def by_torch(run: Run) -> bool:
    """Whether ranks load by torch's DataLoader, as far as their frameworks tell; they do where none is named."""
    frameworks = {str(name) for name in run.ranks["framework"].tolist()} - {""}
    return not frameworks or not frameworks.isdisjoint(_TORCH)


#: What code of the job may do where it is off the CPU: a loader of its own is to say when it loads.
_PERHAPS = {
    "input": 'if that is loading input, mark it: `import hindmost` and `with hindmost.phase("input"):` around it',
    "checkpoint": f"if it saves checkpoints there, save {SAVING}, or on all ranks",
}


def of_cause(cause: str, at: Place) -> str:
    """What to do about ranks that are late for this cause."""
    who, single = names(at.ranks), len(at.ranks) == 1
    if cause in _BY_PLACE:
        return _BY_PLACE[cause](at, who)
    if cause == "input":
        torch = at.framework in _TORCH
        disk = f"check the disk or mount that {who} {'reads' if single else 'read'} from{at.on} (`iostat -x 1`)"
        see = disk if at.storage else _look(at, who, " in the Dataset" * torch)
        return see + ". More DataLoader workers (num_workers) hide it" * torch
    words = _OF_ONE if single else _OF_SEVERAL
    return _OF_CAUSE[cause].format(who=who, on=at.on, smi=at.smi, **words)


#: How to lift a quota, by the file that sets it: of control groups of version 2, and 1.
_NO_QUOTA = {
    "cpu.max": "echo max > /sys/fs/cgroup{}/cpu.max",
    "cpu.cfs_quota_us": "echo -1 > /sys/fs/cgroup/cpu{}/cpu.cfs_quota_us",
}


def _free_cpus(at: Place, who: str) -> str:
    if at.quota is not None:
        group = at.quota.name.rstrip("/")
        lift = _NO_QUOTA.get(at.quota.file, "").format(group) if group else ""
        file = f"`{lift}`, or what sets it: " if lift else ""
        may = f"its control group {at.quota.name} may use {at.quota.cpus:g} CPUs, others more"
        return f"raise the CPU quota of {who}{at.on}: {may} ({file}{CPU_QUOTA})"
    its, pid = "its" if len(at.ranks) == 1 else "their", at.pids[0] if at.runs and len(at.pids) == 1 else "PID"
    bound = f"the CPU binding of {who}{at.on} (`taskset -cp {pid}`), {its} cgroup quota, and other processes"
    return f"check {bound} (`top`)" if at.runs else f"run the job again. Check {bound} (`top`)"


def of_stopped(at: Place, who: str = "", *, still: bool = False) -> str:
    """What to do about stopped processes: let those that are ``still`` stopped go on; find what stops them."""
    who = who or names(at.ranks)
    if still and at.runs:
        pids = " ".join(map(str, at.pids)) if at.pids and len(at.nodes) == 1 else "PID"
        pronoun = "it" if len(at.ranks) == 1 else "them"
        return f"`kill -CONT {pids}`{at.on} lets {who} go on; if a debugger holds {pronoun}, detach that"
    which = f" (PID {at.pids[0]})" if len(at.pids) == 1 == len(at.ranks) else ""
    return f"find what stopped {who}{which}{at.on}: SIGSTOP, Ctrl-Z, a debugger, cpulimit, the scheduler"


_OF_ONE = {"it": "it", "its": "its", "gpu": "GPU", "link": "link", "reads": "reads and writes", "reads_it": "reads"}
_OF_SEVERAL = {
    "it": "them",
    "its": "their",
    "gpu": "GPUs",
    "link": "links",
    "reads": "read and write",
    "reads_it": "read",
}
_OF_CAUSE = {
    "h2d": "check the PCIe {link} of the {gpu} of {who}{on} (`nvidia-smi -q{smi}`, section PCI). Use pinned memory",
    "gpu_contention": "stop other processes on the {gpu} of {who}{on} (`nvidia-smi{smi}` lists them), or move {it}",
    "gpu_throttle": "check cooling and power limit{on}: `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE{smi}`",
    "gc": "call gc.freeze() after start-up, or gc.collect() in the same step on all ranks",
    "checkpoint": f"save {SAVING}",
    "memory": "free memory{on}: `free -m` and `vmstat 1` show who uses it and what is swapped",
    "small_reads": "find what {who} {reads_it}{on} (`strace -f -e trace=read`). Pack small files into few (tar, HDF5),"
    " or read them once and keep them",
    "io": "check the disk or mount that {who} {reads}{on}: `iostat -x 1`",
    "workload": "give {who} as much work per step as {its} peers",
}


def _compare(at: Place, who: str) -> str:
    words = _OF_ONE if len(at.ranks) == 1 else _OF_SEVERAL
    stays = f"if slow there too, give {words['it']} less work"
    if not at.with_gpus:
        return f"run {who} on another core or node; {stays}"
    check = f"check the {words['gpu']} of {who}{at.on}: `nvidia-smi -q -d PERFORMANCE,TEMPERATURE{at.smi}`"
    return f"{check}. Then run {who if len(at.ranks) == 1 else 'them'} on another GPU: {stays}"


def to_spread(ranks: Sequence[int], how: str, saves: str) -> str:
    """What to do about ranks that are late if it is their work that is larger, and what that ``saves``."""
    return f"if {'its' if len(ranks) == 1 else 'their'} work is larger, spread it evenly{how} {saves}"


def _compare_hosts(at: Place, who: str) -> str:
    does = "it stays slow, see what its CPU does" if len(at.ranks) == 1 else "they stay slow, see what their CPUs do"
    run = "run" if at.runs else "in the next run, put"
    return f"{run} {who} on another core or node. If {does}{at.on}: {attach('')}"


def _look(at: Place, who: str, where: str = "") -> str:
    """How to see what ranks wait for, in processes that run or when the job runs again."""
    pid = str(at.pids[0]) if at.runs and len(at.pids) == 1 else ""
    stacks = f"`hindmost attach --stacks --pid {pid}`" if pid else attach()
    several = at.runs and len(at.nodes) == 1 and 1 < len(at.pids) <= _PIDS
    which = f" (PIDs {', '.join(map(str, at.pids))})" if several else ""
    tool = stacks if at.python else f"`gdb -p {pid or 'PID'}` or `strace -f -p {pid or 'PID'}`{which}"
    does = "does" if len(at.ranks) == 1 else "do"
    see = f"see what {who} {does}{where}{at.on}: {tool}"
    return see if at.runs else f"run the job again and {see}"


def _see(run: Run, rank: int, line: str, often: str) -> str:
    at, file = place(run, (rank,)), f", stacks/{rank}.txt" if run.job.source == Job.source else ""
    return f"see what rank {rank}{at.on} {'waits' if at.runs else 'waited'} for at {line} ({often}{file})"


#: What to do about these causes depends on where their ranks run.
_BY_PLACE: dict[str, Callable[[Place, str], str]] = {
    "compute": _compare,
    ON_HOST: _compare_hosts,
    "unknown": _look,
    "cpu_contention": _free_cpus,
    "stopped": of_stopped,
}
#: How launchers start ``total`` ranks, ``each`` on one node.
_RANKS = {
    **dict.fromkeys(SRUN, "`srun -n {total} --ntasks-per-node={each}`"),
    **dict.fromkeys(HOROVODRUN, "`horovodrun -np {total}`, {each} slots for each host in -H"),
    **dict.fromkeys(ACCELERATE, "`accelerate launch --num_processes {total}`"),
    "torchrun": "`torchrun --nproc-per-node {each}`",
    "deepspeed": "`deepspeed --num_gpus {each}`",
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch"), "`--nproc-per-node {each}`"),
}
#: How an mpirun spreads them over several nodes, and the words by which a command shows whose it is.
_SPREAD = {
    "Open MPI": (
        "--map-by ppr:{each}:node",
        r"--?(mca|map-by|bind-to|oversubscribe|x)|--allow-run-as-root|.*\.openmpi",
    ),
    "MPICH, Intel MPI": ("-ppn {each}", r"-ppn|-g?env\w*|-iface|-rmk|-bootstrap\S*|-prepend-rank|.*\.(hydra|mpich)"),
}


def of_ranks_per_node(command: str | None, each: int, nodes: int) -> str:
    """How to start at most so many ranks on ``each`` node, in the words of the launcher that the job was started with.

    An mpirun is given the number of all ranks, too: it refuses more than its mapping makes.
    """
    words = split(command or "")
    names = [program_name(word) for word in words]
    at = next((at for at, name in enumerate(names) if name in _RANKS or name in MPIRUN), None)
    if at is None:
        return ""
    if names[at] in _RANKS:
        text = _RANKS[names[at]].format(total=each * nodes, each=each)
        return text if nodes > 1 else text.partition(", ")[0]
    start = f"{names[at]} -np {each * nodes}"
    if nodes == 1:
        return f"`{start}`"
    known = [whose for whose, (_, mark) in _SPREAD.items() if any(re.fullmatch(mark, word) for word in words[at:])]
    spread = {whose: f"`{start} {_SPREAD[whose][0].format(each=each)}`" for whose in known or _SPREAD}
    return " or ".join(text if known[:1] else f"{text} ({whose})" for whose, text in spread.items())


def fewer_ranks(run: Run, each: int) -> str:
    """``at most 2 ranks per node: `mpirun -np 2```, with the command where its launcher is known."""
    how = of_ranks_per_node(run.job.command, each, len({*run.ranks["node"].tolist()}))
    return f"at most {each} rank{'s' * (each > 1)} per node" + (f": {how}" if how else "")


_NUMACTL = "`numactl --cpunodebind=N --membind=N`"
#: How launchers give each rank a CPU of its own, and how they keep it on one NUMA node.
_BINDING = {
    "srun": ("`srun --cpus-per-task=1 --cpu-bind=cores`", "`srun --cpu-bind=ldoms`"),
    "horovodrun": ('`horovodrun --mpi-args="--map-by core --bind-to core"`', _NUMACTL),
    **{name: (f"`{name} --map-by core --bind-to core`", f"`{name} --map-by numa --bind-to numa`") for name in MPIRUN},
}


def by_launcher(command: str | None) -> tuple[str, str]:
    """The two by the job's launcher; for an unknown one none, and numactl for each rank."""
    return next((_BINDING[one] for one in map(program_name, split(command or "")) if one in _BINDING), ("", _NUMACTL))


#: What sets the CPU quota of a job.
CPU_QUOTA = "`resources.limits.cpu` (Kubernetes), `--cpus` (containers), `CPUQuota=` (systemd)"
#: Programs that bind what they start.
_BINDERS = ("taskset", "numactl")


def of_binding(run: Run, bound: Sequence[CpuBinding]) -> tuple[str, ...]:
    """How to give a CPU of its own to each of the ranks that share too few: in the command, and of running ones."""
    first, words = bound[0], split(run.job.command or "")
    programs = list(map(program_name, words))
    if not first.listed:
        return (f"raise the CPU quota of the job on {first.node} to {first.ranks} CPUs: {CPU_QUOTA}",)
    found = _moves(run, first) if len(bound) == 1 else []
    binder = next((at for at, word in enumerate(programs) if word in _BINDERS), None)
    enough = sum(node == first.node for node in run.ranks["node"].tolist()) <= first.of
    launcher = by_launcher(run.job.command)[0] if enough else ""
    own = f"{launcher} gives each rank a CPU of its own" if launcher else ""
    if binder is not None:
        mask = next((at for at in range(binder + 1, len(words)) if not words[at].startswith("-")), binder)
        binding = " ".join(words[binder : mask + 1]) if programs[binder] == "taskset" else programs[binder]
        return (*found, f"start the job without `{binding}`" + (f"; {own}" if own else ""))
    if own:
        return (*found, f"{own}; if none is free there, the job's shell or allocation is bound: `taskset -cp $$`")
    return (*found, "find what binds the ranks: taskset, numactl, os.sched_setaffinity, a cpuset (`taskset -cp $$`)")


def _moves(run: Run, one: CpuBinding) -> list[str]:
    """The commands that move running ranks to free CPUs, where all of a node's ranks are bound to the same ones."""
    at, own = place(run, one.members), cpu_wait.cpus(one.listed)
    free = [cpu for cpu in range(one.of) if cpu not in own]
    pid = dict(zip(run.ranks["rank"].tolist(), run.ranks["pid"].tolist(), strict=True))
    more = [pid[rank] for rank in one.members[one.cpus :]]
    alone = one.ranks == int((run.ranks["node"] == one.node).sum())
    if not at.runs or not alone or len(more) > min(len(free), _PIDS) or min(more) <= 0:
        return []
    each = " and ".join(f"`taskset -cp {cpu} {pid}`" for cpu, pid in zip(free, more, strict=False))
    return [f"at once, on {one.node}: {each}"]


_BETWEEN = "NIC counters (`ethtool -S`), cables, the switch port"
_OF_GPUS = "`nvidia-smi nvlink -e`, PCIe width, `nvidia-smi topo -m`"
_OF_HOSTS = "memory bandwidth, NUMA binding, other processes"


def of_transfers(run: Run, ranks: Sequence[int]) -> str:
    """Where to look for slow transfers of ``ranks``, of all where there are none: in their node, or between nodes."""
    at = place(run, ranks if len(ranks) > 1 else ())
    who = f"the link of {names(ranks)}" if ranks else "the network of all ranks"
    others = "" if ranks else ", other jobs"
    if not at.nodes:
        return f"check {who}: in a node {_OF_GPUS}; between nodes {_BETWEEN}{others}"
    if len(at.nodes) > 1:
        more = f" and {len(at.nodes) - _NAMED} more" if len(at.nodes) > _NAMED else ""
        return f"check {who} between {', '.join(at.nodes[:_NAMED])}{more}: {_BETWEEN}{others}"
    return f"check {who} within {at.nodes[0]}: {_OF_GPUS if at.with_gpus else _OF_HOSTS}"
