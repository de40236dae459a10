"""Why a rank is late: each measurement's share of the delay. A measurement that explains little is no cause.

The kernel's pressure counters, for memory and for files and disks, cover all tasks of a node. What exceeds the peers'
nodes belongs to the node. On a single node all ranks see the same; there it belongs to one rank only if that rank alone
reads from disk as it would have to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes import cpu_wait, launch_bound, slow_computing
from hindmost_judge.causes.launch_bound import CLOCKS_NS
from hindmost_judge.causes.telemetry import scattered
from hindmost_judge.model import OTHER
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, median, or_zero, others_level
from hindmost_judge.timeline import build_blocks, cohorts, matching
from hindmost_judge.types import Array, Floats

#: The most that overlap may hide: forward and the start of backward, a third of computing, stay visible (times the
#: visible delay).
_MOST_HIDDEN = 3.0
#: Rate above the peers at which a node's memory pressure is this rank's own (page faults a second).
_OWN_MAJOR_FAULTS = 10.0
#: Storage traffic at which a node's I/O wait is this rank's own; logs and metrics are kilobytes (MB a second).
_OWN_FILE_MB = 1.0
#: A rank that computes longer by more than this queues for CPUs with its own work: no contention (of the delay).
_QUEUE_WITHOUT_WORK = 0.1
#: Run-queue delay of the main thread above its peers, before that of its other threads counts (of the step).
_STARVED_SHARE = 0.05
#: Stalls are saves where a rank writes for this share of them.
_MOSTLY = 0.5
#: A host phase that uses less CPU time than this waits for something (of a CPU).
_IDLE_CPU = 0.2

MEASURES = {
    "compute": "computing",
    "cpu_contention": "waiting for a CPU",
    "input": "input",
    "h2d": "copying to the GPU",
    "gc": "garbage collection",
    "checkpoint": "checkpoints",
    "io": "file I/O",
    "memory": "waiting for memory",
    "blocked": "off the CPU",
    "idle": "GPU idle for lack of launches",
}
_SYSTEM = ("memory", "cpu_contention", "gc", "checkpoint", "io")
#: Parts that are there now and then, in some steps of some ranks: not seen is not happened.
NOW_AND_THEN = ("checkpoint", "gc")
#: What a rank did instead of working, for an unknown reason.
_UNEXPLAINED = ("blocked", "idle")
_HOST_FIRST = (*_SYSTEM, "input", "h2d", "compute")
#: Where GPU phases were timed, what the host does late may be hidden by work still queued: the GPU's own word first.
_GPU_FIRST = (*_SYSTEM, "compute", "input", "h2d")


#: With all of these timed, forward and optimizer tell how much longer backward is.
_ON_GPU = {"gpu_forward", "gpu_backward", "gpu_optimizer"}


#: Evidence of blocks that hold off-CPU time instead of a delay.
OFF = "off the CPU"


@dataclass(frozen=True)
class Cause:
    """``cause`` explains the fraction ``explained`` of the delay; with ``unknown``, ``partial`` explains most.

    ``beyond`` is how many times the visible delay the cause's own measurement is. In backward, collectives queue,
    and how much later a slow GPU's gradients get is not visible. ``hidden`` ns a step of the rest show between
    collectives. ``queued`` ns a step of computing are no CPU time: for as long it waits for a CPU, as its peers do for
    the same work.
    """

    cause: str
    explained: float | None = None
    partial: str | None = None
    shares_ns: tuple[tuple[str, float], ...] = ()
    remark: str | None = None
    beyond: float = 1.0
    hidden: float = 0.0
    queued: float = 0.0


def explain(blocks: Blocks, row: int, columns: Array, settings: Settings, between: float = 0.0) -> Cause:
    """The cause of one rank's delay over the steps ``columns`` (indices).

    ``between``: ns a step by which collectives overlapped with backward show it to be longer, from the first to the
    last.
    """
    since = int(columns[0])
    columns = typical(blocks, row, columns, settings)
    blocks = launch_bound.timed(blocks, row, columns)
    delay = average(blocks.delay[row, columns])
    shares = _shares(blocks, row, columns, between)
    if not shares or not delay > 0:
        return Cause("unknown")
    fractions = {name: float(np.clip(ns / delay, 0.0, 1.0)) for name, ns in shares.items()}
    if scattered(columns) and fractions.get("checkpoint", 0.0) >= _MOSTLY:  # it computes there what it saves
        fractions["checkpoint"] = min(fractions["checkpoint"] + fractions.get("compute", 0.0), 1.0)
    listed = tuple(sorted(shares.items(), key=lambda item: -item[1]))
    queued = min(queued_with(blocks, row, columns), max(shares.get("compute", 0.0), 0.0))
    order = _GPU_FIRST if "gpu_forward" in blocks.parts or blocks.computing is not None else _HOST_FIRST
    for name in order:
        if fractions.get(name, 0.0) >= settings.min_explained:
            finer = (
                slow_computing.refined_compute_cause(blocks, row, columns, since, settings, between)
                if name == "compute"
                else None
            )
            why, remark = finer or (name, None)
            beyond = 1.0
            if name == "compute":  # but for what shows ``between`` collectives, which is known in full
                phases = _shares(blocks, row, columns, 0.0) if between else shares
                beyond = _beyond(blocks, phases.get(name, 0.0) / delay)
            partial = {"unknown": name, "io": "small_reads"}.get(why) if name == "compute" else None
            return Cause(why, fractions[name], partial, listed, remark, beyond, queued=queued)
    more = slow_computing.more_work(blocks, row, columns, settings)
    if more is not None:  # of work launched later, too: more samples lengthen all in their ratio
        seen = sum(max(ns, 0.0) for ns in shares.values())
        listed += (("compute", more[1]),) if seen < more[1] else ()  # of GPUs that were not timed
        return Cause("workload", min(max(seen, more[1]) / delay, 1.0), None, listed, more[0], queued=queued)
    best = max(fractions, key=lambda name: fractions[name])
    return Cause("unknown", fractions[best], best if fractions[best] > 0 else None, listed, queued=queued)


def typical(blocks: Blocks, row: int, columns: Array, settings: Settings) -> Array:
    """Those of these steps (indices) in which a rank is about as late as it usually is in them."""
    large = settings.large_effect * blocks.step_ns
    return np.asarray(columns[_typical_steps(blocks.delay[row, columns], _sampled(blocks, row, columns), large)])


def _beyond(blocks: Blocks, measured: float) -> float:
    """How many times its delay longer computing is: as ``measured``; with uneven work, also from the steps' length."""
    # Backward is the GPU phase that may wait.
    unseen = blocks.evidence == build_blocks.PHASES and blocks.parts.keys() >= _ON_GPU
    if not blocks.overlapped and not unseen:
        return 1.0
    times = float(np.clip(measured, 1.0, _MOST_HIDDEN))
    return times if blocks.work_delay is None else (times + blocks.work_delay.times) / 2


def _typical_steps(delay: Floats, sampled: Array, large: float) -> Array:
    """Indices of the steps in the middle half by delay: over these, parts are averaged, so that they add up.

    Taken from the ``sampled`` [N] steps and from the others separately: chance must not leave out all of few
    samples. A single one is enough if it is ``large``: that is no noise.
    """
    halves = []
    groups = [np.flatnonzero(sampled), np.flatnonzero(~sampled)]
    tells = len(groups[0]) > 1 or not len(groups[1]) or bool(np.any(delay[groups[0]] >= large))
    for steps in groups if tells else groups[1:]:
        order = steps[np.argsort(or_zero(delay[steps]), kind="stable")]
        quarter = len(order) // 4
        halves.append(order[quarter : len(order) - quarter])
    return np.sort(np.concatenate(halves))


def _sampled(blocks: Blocks, row: int, columns: Array) -> Array:
    """[N] in which of these steps the probe measured what it measures of some only: GPU times and the run queue."""
    for name in ("gpu_forward", "runqueue"):
        if name in blocks.parts:
            return np.asarray(~np.isnan(blocks.parts[name][row, columns]))
    return np.ones(len(columns), bool)


def _shares(blocks: Blocks, row: int, columns: Array, between: float) -> dict[str, float]:
    """Cause to ns a step of the delay that its measurement accounts for; files for what nothing else does."""
    late = average(blocks.delay[row, columns])
    idle = gpu_idle(blocks, row, columns) if blocks.lanes is None else 0.0  # its host is judged itself
    found = with_gpu_idle(_measured(blocks, row, columns, between), idle, late)
    stood = of_files(blocks, row, columns)
    if stood > 0:
        explained = sum(max(ns, 0.0) for name, ns in found.items() if name not in _UNEXPLAINED)
        more = float(np.clip(late - explained, 0.0, stood))
        found["io"] = found.get("io", 0.0) + more
        for name in _UNEXPLAINED:
            found[name] = max(found.get(name, 0.0) - more, 0.0)
    return found


def _measured(blocks: Blocks, row: int, columns: Array, between: float) -> dict[str, float]:
    """Cause to ns a step of this rank's delay by its phases, CPU times and kernel counters."""
    parts = _with_most_of_peers(blocks, row)
    found = of_memory(blocks, row, columns)
    for phase in NOW_AND_THEN:
        if phase in parts:
            found[phase] = excess_of(or_zero(parts[phase]), row, columns)
    for phase in ("input", "h2d"):
        if phase in parts:
            found[phase] = excess_of(parts[phase], row, columns)
    if "self_cpu" in parts:
        if blocks.evidence != OFF:  # a delay off the CPU has no part in which it computed, or queued
            found |= _of_processor(blocks, row, columns, parts["self_cpu"], parts.get("self_runqueue"))
            found["compute"] = max(found["compute"], _computed(blocks, row, columns))
        if "self_blocked" in parts or any(name in parts for name in FILES):
            blocked = parts.get("self_blocked", np.zeros_like(parts["self_cpu"]))
            found |= _of_files(blocks, row, columns, excess_of(blocked, row, columns), found)
            if "self_runqueue" in parts:
                _charge_late(blocks, row, columns, found, excess_of(parts["self_runqueue"], row, columns))
        return found
    found |= _waited_for_a_cpu(blocks, row, columns, found)
    taken = taken_off(blocks, row, columns)
    launched, followed = (0.0, blocks) if taken > 0 else launch_bound.apart(blocks, row, columns)
    if followed is not None:
        _charge_computing(followed, row, columns, found, between)
    found |= {"idle": launched} if launched > 0 else {}
    _charge_rest(blocks, row, columns, found)
    return found


def _waited_for_a_cpu(blocks: Blocks, row: int, columns: Array, found: dict[str, float]) -> dict[str, float]:
    """Contention as the probe saw it of the main thread, or as samples show it; nothing where neither does."""
    if "runqueue" not in blocks.parts:
        waited = _of_threads(blocks, row, columns, found)
        return {"cpu_contention": waited} if waited > 0 else {}
    queue = blocks.parts["runqueue"]  # the probe samples it in some steps only; the others are unknown
    cpu = blocks.parts.get("cpu", np.zeros_like(queue))
    queued = _of_processor(blocks, row, columns, cpu, queue)["cpu_contention"]
    if excess_of(cpu, row, columns) <= _QUEUE_WITHOUT_WORK * average(blocks.delay[row, columns]):
        queued = max(queued, _of_threads(blocks, row, columns, found))  # who computes more also queues more
    return {"cpu_contention": queued}


def _with_most_of_peers(blocks: Blocks, row: int) -> dict[str, Floats]:
    """The parts, with those of a peer's self time that were not read as all of it: none of them is longer."""
    peers = (np.arange(len(blocks.ranks)) != row)[:, None]
    most = {
        name: np.where(np.isnan(part) & peers, blocks.self_time, part)
        for name, part in blocks.parts.items()
        if name in ("self_cpu", "self_runqueue", "self_blocked")
    }
    return blocks.parts | most


def _charge_computing(blocks: Blocks, row: int, columns: Array, found: dict[str, float], between: float) -> None:
    """Count what phases of computing are longer by as computing, or as off the CPU where the rank hardly used one."""
    computing = [excess_of(block, row, columns) for block in _computing(blocks)]
    if "gpu_forward" in blocks.parts and blocks.computing is None:
        hidden = _hidden_backward(blocks, row, columns) if "gpu_backward" in blocks.parts else 0.0
        timed = not np.isnan(blocks.parts["gpu_forward"][row, columns]).all()
        computing.append(max(hidden, between if timed else 0.0))
    if computing:
        # Phases that wait for others inside shrink where the rank is late: only what grew speaks of the rank itself.
        more = sum(max(ns, 0.0) for ns in computing) - max(found.get("cpu_contention", 0.0), 0.0)
        more = max(more, _longer_computing(blocks, row, columns) - max(found.get("h2d", 0.0), 0.0))
        found["blocked" if _is_idle(blocks, row, columns) else "compute"] = more


def _charge_rest(blocks: Blocks, row: int, columns: Array, found: dict[str, float]) -> None:
    """Count extra time outside all phases as computing as far as CPU time grew, the rest as off-CPU.

    Without CPU times the split is unknown.
    """
    if OTHER not in blocks.parts or "cpu" not in blocks.parts or np.isnan(blocks.parts["cpu"][row, columns]).all():
        return
    more = max(excess_of(blocks.parts[OTHER], row, columns), 0.0)
    explained = sum(max(found.get(name, 0.0), 0.0) for name in ("compute", "input", "gc", "checkpoint"))
    ran = float(np.clip(excess_of(blocks.parts["cpu"], row, columns) - explained, 0.0, more))
    queued = float(np.clip(found.get("cpu_contention", 0.0), 0.0, more - ran))
    found["compute"] = found.get("compute", 0.0) + ran
    found["blocked"] = found.get("blocked", 0.0) + more - ran - queued


def _computed(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step of computing longer at least: a peer's self time that was not read in parts is all CPU time, then."""
    cpu, queue = _with_most_of_peers(blocks, row)["self_cpu"], blocks.parts.get("self_runqueue")
    if queue is not None:
        queue = np.where(np.isnan(blocks.parts["self_cpu"]) & ~np.isnan(cpu), 0.0, queue)
    return _of_processor(blocks, row, columns, cpu, queue)["compute"]


def queued_with(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step of what counts as computing for which a rank waits for a CPU, measured between collectives."""
    if "self_cpu" not in blocks.parts or "self_runqueue" not in blocks.parts:
        return 0.0
    more = excess_of(_with_most_of_peers(blocks, row)["self_cpu"], row, columns)
    return max(_computed(blocks, row, columns) - more, 0.0)


def _of_processor(blocks: Blocks, row: int, columns: Array, cpu: Floats, runqueue: Floats | None) -> dict[str, float]:
    """The delay split into computing and waiting for a CPU.

    On a shared machine a rank that computes longer also queues longer. Queueing that peers suffer alike belongs to
    the computing; only what exceeds it is contention of this rank. Peers' queueing shows between their collectives,
    for the same CPU time, or in their whole process if they spin in collectives meanwhile. The latter says
    nothing of a rank that hardly computes longer.
    """
    more = excess_of(cpu, row, columns)
    if runqueue is None:
        return {"compute": more}
    queued = excess_of(runqueue, row, columns)
    others = np.delete(np.arange(len(blocks.ranks)), row)
    busy = float(median(cpu[np.ix_(others, columns)]))
    usual = float(median(runqueue[np.ix_(others, columns)])) / busy if busy > 0 else 0.0
    alike = queued * _like_peers(blocks, row, columns) if more > _QUEUE_WITHOUT_WORK * queued else 0.0
    shared = np.clip(max(more * usual, alike), 0.0, max(queued, 0.0))
    return {"cpu_contention": float(queued - shared), "compute": float(more + shared)}


def _of_threads(blocks: Blocks, row: int, columns: Array, found: dict[str, float]) -> float:
    """Ns a step in which threads of an oversubscribed process waited for a CPU, up to what is left of its delay.

    The steps have the main thread only, which waits in backward for the thread that computes it.
    """
    waited = cpu_wait.unmeasured_wait(blocks, row, columns)
    if waited < _STARVED_SHARE * average(blocks.period[columns]):
        return 0.0
    marked = sum(max(found.get(name, 0.0), 0.0) for name in ("gc", "checkpoint"))
    late = max(average(blocks.delay[row, columns]) - marked, 0.0)
    if len(columns) < len(blocks.steps) / 2:  # a sample speaks of a second, in which few steps are struck
        waited = max(waited, cpu_wait.unmeasured_share(blocks, row) * late)
    return float(min(waited, late))


def _charge_late(blocks: Blocks, row: int, columns: Array, found: dict[str, float], queued: float) -> None:
    """Count time off the CPU as waiting for one as far as the process is known to have waited, beyond what ``queued``.

    The kernel charges a wait when it pleases, above all of a control group that is out of its quota.
    """
    unknown = max(found.get("blocked", 0.0), 0.0)
    late = min(unknown, max(_of_threads(blocks, row, columns, found) - max(queued, 0.0), 0.0))
    if late > 0:
        found["blocked"], found["cpu_contention"] = unknown - late, max(found.get("cpu_contention", 0.0), 0.0) + late


def _like_peers(blocks: Blocks, row: int, columns: Array) -> float:
    """0 to 1: how much of a rank's queueing for CPUs its peers' processes suffer alike, per second."""
    rates = blocks.gauge("runqueue", columns)
    if rates is None or np.isnan(rates[row]) or rates[row] <= 0:
        return 0.0
    theirs = cpu_wait.has_run(blocks, row, columns) * others_level(rates, row)
    return 0.0 if np.isnan(theirs) else min(theirs / float(rates[row]), 1.0)


#: Parts of self time spent in files, and their purpose.
FILES = {"file_read": "input", "file_sync": "checkpoint", "file_write": "io"}


def _of_files(blocks: Blocks, row: int, columns: Array, blocked: float, marked: dict[str, float]) -> dict[str, float]:
    """Time off the CPU, and what of it was in reading (input) and in writing files (checkpoints, where flushed).

    A phase that the loop ``marked`` as input or as a checkpoint counts as that, whatever it waits for. What exceeds the
    time off the CPU ran there, or queued: that is no computing.
    """
    found: dict[str, float] = {name: marked[name] for name in ("input", "checkpoint") if name in marked}
    for name, cause in FILES.items():
        if name in blocks.parts:
            found[cause] = max(excess_of(blocks.parts[name], row, columns), found.get(cause, 0.0))
    left = max(blocked, 0.0) - sum(max(ns, 0.0) for ns in found.values())
    computed = max(marked.get("compute", 0.0), 0.0)
    computing = {"compute": marked["compute"] - min(max(-left, 0.0), computed)} if "compute" in marked else {}
    if found.get("checkpoint", 0.0) > 0 and "io" in found:  # what is flushed was written to be kept
        found["checkpoint"] += max(found.pop("io"), 0.0)
    return found | computing | {"blocked": max(left, 0.0)}


def _computing(blocks: Blocks) -> list[Floats]:
    """Phases of computing: the GPU's where measured, else the host's, less what was waited inside them."""
    parts = blocks.parts
    if blocks.computing is not None:  # phases of a pipeline's step wait for other stages inside
        return [blocks.computing]
    if blocks.lanes is not None:  # of these phases the waits are taken out
        return [parts[name] for name in ("forward", "backward", "optimizer") if name in parts]
    on_gpu = [parts[name] for name in ("gpu_forward", "gpu_optimizer") if name in parts]
    if on_gpu:
        return on_gpu
    found = [parts[name] for name in ("forward", "optimizer") if name in parts]
    if "backward" in parts and not np.isnan(blocks.wait).all():
        found.append(parts["backward"] - (0.0 if "sync" in parts else blocks.wait))
    return found


def _is_idle(blocks: Blocks, row: int, columns: Array) -> bool:
    """Whether this rank's computing phases on the host hardly used a CPU, or it was off the CPU for most of its
    delay."""
    if "cpu" not in blocks.parts or "gpu_forward" in blocks.parts or blocks.computing is not None:
        return False
    busy = float(sum(median(block[row, columns]) for block in _computing(blocks)))
    if float(median(blocks.parts["cpu"][row, columns])) < _IDLE_CPU * busy:
        return True
    late = float(median(blocks.delay[row, columns]))
    most = cpu_wait.MOSTLY_OFF_CPU
    blocked = float(median(cpu_wait.off_cpu_in_step(blocks, row, columns)))  # CPU time may be spent on waiting, too
    ran = float(median(cpu_wait.cpu_beyond_peers(blocks, row, columns)))
    return blocked >= most * late or (blocked >= late / 2 and ran <= (1 - most) * late)


def _hidden_backward(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step by which backward on the GPU is longer, where the peers' waiting hides it.

    A GPU that is slow in forward and optimizer is slow in backward, in the same ratio. Slow in forward alone says
    nothing of backward.
    """
    parts = blocks.parts
    forward = excess_of(parts["gpu_forward"], row, columns)
    usual = float(median(parts["gpu_forward"][row, columns])) - forward
    if forward <= 0 or usual <= 0:
        return 0.0
    ratio = forward / usual
    if "gpu_optimizer" in parts:
        more = excess_of(parts["gpu_optimizer"], row, columns)
        least = float(median(parts["gpu_optimizer"][row, columns])) - more
        ratio = min(ratio, more / least) if least > 0 else 0.0
    ratio = max(ratio, 0.0)
    backward = _backward_alone(blocks, row, columns, ratio)
    return ratio * backward if np.isfinite(backward) else 0.0


def _backward_alone(blocks: Blocks, row: int, columns: Array, ratio: float) -> float:
    """Ns of a healthy rank's backward without waiting, that of ``row`` being longer in this ratio.

    That of the rank that waits least: this one, and with uneven work now one and now another.
    """
    took = blocks.parts["gpu_backward"][:, columns]
    if blocks.work_delay is None:
        waiting = median(took, axis=1)
        return float(np.min(waiting[~np.isnan(waiting)], initial=np.inf)) / (1 + ratio)
    usual = took / (1 + np.maximum(blocks.work_delay.more[:, columns], -0.9))
    usual[row] /= 1 + ratio
    least = np.fmin.reduce(usual, axis=0)
    return float(np.nan_to_num(median(least), nan=np.inf))


def excess_of(block: Floats, row: int, columns: Array) -> float:
    """Ns a step by which a rank is above its typical peer, on average; 0 where it was not measured."""
    chosen = block[:, columns]
    others = np.delete(chosen, row, axis=0)
    if len(others) == 0:
        return 0.0
    more = chosen[row] - median(others, axis=0)
    known = more[~np.isnan(more)]
    return float(known.mean()) if len(known) else 0.0


def gpu_idle(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step, over the steps ``columns`` (indices), for which a rank's GPU idles while its peers' work.

    That is what its host makes it late by, wherever in the step. Events around a phase on the GPU count the gaps
    between its kernels, too: a host that reads a file in forward makes it longer just as longer kernels do. Kernels
    that wait for others count as work: it is the late rank's GPU that idles. 0 where it was not measured.
    """
    if blocks.starvation is not None:  # when operations were launched tells it better than a driver's share of the time
        idled = average(cohorts.beyond_peers(blocks.starvation[:, columns], blocks.cohort)[row])
        return max(float(np.nan_to_num(idled)) - taken_off(blocks, row, columns), 0.0)
    if scattered(columns):
        return 0.0
    busy = blocks.gauge("utilization", columns)
    if busy is None or np.isnan(busy[row]):
        return 0.0
    usual = others_level(busy, row)
    return max(float(np.nan_to_num(usual - busy[row])), 0.0) * average(blocks.period[columns])


def taken_off(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step that a stage's GPU waits for its host and that is no part of how late it is."""
    if blocks.starvation is None:
        return 0.0
    own = cohorts.beyond_peers(blocks.self_time[:, columns], blocks.cohort)[row]
    return max(float(np.nan_to_num(average(own - blocks.delay[row, columns]))), 0.0)


def with_gpu_idle(shares: dict[str, float], idle: float, delay: float) -> dict[str, float]:
    """Shares with a GPU's idle time as its host's: as ``idle``, as far as no known work of the host explains it.

    A driver counts a GPU as busy to a few per cent: if it idled for nearly all that is left, nothing is computing.
    Where computing exceeds the visible delay, the share that is left goes on beyond it.
    """
    left = delay - sum(max(ns, 0.0) for name, ns in shares.items() if name not in ("compute", "idle"))
    more = max(idle, shares.get("idle", 0.0)) - (delay - left)
    if min(more, left) <= 0:
        return shares
    more = left if more >= cpu_wait.MOSTLY_OFF_CPU * left else more
    computing = max(shares.get("compute", 0.0), 0.0)
    computed = left - more if computing <= left else computing - more * computing / left
    return shares | {"idle": more, "compute": min(computing, computed)}


def _longer_computing(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns per step, over the steps ``columns`` (indices), that a GPU computes longer though all of it was launched.

    A collective that was enqueued before the one that precedes it had ended found the GPU at work on what was launched
    before that: of the time between the two nothing is the host's. In tensor groups, whose phases hold the others'
    waiting too, no phase tells it. 0 where collectives overlap with computing, or enqueue times are unknown."""
    grid = blocks.joined
    if grid is None or not grid.gpu_time or blocks.overlapped or blocks.pipeline is not None:
        return 0.0
    if blocks.intervals.shape != grid.start.shape or not (grid.enqueue[row] > 0).any():
        return 0.0
    own = matching.self_time(grid, blocks.overlapping)[row]
    launched = grid.start[row] - grid.enqueue[row] > or_zero(own) + CLOCKS_NS
    mask = np.isin(blocks.interval_step, columns) & launched & ~blocks.overlapping
    return max(float(np.nan_to_num(blocks.intervals[row, mask]).sum()) / len(columns), 0.0)


#: How many times the peers' rate makes a rate this rank's own.
_TIMES = 3
#: Fewer samples cannot show whether pressure goes with stalls.
_FEWEST = 6
#: Nor can samples that all hold the same amount of stalls, within this share.
_VARIES = 0.1
#: Least seconds of pressure per second of stalls: stalls at the edges of samples blur the ratio.
_LEAST_SLOPE = 0.5
#: And that ratio exceeds zero by this many standard errors: noise rarely does.
_SURELY = 2.5


def of_memory(blocks: Blocks, row: int, columns: Array) -> dict[str, float]:
    """Ns a step in which tasks of the rank's node stalled for memory; empty where they did not."""
    faults = blocks.gauge("major_faults", _sampled_steps(columns))
    own = faults is not None and _stands_out(faults, row, _OWN_MAJOR_FAULTS)
    stood = _stood(blocks, row, columns, "memory_pressure", own=own)
    return {"memory": stood} if stood > 0 else {}


def of_files(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step in which tasks of the rank's node stalled for files and disks; 0 where they did not.

    A rank that hardly reads or writes does not wait for them, whatever its node does.
    """
    rates = [blocks.gauge(name, _sampled_steps(columns)) for name in ("read", "written")]
    known = [or_zero(rate) for rate in rates if rate is not None]
    moved = np.asarray(np.sum(known, axis=0)) if known else None
    if moved is not None and moved[row] < _OWN_FILE_MB * 1e6:
        return 0.0
    own = moved is not None and _stands_out(moved, row, _OWN_FILE_MB * 1e6)
    return _stood(blocks, row, columns, "io_pressure", own=own)


def _sampled_steps(columns: Array) -> Array | None:
    """The steps whose samples speak of these: themselves, or all where these are scattered."""
    return None if scattered(columns) else columns


def _stood(blocks: Blocks, row: int, columns: Array, name: str, *, own: bool) -> float:
    """Ns per step of these that a rank's node stalled under this pressure: beyond its peers' nodes, or in all where it
    is the rank's ``own``.

    Scattered steps are stalls: the node's total stall time is set against all of their delay. A node that stalls evenly
    throughout does so in other steps too, and does not make these late.
    """
    pressure = blocks.gauge(name, _sampled_steps(columns))
    if pressure is None or not pressure[row] > 0:
        return 0.0
    usual = 0.0 if own else float(np.nan_to_num(others_level(pressure, row)))
    beyond = max(float(pressure[row]) - usual, 0.0)
    if beyond <= 0 or not scattered(columns):
        return beyond * blocks.step_ns
    delay = or_zero(blocks.delay[row])
    each = average(delay[columns])
    late = np.where(delay >= each / 2, delay, 0.0)  # stalls of any size; jitter is not
    if not each > 0 or not _goes_with(blocks, row, name, late):
        return 0.0
    return each * min(beyond * float(np.nansum(blocks.period)) / float(late.sum()), 1.0)


def _goes_with(blocks: Blocks, row: int, name: str, late: Floats) -> bool:
    """Whether samples with more of ``late`` [S] ns in them surely show that much more pressure.

    Unknown where all samples hold the same amount.
    """
    found = blocks.samples.per_sample(name, row, late / 1e9) if blocks.samples is not None else None
    if found is None or len(found[0]) < _FEWEST:
        return False
    seconds, stood, fell = found
    stood, fell = stood / seconds, fell / seconds
    apart = fell - np.average(fell, weights=seconds)
    known = float(np.sum(seconds * apart**2))
    if known <= (_VARIES * float(np.average(fell, weights=seconds))) ** 2 * float(seconds.sum()):
        return False
    slope = float(np.sum(seconds * apart * stood)) / known
    rest = stood - np.average(stood, weights=seconds) - slope * apart
    error = np.sqrt(float(np.sum(seconds * rest**2)) / (len(seconds) - 2) / known)
    return bool(slope >= _LEAST_SLOPE and slope >= _SURELY * error)


def _stands_out(rates: Floats, row: int, least: float) -> bool:
    usual = np.nan_to_num(others_level(rates, row))
    return bool(rates[row] >= _TIMES * usual + least)
