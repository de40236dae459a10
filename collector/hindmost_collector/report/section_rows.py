"""The rows of each section, from a run that was judged: one function a section."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np
from hindmost_judge import communication, efficiency, tuning, usage, wall_clock
from hindmost_judge.causes.telemetry import IDLE_REASONS, Metrics, with_gpus
from hindmost_judge.model import OTHER, PHASES, Run, rows
from hindmost_judge.overview import Overview
from hindmost_judge.stats.robust import mean, median
from hindmost_judge.timeline.collective_calls import WAIT
from hindmost_judge.types import Floats, Ints
from hindmost_judge.verdict.schema import STOPS, plain
from hindmost_judge.verdict.wording import percent

from hindmost_collector.report import columns, machine_tables
from hindmost_collector.report.sections import CHANGED, SECTIONS, Sections, Table, as_text


def of(
    run: Run,
    report: Mapping[str, Any],
    seen: Overview | None,
    wanted: Collection[str] = tuple(SECTIONS),
    flops_per_sample: float | None = None,
) -> Sections:
    """The sections of a run that was judged; ``report`` is ``Report.to_dict()``, ``seen`` its overview.

    ``flops_per_sample``: floating-point operations of a sample or token, forward and backward.
    """
    calls = _CALLS if "communication" in wanted else communication.CALLS
    one = _Run(with_gpus(run), report, seen, calls, flops_per_sample)
    made: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in SECTIONS:
        if name in wanted and name in _MADE:
            made[name] = {
                key: [_full(SECTIONS[name].tables[key], row) for row in found]
                for key, found in _MADE[name](one).items()
            }
    if run.job.steps is not None and {"communication", "io"} & made.keys():
        one.lacks(
            "communication", "all calls and bytes", "the recording is long: they are of the excerpt that was read"
        )
    if "not_measured" in wanted:
        made["not_measured"] = {"what": one.missing}
    return made


def _full(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with every column; what is no finite number is ``None``."""
    return {column.key: plain(row.get(column.key)) for column in table.columns}


class _Run:
    """A run as the sections are made of it, and what was found missing meanwhile."""

    def __init__(
        self, run: Run, report: Mapping[str, Any], seen: Overview | None, calls: int, flops_per_sample: float | None
    ) -> None:
        self.run, self.report, self.seen, self.calls = run, report, seen, calls
        self.flops_per_sample = flops_per_sample
        self.metrics = Metrics.of(run)
        self.missing: list[dict[str, Any]] = []

    @cached_property
    def traffic(self) -> list[communication.Traffic]:
        return communication.find(self.run, self.calls)

    @cached_property
    def throughput(self) -> wall_clock.Throughput | None:
        return wall_clock.throughput(self.run, self.seen)

    @property
    def sampled(self) -> bool:
        """Whether an agent's samples are there."""
        return rows(self.run.metrics) > 0

    def lacks(self, section: str, what: str, why: str) -> None:
        self.missing.append({"section": section, "what": what, "why": why})

    def by_rank(self, metric: str, how: str) -> dict[int, float]:
        return usage.by_rank(self.metrics, metric, how)


#: Calls that the section on communication counts at most.
_CALLS = 20_000_000


#: A part of the wall clock that is less on every rank is left out.
_NEGLIGIBLE = 0.0005


def _wall_clock(one: _Run) -> dict[str, list[dict[str, Any]]]:
    stalls = [(stall["since_s"], stall["until_s"]) for stall in one.report["job"].get("stalls") or ()]
    first = None if one.seen is None or not len(one.seen.steps) else int(one.seen.steps[0])
    hung = any(verdict["kind"] in STOPS for verdict in one.report["verdicts"][:1])
    found = wall_clock.wall_clock(one.run, stalls, first, hung=hung)
    if found is None:
        one.lacks("wall_clock", "parts of the run", "no step, and no collective of a host, was recorded with its time")
        return {"parts": []}
    if not found.whole:
        one.lacks("wall_clock", "start-up and tear-down", "the recording does not say when the job began and ended")
    table = []
    for name, seconds in found.parts.items():
        if seconds.max() < _NEGLIGIBLE * found.seconds:
            continue
        share = seconds.mean() / found.seconds if found.seconds else None
        row = {"part": name, "seconds": seconds.mean(), "share": share}
        table.append(row | (_spread(seconds, found.ranks) or {}))
    table.append({"part": "all", "seconds": found.seconds, "share": 1.0})
    return {"parts": table}


def _spread(values: Floats, ranks: Sequence[int] | Ints) -> dict[str, Any] | None:
    """The least, median and most of these ranks; ``None`` where nothing is known."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return None
    low, high = known[values[known].argmin()], known[values[known].argmax()]
    ends = {"least": values[low], "least_rank": ranks[low], "most": values[high], "most_rank": ranks[high]}
    return ends | {"median": float(np.median(values[known]))}


def _throughput(one: _Run) -> dict[str, list[dict[str, Any]]]:
    found = one.throughput
    if found is None:
        one.lacks("throughput", "steps a second", "no steps were recognised")
        return {"job": [], "ranks": []}
    if found.work_per_step is None:
        why = "batches were not seen; `hindmost.step(work=N)` counts them"
        one.lacks("throughput", "items a second", why)
    seconds = np.where(found.seconds > 0, found.seconds, np.nan)
    each = {
        "rank": found.ranks,
        "steps": found.steps,
        "steps_per_s": found.steps / seconds,
        "work_per_s": found.work / seconds,
        "work_per_step": found.work / found.steps,
    }
    ranks = [dict(zip(each, row, strict=True)) for row in zip(*(one.tolist() for one in each.values()), strict=True)]
    names = ("step_ms", "steps_per_s", "work_per_s", "work_per_step")
    return {"job": [{"steps": found.steps.max()} | {name: getattr(found, name) for name in names}], "ranks": ranks}


_FREE = {
    "input": "input were free",
    "copies": "copies to the GPU were free",
    "saving": "writing checkpoints and files were free",
    "communication": "communication were free",
}


def _limits(one: _Run) -> dict[str, list[dict[str, Any]]]:
    bound = one.report["job"].get("bound")
    found = one.throughput
    if one.seen is None or found is None or not found.step_ms:
        one.lacks("limits", "what limits the job", "no steps were recognised")
        return {"bound": [bound] if bound else [], "achieved": [], "if_free": []}
    work = found.work_per_step
    roof = _achieved(one, found.work_per_s)
    free = efficiency.free(one.seen)
    queued = bool(bound) and bound["by"] == "cpu"  # in collectives, too, ranks wait for CPUs
    if queued:
        free.pop("communication", None)
    ideal = one.report["what_if"].get("ideal_step_ms")
    if len(one.seen.ranks) == 1:
        ideal = found.step_ms
        if not rows(one.run.collectives):
            free["communication"] = found.step_ms
    hidden = "computing may hide transfers" if one.seen.overlapped else "transfers were not timed"
    no_input = "no phase `input` was recorded"
    reasons = {
        "input": "GPUs were not timed, which may hide input" if "input" in one.seen.planes else no_input,
        "copies": "copies to a GPU were not timed",
        "communication": "ranks wait for CPUs in transfers" if queued else hidden,
    }
    if "copies" not in free and not _has_gpus(one.run):
        del reasons["copies"]
    for name, why in reasons.items():
        if name not in free:
            one.lacks("limits", f"the step if {_FREE[name]}", why)
    steps = {
        "nothing changes": found.step_ms,
        **{text: free.get(name) for name, text in _FREE.items() if name in {*reasons, *free}},
        "all ranks were like the median one": ideal,
    }
    return {
        "bound": [bound] if bound else [],
        "achieved": roof,
        "if_free": [
            {
                "without": name,
                "step_ms": ms,
                "saved": None if ms is None else 1.0 - ms / found.step_ms,
                "steps_per_s": 1e3 / ms if ms else None,
                "work_per_s": work * 1e3 / ms if work is not None and ms else None,
            }
            for name, ms in steps.items()
        ],
    }


def _has_gpus(run: Run) -> bool:
    """Whether a rank has a GPU, or its steps have times of one."""
    return bool((run.ranks["gpu_uuid"] != "").any()) or any(
        name.startswith("gpu_") and (column >= 0).any() for name, column in run.steps.items()
    )


def _achieved(one: _Run, work_per_s: float | None) -> list[dict[str, Any]]:
    """What GPUs achieved of their peaks; MFU where the operations of a sample are given."""
    gpus = {str(name) for name in one.run.ranks["gpu_uuid"].tolist()} - {""}
    span = usage.of_steps(one.run, one.seen)
    counted = one.flops_per_sample * work_per_s if one.flops_per_sample and work_per_s else None
    found = usage.achieved(one.metrics, gpus, span, counted) if span else []
    if gpus and not any(row.flops or row.bytes_per_s for row in found):
        why = "only GPUs since Hopper report their activity (GPM); without it, what limits the job is less sure"
        one.lacks("limits", "achieved TFLOP/s and TB/s", why)
    if (gpus or one.flops_per_sample) and not any(row.mfu for row in found):
        one.lacks("limits", "MFU", _why_no_mfu(one, gpus, work_per_s))
    return [asdict(row) for row in found]


def _why_no_mfu(one: _Run, gpus: Collection[str], work_per_s: float | None) -> str:
    counts = "`hindmost.step(work=N)` counts the samples or tokens of a step"
    if not gpus:
        return "which GPU a rank uses was not recorded, or it uses none"
    if not one.flops_per_sample:
        why = "operations of kernels are not counted" if work_per_s else "items were not counted"
        return f"{why}; `--flops-per-sample N` gives those of a sample or token"
    return "the peak of these GPUs is not known" if work_per_s else f"items were not counted; {counts}"


#: Settings about which a verdict on too few CPUs has said what to do.
_CPUS = ("CPU binding", "CPU quota")


def _advice(one: _Run) -> dict[str, list[dict[str, Any]]]:
    if not one.sampled:
        one.lacks("advice", "settings of hosts and GPUs", "the recording has no samples of them")
    crowded = any(v["kind"] == "oversubscribed" or v.get("cause") == "cpu_contention" for v in one.report["verdicts"])
    found = tuning.find(one.run, one.seen, one.traffic)
    if crowded:
        found = [advice for advice in found if advice.name not in _CPUS]
    if crowded or (one.report["job"].get("bound") or {}).get("by") == "cpu":  # more processes would wait, too
        found = [advice for advice in found if not advice.adds]
    return {"settings": [vars(advice) | {"ranks": as_text(advice.ranks)} for advice in found]}


_NO_PHASES = frozenset({"cpu", "runqueue"})


def _phases(one: _Run) -> dict[str, list[dict[str, Any]]]:
    listed = one.report["ranks"]
    ranks = [row["rank"] for row in listed]
    names = dict.fromkeys(name for row in listed for name in row.get("phases_ms") or ())
    order = [name for name in (*PHASES, OTHER, *names) if name in names and name not in _NO_PHASES]
    fields = {"step": "step_ms", "self": "self_ms", "wait": "wait_ms", "transfer": "transfer_ms"}
    values = {title: [row.get(key) for row in listed] for title, key in fields.items()}
    values |= {name: [(row.get("phases_ms") or {}).get(name) for row in listed] for name in dict.fromkeys(order)}
    values["caused"] = [row.get("caused_wait_ms") for row in listed]
    table = []
    for name, found in values.items():
        known = np.array([np.nan if value is None else value for value in found], np.float64)
        if spread := _spread(known, ranks):
            table.append({"phase": columns.title_of(name)} | spread)
    if not any(name in names for name in ("input", "forward", "self_cpu")):
        one.lacks("phases", "what a step is made of", "the source recorded no phases")
    return {"ranks": table, "fault": _fault(one, dict.fromkeys(order))}


def fault_of(report: Mapping[str, Any]) -> tuple[int, int | None] | None:
    """The steps of the most costly verdict that holds in a part of the run: (first, before which; ``None``: end)."""
    for verdict in report["verdicts"]:
        if verdict["kind"] in STOPS or not verdict.get("ranks"):
            continue
        if verdict.get("since_step") or verdict.get("until_step") is not None:
            return verdict.get("since_step") or 0, verdict.get("until_step")
        return None
    return None


def _fault(one: _Run, names: Iterable[str]) -> list[dict[str, Any]]:
    """Each rank's step, waits and phases in the steps of a verdict, next to the whole run."""
    span = fault_of(one.report)
    if span is None or one.seen is None:
        return []
    first, until = span
    mask = (one.seen.steps >= first) & (one.seen.steps < (np.inf if until is None else until))
    if not mask.any() or mask.all():
        return []
    decided = columns.deciding(one.report)
    measures: dict[str, tuple[Floats, Floats]] = {}
    period = np.broadcast_to(one.seen.period, (len(one.seen.ranks), len(mask)))
    measures["step"] = median(period[:, mask], axis=1), median(period, axis=1)
    for name in dict.fromkeys(("self", "wait", "transfer", "caused", *names)):
        block = one.seen.planes.get(name)
        if block is None or np.isnan(block).all() or (name == "self" and one.seen.overlapped):
            continue
        level: Callable[[Floats], Floats] = mean if name == "caused" else partial(median, axis=1)
        inside, whole = level(block[:, mask]), level(block)
        changed = np.nanmax(np.abs(inside - whole), initial=0.0) > CHANGED * one.seen.step
        if changed or name in ("caused", "self") or columns.title_of(name) in decided:
            measures[name] = inside, whole
    return [
        {
            "rank": rank,
            "measure": columns.title_of(name),
            "since_step": first,
            "until_step": until,
            "ms": inside[row] / 1e6,
            "whole_run_ms": whole[row] / 1e6,
        }
        for row, rank in enumerate(one.seen.ranks.tolist())
        for name, (inside, whole) in measures.items()
    ]


def _efficiency(one: _Run) -> dict[str, list[dict[str, Any]]]:
    ideal = one.report["what_if"].get("ideal_step_ms")
    found = efficiency.of(one.seen, ideal and ideal * 1e6) if one.seen is not None else []
    lanes = {lane.lane for lane in found}
    if one.seen is None:
        one.lacks("efficiency", "parallel efficiency", "no steps were recognised")
    elif "host" not in lanes:
        gpus = "hosts launch ahead of their GPUs: their waits are inside of other phases"
        why = gpus if one.seen.on_gpu or lanes else "only bare steps were recorded"
        one.lacks("efficiency", "efficiency of hosts", why)
    for lane in found:
        if lane.lane == "GPU" and lane.parallel is None:
            why = "collectives overlap with computing, and kernels were not recorded"
            least = efficiency.least_communication(one.seen, lane.orchestration or 0.0) if one.seen else None
            why += f"; communication is at least {percent(least)}" if least else ""
            what = "communication" if lane.load_balance is not None else "load balance and communication"
            one.lacks("efficiency", f"{what} of GPUs", why)
    return {"lanes": [asdict(lane) for lane in found]}


#: How operations begin that have no data of their own.
_NO_DATA = ("wait for ", "comm_create")


def _communication(one: _Run) -> dict[str, list[dict[str, Any]]]:
    table = []
    for found in one.traffic:
        row = found._asdict()
        if found.operation == WAIT:
            row["operation"] = f"wait for {'messages' if found.communicator is None else 'collectives'}"
        if not found.total and "barrier" not in found.operation:
            row |= {"least": None, "bytes": None, "total": None}
        table.append(row)
    if not table:
        one.lacks("communication", "operations", "no collective or message was recorded")
    elif any(row["total"] is None and not row["operation"].startswith(_NO_DATA) for row in table):
        one.lacks("communication", "bytes of some operations", "their source does not tell the size of a call")
    if any(row["exposed"] is None for row in table):
        why = "it shows in kernels, or between two calls, which were not recorded"
        one.lacks("communication", "which share of asynchronous operations is exposed", why)
    ranks = communication.by_rank(one.run, one.seen)
    return {"operations": table, "ranks": [rank._asdict() for rank in ranks]}


#: Column to metric and summary, of the files of ranks.
_FILES = {
    "read": ("read_bytes_total", "rise"),
    "read_per_s": ("read_bytes_total", "rate"),
    "workers_read_per_s": ("children_read_bytes_total", "rate"),
    "written_per_s": ("written_bytes_total", "rate"),
    "reads_per_s": ("read_calls_total", "rate"),
    "asked_per_s": ("read_characters_total", "rate"),
    "blocked": ("blocked", "mean"),
    "workers": ("children", "mean"),
}


#: Worker processes of a rank, on average, from which on it had any.
_A_WORKER = 0.5


def _io(one: _Run) -> dict[str, list[dict[str, Any]]]:
    found = {key: one.by_rank(f"hindmost_process_{metric}", how) for key, (metric, how) in _FILES.items()}
    found["file_s"] = _file_seconds(one.run)
    asked, calls = found["asked_per_s"], found["reads_per_s"]
    found["read_size"] = {rank: asked[rank] / calls[rank] for rank in asked if calls.get(rank)}
    if not found["read"]:
        one.lacks("io", "reads and writes by rank", "no samples of /proc/PID/io")
    if max(found["workers"].values(), default=0.0) >= _A_WORKER:
        why = "of workers the mean read is known; how many batches wait to be taken is not recorded"
        one.lacks("io", "calls of loader workers by size, batches loaded ahead", why)
    return {
        "ranks": _by("rank", found, "read", "workers_read_per_s", "reads_per_s", "file_s"),
        "calls": [of_size._asdict() for of_size in usage.file_calls(one.run)],
        "devices": _devices(one),
    }


def _file_seconds(run: Run) -> dict[int, float]:
    """Rank to seconds in recorded reads, writes and syncs of files."""
    table = run.intervals
    if not rows(table):
        return {}
    mask = np.isin(table["name"], ("file_read", "file_write", "file_sync")) & (table["duration_ns"] >= 0)
    known, row = np.unique(table["rank"][mask], return_inverse=True)
    total = np.bincount(row.ravel(), table["duration_ns"][mask], len(known)) / 1e9
    return dict(zip(known.tolist(), total.tolist(), strict=True))


#: Of each kind of device: what its series are called, and the label that names it.
_DEVICES = {
    "disk": ("hindmost_node_disk_read_bytes_total", "hindmost_node_disk_written_bytes_total", "device"),
    "NFS": ("hindmost_node_nfs_server_read_bytes_total", "hindmost_node_nfs_server_written_bytes_total", "mountpoint"),
    "Lustre": ("hindmost_node_lustre_read_bytes_total", "hindmost_node_lustre_written_bytes_total", "filesystem"),
}


def _devices(one: _Run) -> list[dict[str, Any]]:
    table = []
    busy = usage.by_label(one.metrics, "hindmost_node_disk_busy_seconds_total", "", "rate", "device")
    for kind, (reads, writes, label) in _DEVICES.items():
        shown = {
            f"{best}{key}_per_s": usage.by_label(one.metrics, metric, "", how, label)
            for key, metric in (("read", reads), ("written", writes))
            for best, how in (("", "rate"), ("best_", "peak_rate"))
        }
        owners = {(owner, name) for found in shown.values() for owner, names in found.items() for name in names}
        for owner, name in sorted(owners):
            row: dict[str, Any] = {key: found.get(owner, {}).get(name) for key, found in shown.items()}
            if any(row.values()):  # a disk that did nothing all the while tells nothing
                row |= {"node": owner[0], "device": f"{kind} {name}", "mounted": name}
                if kind == "disk":
                    row |= {"device": name, "mounted": _mounted(one, owner[0], name)}
                    row["busy"] = busy.get(owner, {}).get(name)
                table.append(row)
    if not table:
        one.lacks("io", "what devices gave", "no disk of a node was read or written, or none was sampled")
    return table


#: Mount points of a disk that are named.
_MOUNTS = 2


def _mounted(one: _Run, node: str, disk: str) -> str | None:
    """Where file systems of a disk, or of its partitions, are; the shortest paths."""
    sizes = one.metrics.series("hindmost_node_filesystem_size_bytes")
    own = re.compile(rf"(.*/)?{re.escape(disk)}(p?\d+)?")
    has = [each.labels for each in sizes if each.node == node and own.fullmatch(each.labels.get("device", ""))]
    return ", ".join(sorted({one.get("mountpoint", "") for one in has}, key=lambda at: (len(at), at))[:_MOUNTS]) or None


#: Column to metric and summary, of ranks.
_OF_RANKS = {
    "cpu": ("hindmost_process_cpu_seconds_total", "rate"),
    "allowed": ("hindmost_process_allowed_cpus", "median"),
    "workers_cpu": ("hindmost_process_children_cpu_seconds_total", "rate"),
    "wait_for_cpu": ("hindmost_process_runqueue_seconds_total", "rate"),
    "threads_waiting": ("hindmost_process_threads_runqueue_seconds_total", "rate"),
    "threads": ("hindmost_process_threads", "median"),
    "faults_per_s": ("hindmost_process_major_page_faults_total", "rate"),
    "preempted_per_s": ("hindmost_process_involuntary_switches_total", "rate"),
    "memory": ("hindmost_process_resident_memory_bytes", "highest"),
}


def _hosts(one: _Run) -> dict[str, list[dict[str, Any]]]:
    found = {key: one.by_rank(metric, how) for key, (metric, how) in _OF_RANKS.items()}
    cpu, allowed = found["cpu"], found["allowed"]
    found["of_allowed"] = {rank: cpu[rank] / allowed[rank] for rank in cpu if allowed.get(rank)}
    if not (table := _by("rank", found)):
        one.lacks("hosts", "CPU, memory and threads by rank", "no agent sampled the processes")
    return {"ranks": table, "nodes": _nodes(one)}


def _by(whose: str, found: Mapping[str, Mapping[Any, Any]], *deciding: str) -> list[dict[str, Any]]:
    """A row for each rank or node that has any of the ``deciding`` columns, or of all."""
    owners = sorted({owner for key in deciding or found for owner in found[key]})
    return [{whose: owner} | {key: values.get(owner) for key, values in found.items()} for owner in owners]


def _nodes(one: _Run) -> list[dict[str, Any]]:
    def of_node(name: str, how: str) -> dict[str, float]:
        return {
            node: value for (node, _), value in usage.summary(one.metrics, f"hindmost_node_{name}", "", how).items()
        }

    found = {
        "cpus": of_node("cpus", "median"),
        "busy": usage.cpu_busy(one.metrics),
        **{f"{what}_pressure": usage.pressure(one.metrics, what) for what in ("cpu", "memory", "io")},
        "memory": of_node("memory_used_bytes", "highest"),
        "memory_total": of_node("memory_total_bytes", "median"),
        "received_per_s": _network(one, "receive"),
        "sent_per_s": _network(one, "transmit"),
        "energy": of_node("energy_joules_total", "rise"),
    }
    if not (table := _by("node", found)):
        one.lacks("hosts", "CPU, memory and network by node", "no agent sampled the nodes")
    elif not found["cpu_pressure"]:
        none = not (found["memory_pressure"] or found["io_pressure"])
        why = "the kernel has no pressure-stall information (CONFIG_PSI, `psi=1`)" if none else "it was not sampled"
        one.lacks("hosts", "pressure" if none else "CPU pressure", why)
    return table


def _network(one: _Run, way: str) -> dict[str, float]:
    """Node to bytes a second over its wires, Ethernet and InfiniBand."""
    found: dict[str, float] = {}
    for kind in ("network", "infiniband"):
        metric = f"hindmost_node_{kind}_{way}_bytes_total"
        for (node, _), devices in usage.by_label(one.metrics, metric, "", "rate", "device").items():
            wires = [rate for device, rate in devices.items() if not machine_tables.NOT_A_WIRE.match(device)]
            found[node] = found.get(node, 0.0) + sum(wires)
    return found


#: Column to metric and summary, of GPUs.
_OF_GPUS = {
    "busy": ("hindmost_gpu_utilization_ratio", "mean"),
    "sm": ("hindmost_gpu_sm_activity_ratio", "mean"),
    "occupancy": ("hindmost_gpu_sm_occupancy_ratio", "mean"),
    "tensor": ("hindmost_gpu_tensor_activity_ratio", "mean"),
    "dram": ("hindmost_gpu_dram_activity_ratio", "mean"),
    "memory": ("hindmost_gpu_memory_used_bytes", "highest"),
    "memory_total": ("hindmost_gpu_memory_total_bytes", "median"),
    "power": ("hindmost_gpu_power_watts", "mean"),
    "power_limit": ("hindmost_gpu_power_limit_watts", "median"),
    "clock": ("hindmost_gpu_sm_clock_hertz", "mean"),
    "clock_max": ("hindmost_gpu_sm_clock_max_hertz", "median"),
    "temperature": ("hindmost_gpu_temperature_celsius", "highest"),
    "pcie_in_per_s": ("hindmost_gpu_pcie_receive_bytes_per_second", "mean"),
    "pcie_out_per_s": ("hindmost_gpu_pcie_transmit_bytes_per_second", "mean"),
    "nvlink_in_per_s": ("hindmost_gpu_nvlink_receive_bytes_per_second", "mean"),
    "nvlink_out_per_s": ("hindmost_gpu_nvlink_transmit_bytes_per_second", "mean"),
    "energy": ("hindmost_gpu_energy_joules_total", "rise"),
}


def _gpus(one: _Run) -> dict[str, list[dict[str, Any]]]:
    found = {key: usage.summary(one.metrics, metric, "gpu_uuid", how) for key, (metric, how) in _OF_GPUS.items()}
    found["energy"] = usage.summary(one.metrics, "hindmost_gpu_power_watts", "gpu_uuid", "integral") | found["energy"]
    reasons = usage.by_label(one.metrics, "hindmost_gpu_clocks_event_seconds_total", "gpu_uuid", "rate", "reason")
    whose: dict[str, list[int]] = {}
    for rank, gpu in zip(one.run.ranks["rank"].tolist(), one.run.ranks["gpu_uuid"].tolist(), strict=True):
        if gpu:
            whose.setdefault(gpu, []).append(rank)
    owners = sorted({owner for values in found.values() for owner in values if not whose or owner[1] in whose})
    if not owners:
        one.lacks("gpus", "busy, memory, power, clocks", "no GPU was sampled")
    if unknown := sum(owner in found["power"] and owner not in found["energy"] for owner in owners):
        why = "no counter, and power was not sampled throughout"
        one.lacks("gpus", f"energy of {unknown} of {len(owners)} GPUs", why)
    if owners and not found["sm"]:
        one.lacks("gpus", "SM, tensor-core and DRAM activity", "GPUs since Hopper report it (GPM)")
    table = []
    for owner in owners:
        row: dict[str, Any] = {key: values.get(owner) for key, values in found.items()}
        slowed = reasons.get(owner)
        if slowed is not None:
            row["throttled"] = max((of for reason, of in slowed.items() if reason not in IDLE_REASONS), default=0.0)
        ranks = as_text(sorted(set(whose.get(owner[1], ()))))
        table.append(row | {"node": owner[0], "gpu": owner[1], "ranks": ranks})
    return {"gpus": table}


_MADE: dict[str, Callable[[_Run], dict[str, list[dict[str, Any]]]]] = {
    "wall_clock": _wall_clock,
    "throughput": _throughput,
    "limits": _limits,
    "advice": _advice,
    "phases": _phases,
    "efficiency": _efficiency,
    "communication": _communication,
    "io": _io,
    "hosts": _hosts,
    "gpus": _gpus,
}
