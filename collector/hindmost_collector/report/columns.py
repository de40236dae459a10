"""What every format shows of a report: the title line, what limits the job, the columns of the table of ranks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from hindmost_judge.job_command import script, split
from hindmost_judge.model import OTHER, PHASES
from hindmost_judge.verdict.schema import AT_LEAST, STOPS, unsure
from hindmost_judge.verdict.wording import (
    OTHERS_USE,
    SAVING,
    STOP_OTHERS,
    UNMEASURED,
    as_exchanges,
    duration,
    names,
    percent,
)

_CAUSES = {
    "gpu_contention": "GPU contention",
    "gpu_throttle": "GPU throttling",
    "cpu_contention": "CPU contention",
    "h2d": "copies to the GPU",
    "gc": "garbage collection",
    "io": "I/O",
    "stopped": "stopped processes",
}


def title(report: Mapping[str, Any]) -> str:
    """``hindmost · train.py · 4 ranks on 1 node · 150 steps, mean 21.4 ms · ran 5.2 s``, as far as known."""
    job = report["job"]
    name = _called(job.get("command"))
    found = ["hindmost", name if name and name != "hindmost" else job["id"]]  # a simulation's command is our own
    if job.get("world_size"):
        found.append(_ranks(report) + (f" on {count(job['nodes'], 'node')}" if job.get("nodes") else ""))
    if job.get("steps"):
        found.append(count(job["steps"], "step") + _of_length(job.get("step_ms") or {}))
    if job.get("duration_s"):
        found.append(f"ran {job['duration_s']:.1f} s")
    return " · ".join(found)


_BOUNDS = {
    "input": "input",
    "copies": "copies to GPUs",
    "host": "CPUs, which launch too slowly",
    "cpu": "too few free CPUs",
    "compute": "computing",
    "gpu_compute": "GPU computing",
    "gpu_memory": "GPU memory bandwidth",
    "checkpoint": "writing checkpoints or other files",
    "serial": "serial work",
    "unknown": "not known",
}


def limit(report: Mapping[str, Any]) -> str:
    """``GPU computing: SMs active 92 % of the time, …``;
    empty where a verdict says it, the job stopped, or nothing was measured."""
    found = report["job"].get("bound")  # reports of earlier versions have none
    kinds = [verdict["kind"] for verdict in report["verdicts"]]
    if not found or {*STOPS}.intersection(kinds[:1]) or {"input_bound", "host_bound", "oversubscribed"} & {*kinds}:
        return ""
    if found["by"] == "communication" and any(verdict.get("cause") == "network" for verdict in report["verdicts"]):
        return ""
    return f"{_BOUNDS.get(found['by'], found['by'])}: {found['evidence']}"


def bound(report: Mapping[str, Any]) -> str:
    """The same, below a verdict with a COST line as something apart from that."""
    found, costs = limit(report), any(one.get("cost_ms_per_step") is not None for one in report["verdicts"])
    by, colon, evidence = found.partition(": ")
    apart = ", apart from the fault" * (bool(found) and costs and bound_by(report) and not limits_more(report))
    return f"{by}{apart}{colon}{evidence}"


def on_bound(report: Mapping[str, Any]) -> str:
    """What to do about the line on what limits the job; empty where nothing is, or a verdict or a setting says it. No
    setting of the job stops other processes."""
    by = report["job"]["bound"]["by"] if bound(report) else ""
    said = by == "cpu" and any(verdict.get("cause") == "cpu_contention" for verdict in report["verdicts"])
    text = STOP_OTHERS if by == "cpu" and OTHERS_USE in report["job"]["bound"]["evidence"] else _DO_ON.get(by, "")
    return "" if said or says(report, text) or (text != STOP_OTHERS and settings(report)) else text


#: Settings that are shown without being asked for, and from which share of the step on.
_SETTINGS, _TRIED = 2, 0.05


def settings(report: Mapping[str, Any]) -> list[str]:
    """The settings that are worth trying, of ranks that no verdict is on, each with what was found."""
    advice = (report.get("sections") or {}).get("advice") or {}
    named = {",".join(map(str, verdict["ranks"])) for verdict in report["verdicts"]} - {""}
    late = [line for verdict in report["verdicts"] if verdict["ranks"] for line in verdict.get("advice") or ()]
    others = [
        one
        for one in advice.get("settings", ())
        if one.get("ranks") not in named and not any(_option(one["set"]) in line for line in late)
    ]
    tried = [one for one in others if (one["share"] or 0.0) >= _TRIED and not says(report, one["set"])]
    return [f"{one['set']} ({one['found']})" for one in tried][:_SETTINGS]


def _option(do: str) -> str:
    """``num_workers`` of ```num_workers=3, ...` in its `DataLoader```; all of what sets no option first."""
    return do.lstrip("`").partition("=")[0]


def says(report: Mapping[str, Any], do: str) -> bool:
    """Whether a verdict's advice has that already."""
    return any(do in line for verdict in report["verdicts"] for line in verdict.get("advice") or ())


#: A verdict that costs this share of the step stands before ranks that share too few CPUs.
_BEFORE_A_LIMIT = 0.25


def limits_more(report: Mapping[str, Any]) -> bool:
    """Whether what limits the job is reported first: of one rank, which no verdict compares; and of ranks that share
    too few CPUs, or write files, where that takes more of the step than any verdict says. What other processes take
    comes after what can be changed in the job."""
    job, verdicts = report["job"], report["verdicts"]
    limit = job.get("bound") or {"by": "unknown", "evidence": ""}
    if len(report["ranks"]) == 1 and all(map(unsure, verdicts)):
        return bool(limit["by"] != "unknown")
    costs = [verdict["cost_ratio"] for verdict in verdicts if verdict.get("cost_ratio")]
    costs += [1.0] * bool(job.get("stalls") or job.get("slowed"))
    first = limit["by"] in ("cpu", "checkpoint", "serial") and OTHERS_USE not in limit["evidence"]
    return first and max(costs, default=0.0) < (limit.get("cost_ratio") or _BEFORE_A_LIMIT)


_DO_ON = {
    "cpu": "run fewer ranks, or threads of each, per node: no more than it has CPUs",
    "communication": "overlap transfers with computing, or send less data",
    "copies": "copy from pinned memory, in the background: `pin_memory=True`, `batch.to(device, non_blocking=True)`",
    "gpu_compute": "compute less per sample, at a lower precision (bf16, FP8), or on more GPUs",
    "gpu_memory": "move fewer bytes: fuse kernels (`torch.compile`), use a lower precision (bf16, FP8)",
    "host": "launch fewer, larger kernels: CUDA graphs, torch.compile, fused optimizers, larger batches",
    "checkpoint": f"save {SAVING}",
    "serial": f"see what that rank does in these steps; if it saves, save {SAVING}",
}


def bound_by(report: Mapping[str, Any]) -> bool:
    """Whether what was measured shows what limits the job."""
    return bool((report["job"].get("bound") or {}).get("by", "unknown") != "unknown")


#: Rows of each table of waste that are shown, and from which share of the step on.
_ROWS, _WORTH = 3, 0.01


def waste(report: Mapping[str, Any]) -> list[str]:
    """Where the time goes that ranks lose by being unequal, a line a table; none where the verdicts say it all."""
    found = report["what_if"].get("waste")  # reports of earlier versions have none
    if not found:
        return []
    rows = {name: [row for row in found[name] if row["ratio"] >= _WORTH][:_ROWS] for name in _TABLES}
    if not rows["by_cause"] or max(len(rows["by_cause"]), len(rows["by_phase"])) < 2:  # one verdict says its cost
        return []
    step = report["what_if"]["step_ms"]
    if (report["job"].get("nodes") or 1) < 2:
        rows["by_node"] = []
    lost = f"{part_of(found['lost_ms'], step)} per step ({ratio(found['lost_ms'] / step)}): ranks are unequal"
    rest = [f"not attributed: {duration(found['rest_ms'])}"] if found["rest_ms"] >= _WORTH * step else []
    parts = [
        f"{_TABLES[table]} " + ", ".join(f"{_name(row['name'], table)} {duration(row['ms_per_step'])}" for row in shown)
        for table, shown in rows.items()
        if shown
    ]
    return [lost, *parts, *rest]


def _name(row: str, table: str) -> str:
    if table == "by_cause":
        return _CAUSES.get(row, row)
    return row.replace("gpu_", "GPU ") if table == "by_phase" else row


_TABLES = {"by_cause": "by cause:", "by_phase": "by phase:", "by_rank": "by rank:", "by_node": "by node:"}


#: Mean and median are both given where they differ by more than this.
_ALIKE = 0.01


def _of_length(step_ms: Mapping[str, float | None]) -> str:
    """``, mean 8.2 ms``: the mean, which costs are shares of, with the median where that is another length."""
    typical = step_ms.get("p50")
    mean = step_ms.get("mean") or typical  # reports of earlier versions have no mean
    if not mean or not typical:
        return ""
    if abs(mean - typical) <= _ALIKE * mean or duration(mean) == duration(typical):
        return f", mean {duration(mean)}"
    return f", mean {duration(mean)}, median {duration(typical)}"


def _ranks(report: Mapping[str, Any]) -> str:
    """``4 ranks``; ``1 of 4 ranks`` where files of the others are not there."""
    all_ranks, seen = report["job"]["world_size"], len(report.get("ranks") or ())
    return f"{seen:,} of {count(all_ranks, 'rank')}" if 0 < seen < all_ranks else count(all_ranks, "rank")


def _called(command: str | None) -> str | None:
    """The training script's name in a command line; where there is none, the program's."""
    found = script(split(command or ""))
    return found.rpartition("/")[2] if found else None


def count(number: int, what: str) -> str:
    """``1 step``, ``3 steps``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


Cell: TypeAlias = "Callable[[Mapping[str, Any]], str]"

#: Ranks shown of a large job: culprits, victims, then the extremes.
SHOWN = 16

_PHASES = (*(name for name in PHASES if name not in ("cpu", "runqueue")), OTHER)
_TITLES = {
    "sync": "sync",
    "gpu_forward": "GPU forward",
    "gpu_backward": "GPU backward",
    "gpu_optimizer": "GPU optimizer",
    "self_cpu": "CPU time",
    "self_runqueue": "CPU queue",
    "runqueue": "queue in step",
    "self_blocked": "off CPU",
    "h2d": "copy to GPU",
    "device_wait": "GPU wait",
    "device_copy": "copy call",
    "storage": "storage wait",
    "file_read": "file read",
    "file_sync": "file sync",
}


def title_of(measure: str) -> str:
    """What the tables call a phase or another measure."""
    return _FIELDS[measure][0] if measure in _FIELDS else _TITLES.get(measure, measure.replace("_", " "))


def ratio(value: float | None) -> str:
    """A ratio as per cent; a dash where unmeasured."""
    return UNMEASURED if value is None else percent(value)


def part_of(part: float, whole: float) -> str:
    """``3.9 of 8.9 ms``: one unit and as many decimals for both, so that a reader can subtract."""
    shown, left = _alike(part, whole)
    return f"{shown} of {left}"


def without(part: float, whole: float) -> str:
    """``5.0 ms``: what :func:`part_of` leaves, in its digits; empty where that shows no difference."""
    shown, total = _alike(part, whole)
    value, unit = total.split(" ")
    rest = float(value) - float(shown)
    decimals = len(value.partition(".")[2])
    left = f"{rest:.{decimals}f} {unit}"
    return left if rest > 0 and left != total else ""


def _alike(part: float, whole: float) -> tuple[str, str]:
    """Both with the unit of the whole and the decimals of the part."""
    if abs(whole) > 10_000:
        return f"{part / 1000:.1f}", f"{whole / 1000:.1f} s"
    shown = duration(part).removesuffix(" ms")
    return shown, f"{whole:.1f} ms" if "." in shown else duration(whole)


def size(value: float | None) -> str:
    """Bytes in binary units; a dash where unmeasured."""
    if value is None:
        return UNMEASURED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.1f} {unit}" if value < 10 and value != round(value) else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: float | None) -> str:
    """A number without its unit, which the caption says once: a small one is not called none."""
    if value is None:
        return UNMEASURED
    size = abs(value)
    shown = f"{value:,.{0 if size >= 1000 else 1 if size >= 0.05 or not size else 2}f}"
    return shown.removeprefix("-") if size < 0.005 else shown


#: What a column is, where its title alone does not say it.
_EXPLAINED = {
    "self time": "between collectives",
    "CPU forward": "the CPU's part, launching kernels",
    "GPU backward": "with waits for slower ranks",
    "sync": "waits for all gradients",
    "other": "in no phase (logging, .item())",
    "CPU queue": "self time in which no CPU was free",
    "queue in step": "ready to run, no free CPU",
    "off CPU": "self time in which it was blocked",
    "storage wait": "mean, blocked by storage, all loading processes",
    "wait": "in collectives, for later ranks",
    "transfer": "the rest of collectives",
    "caused wait": "the others' mean wait for this rank",
    "in calls": "others may wait for the rank with least",
}
#: Those that are explained below each table; the others where all evidence is asked for.
_NOT_OBVIOUS = ("wait", "caused wait", "in calls")
#: Columns that are no times, and so need no caption.
_NO_TIMES = {"rank", "node", "last to arrive", "in calls", "CPUs", "waits for a CPU", "memory"}


#: Phases that hosts and GPUs have both.
_ON_BOTH = ("forward", "backward", "optimizer")
_ON_HOST = tuple(f"CPU {phase}" for phase in _ON_BOTH)
#: A rank's caused wait is reconciled with its COST from this ratio of the two on.
_DIFFERENT = 1.05
#: Ranks cause the waits of the table if what they cause is at least this share of these.
_CAUSED = 0.5


def caption(titles: Sequence[str], report: Mapping[str, Any], *, explain: bool = True) -> str:
    """Under the table: of which steps it is, and what its columns are; empty where there is nothing to explain.

    With ``explain`` each column, and why a rank's caused wait is not what it costs; else those that are not obvious.
    """
    found = report["verdicts"]
    stopped = any(one["kind"] in STOPS for one in found[:1])
    of = "before the job stopped" if stopped else "after warm-up"
    starts = [one["since_step"] for one in found if one.get("since_step") and not stopped]
    when, _ = of_fault(report)
    if when and any(title.endswith(f" {when}") for title in titles):
        of += f"; `{when}`: in these steps alone"
    else:
        of += f", also before step {min(starts)}" if starts else ""
    cost = any(one.get("cost_ms_per_step") is not None for one in found)
    explained = [
        f"{title}: {words}"
        for title, words in _explained(report, explain).items()
        if title in titles and (explain or title in _NOT_OBVIOUS)
    ]
    overlap = f"Columns overlap: {'only COST is lost time' if cost else 'do not add them'}"
    times = [] if _NO_TIMES.issuperset(titles) else [f"ms per step, medians {of}"]
    return ". ".join([*times, *explained, *([overlap] if "wait" in titles else [])])


def _explained(report: Mapping[str, Any], explain: bool) -> dict[str, str]:
    """What each column is in this table: a rank that comes late is not always who makes the others wait."""
    waits, caused = (
        [ms for ms in _of_ranks(report, name).values() if ms is not None] for name in ("wait", "caused wait")
    )
    if waits and not caused:  # stages that only send to each other
        return {**_EXPLAINED, "wait": "in receives, until another rank has sent"}
    known = {**_EXPLAINED, "caused wait": f"{_EXPLAINED['caused wait']}{_of_cost(report) if explain else ''}"}
    if report["job"].get("exchanges"):  # reports of earlier versions do not say
        known = {title: as_exchanges(words) for title, words in known.items()}
    others = max(len(caused) - 1, 1) / max(len(caused), 1)
    if waits and sum(caused) * others < _CAUSED * sum(waits) / len(waits):
        return {**known, "caused wait": "the part of the others' wait that longer work of this rank explains"}
    return known


def _of_ranks(report: Mapping[str, Any], title: str) -> dict[int, float | None]:
    """A column's ms of each rank: those in the steps of a verdict, where they are in the table."""
    whole = {row["rank"]: row.get(f"{title.replace(' ', '_')}_ms") for row in report["ranks"]}
    return whole | of_fault(report)[1].get(title, {})


def _of_cost(report: Mapping[str, Any]) -> str:
    """How the first named rank's wait, in the steps of its verdict, and its COST go together, where they differ."""
    caused = _of_ranks(report, "caused wait")
    named = (one for one in report["verdicts"] if one.get("ranks") and one["kind"] not in STOPS)
    if (one := next(named, None)) is not None:
        cost, who = one.get("cost_ms_per_step"), one["ranks"]
        waited = sum(caused.get(rank) or 0.0 for rank in who)
        if not cost or (one.get("since_step") and not of_fault(report)[0]):
            return ""
        least = "at least " if one.get("cost_is") == AT_LEAST else ""
        amounts = f"{least}{number(cost)}", f"the {number(waited)} ms that others wait for {names(who)}"
        if waited > _DIFFERENT * cost:
            return f". COST is {' of '.join(amounts)}. The rest overlaps computing, or becomes a wait for the next rank"
        if waited * _DIFFERENT < cost:
            return f" in collectives. COST, {', is more than '.join(amounts)}: steps are also longer outside of these"
    return ""


#: The columns in which the numbers of a cause are; of the first of these that was measured.
_DECIDING = {
    "input": (("input",),),
    "h2d": (("h2d",),),
    "gc": (("gc",),),
    "checkpoint": (("checkpoint",),),
    "compute": (("gpu_forward",), ("self_cpu",), ("self",), ("forward",)),
    "gpu_throttle": (("gpu_forward",), ("self",)),
    "gpu_contention": (("gpu_forward",), ("self",)),
    "workload": (("gpu_forward",), ("self_cpu",), ("self",), ("forward",)),
    "cpu_contention": (("self_runqueue",), ("runqueue",)),
    "network": (("transfer",),),
    "io": (("storage", "input"),),
    "stopped": (("self_blocked",), ("self",)),
    "unknown": (("self_blocked",), ("self",)),
}
_OF_KIND = {"host_bound": "compute", "slow_link": "network"}
#: Columns by the name under which :data:`_DECIDING` has them.
_FIELDS = {
    "self": ("self time", "self_ms"),
    "transfer": ("transfer", "transfer_ms"),
    "caused": ("caused wait", "caused_wait_ms"),
    "cpus": ("CPUs", "cpu_ratio"),
    "queued": ("waits for a CPU", "runqueue_ratio"),
}


def deciding(report: Mapping[str, Any]) -> list[str]:
    """Titles of the columns that decided the verdicts, first that of the first one: these are shown whatever else there
    is no room for."""
    found = list[str]()
    for verdict in report["verdicts"]:
        found += _named_in("".join((verdict.get("evidence") or ())[:1]), report["ranks"])
    causes = [
        cause
        for one in report["verdicts"]
        for cause in one.get("causes") or (one.get("cause") or _OF_KIND.get(one["kind"], ""),)
    ]
    if (report["job"].get("bound") or {}).get("by") == "cpu" and not of_fault(report)[0]:  # which needs the room
        said = [title_of(name) for name in ("queued", "cpus") if _measured(name, report["ranks"])]
        found += said
        causes += [] if title_of("queued") in said else ["cpu_contention"]  # reports of earlier versions have no share
    for cause in causes:
        for measures in _DECIDING.get(cause, ()):
            titles = [title_of(name) for name in measures if _measured(name, report["ranks"])]
            if titles:
                found += titles
                break
    if any(verdict["ranks"] for verdict in report["verdicts"]) and _measured("caused", report["ranks"]):
        found.insert(1, title_of("caused"))
    return list(dict.fromkeys(found))


def _named_in(evidence: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The column that evidence begins with, as in ``off CPU between collectives: rank 2 6.0 ms, others 1.9 ms``."""
    label = evidence.partition(":")[0].removeprefix("CPU " if evidence.startswith(_ON_HOST) else "")
    titles = {title_of(name) for name in (*_FIELDS, *_PHASES, *_TITLES) if _measured(name, rows)}
    return [max(begun, key=len)] if (begun := [one for one in titles if f"{label} ".startswith(f"{one} ")]) else []


def _measured(name: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    if name in _FIELDS:
        return any(row.get(_FIELDS[name][1]) is not None for row in rows)
    return any((row.get("phases_ms") or {}).get(name) is not None for row in rows)


#: What goes first where the table is too wide; phases and transfers go next, the least telling first, then the rest.
_FIRST_TO_GO = ("memory", "CPU queue", "CPUs", "self time", "node", "last to arrive")


def of_fault(report: Mapping[str, Any]) -> tuple[str, dict[str, dict[int, float | None]]]:
    """The steps in which the most costly verdict holds, where these are not all, and of each measure, by its title in
    the table, ms of each rank in them. Nothing of a report without sections."""
    found: dict[str, dict[int, float | None]] = {}
    rows = ((report.get("sections") or {}).get("phases") or {}).get("fault") or ()
    for row in rows:
        found.setdefault(row["measure"], {})[row["rank"]] = row["ms"]
    if not rows:
        return "", {}
    until = rows[0]["until_step"]
    since = rows[0]["since_step"]
    return f"since {since}" if until is None else f"{since} to {until}", found


def table(
    rows: Sequence[Mapping[str, Any]],
    width: int | None = None,
    deciding: Sequence[str] = (),
    fault: tuple[str, Mapping[str, Mapping[int, float | None]]] = ("", {}),
) -> tuple[list[str], list[list[str]]]:
    """Titles and cells for these rank rows. A column that no rank measured, or that tells nothing, is left out.

    The first that is ``deciding`` stands next to the rank. With ``width``, columns are dropped until the rest fits,
    those that are deciding last: a number is never cut.
    The step is a column where ranks differ in it: the title line has that of the job. What decides has a second column
    for the steps of a ``fault``, as :func:`of_fault` gives it.
    """
    chosen = [(title, cell) for title, cell in _columns(rows, deciding) if any(cell(row) != UNMEASURED for row in rows)]
    chosen.sort(key=lambda one: (one[0] != "rank", one[0] not in deciding[:1]))
    chosen = [one for title, cell in chosen for one in _with_fault(title, cell, deciding, *fault)]
    deciding = [*deciding, *(title for title, _ in chosen if fault[0] and title.endswith(f" {fault[0]}"))]
    telling = _telling(rows) | {"transfer": _weight([row["transfer_ms"] for row in rows if row.get("transfer_ms")])}
    phases = sorted(telling.items(), key=lambda item: item[1])
    least, most = ([title_of(name) for name, _ in part] for part in (phases[:-2], phases[-2:]))
    order = [*_FIRST_TO_GO[:1], *least, *_FIRST_TO_GO[1:], *most]
    order = [*(title for title in order if title not in deciding), *reversed(deciding)]
    while width is not None and order and sum(_width(title, cell, rows) + 3 for title, cell in chosen) > width + 2:
        gone = order.pop(0)
        chosen = [(title, cell) for title, cell in chosen if title != gone]
    on_gpu = any(title == f"GPU {phase}" for title, _ in chosen for phase in _ON_BOTH)
    titles = [f"CPU {title}" if on_gpu and title.split(" ")[0] in _ON_BOTH else title for title, _ in chosen]
    return titles, [[cell(row) for _, cell in chosen] for row in rows]


def _with_fault(
    title: str, cell: Cell, deciding: Sequence[str], when: str, measured: Mapping[str, Mapping[int, float | None]]
) -> list[tuple[str, Cell]]:
    of_rank = measured.get(title) if title in deciding else None
    if of_rank is None:
        return [(title, cell)]
    return [(title, cell), (f"{title} {when}", lambda row: number(of_rank.get(row["rank"])))]


def _width(title: str, cell: Cell, rows: Sequence[Mapping[str, Any]]) -> int:
    return width_of(heading(title), (cell(row) for row in rows))


def heading(title: str) -> str:
    """A column's title in at most two lines, as narrow as these can be."""
    words = title.split()
    breaks = [f"{' '.join(words[:at])}\n{' '.join(words[at:])}" for at in range(1, len(words))]
    return min(breaks, key=width_of, default=title)


def width_of(heading: str, cells: Iterable[str] = ()) -> int:
    """Of a column: its longest line."""
    return max(map(len, [*heading.split("\n"), *cells]))


def _telling(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Phases worth a column and how much: the larger of their size and their spread, above 2 % of the step."""
    found: dict[str, float] = {}
    for name in _PHASES:
        values = [value for row in rows if (value := (row.get("phases_ms") or {}).get(name)) is not None]
        steps = [row["step_ms"] for row in rows if row.get("step_ms")]
        if values and max(values) > (0.02 * max(steps) if steps else 0.0):
            found[name] = _weight(values)
    return found


def _weight(values: Sequence[float]) -> float:
    """How telling times of ranks are: the longest, and how unlike they are."""
    return max(values, default=0.0) + 10 * (max(values, default=0.0) - min(values, default=0.0))


def _columns(rows: Sequence[Mapping[str, Any]], deciding: Sequence[str]) -> list[tuple[str, Cell]]:
    telling = _telling(rows)
    nodes, steps = ({row.get(name) for row in rows} for name in ("node", "step_ms"))

    def phase(name: str) -> Cell:
        return lambda row: number((row.get("phases_ms") or {}).get(name))

    wanted = [*deciding, *([title_of("self_runqueue")] if title_of("queued") in deciding else [])]
    named = [name for name in dict.fromkeys([*_PHASES, *_TITLES]) if name in telling or title_of(name) in wanted]
    named = [name for name in named if _measured(name, rows)]
    return [
        ("rank", lambda row: str(row["rank"])),
        *([("node", lambda row: row.get("node") or UNMEASURED)] if len(nodes) > 1 else []),
        *([("median step", lambda row: number(row.get("step_ms")))] if len(steps) > 1 else []),
        ("self time", lambda row: number(row.get("self_ms"))),
        (_TITLES["self_cpu"], phase("self_cpu")),
        *[(title_of(name), phase(name)) for name in named if name != "self_cpu"],
        ("wait", lambda row: number(row.get("wait_ms"))),
        ("transfer", lambda row: number(row.get("transfer_ms"))),
        ("caused wait", lambda row: number(row.get("caused_wait_ms"))),
        ("last to arrive", lambda row: ratio(row.get("share_last"))),
        ("in calls", lambda row: ratio(row.get("calls_ratio"))),
        ("CPUs", lambda row: number(row.get("cpu_ratio"))),
        *([(waits, lambda row: ratio(row.get("runqueue_ratio")))] if (waits := title_of("queued")) in deciding else []),
        ("memory", lambda row: size(row.get("rss_bytes"))),
    ]


#: Named ranks of which a verdict says where they run.
_PLACES = 4


def place(report: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """``rank 3: node17, GPU-5c2e…``: where to look, as far as known; empty where that goes without saying."""
    rows = [row for row in report["ranks"] if row["rank"] in verdict["ranks"]]
    several = (report["job"].get("nodes") or 1) > 1
    found = []
    for row in rows[:_PLACES]:
        known = [row.get("node") if several else None, row.get("gpu")]
        if any(known):
            found.append(f"rank {row['rank']}: {', '.join(str(one) for one in known if one)}")
    return "; ".join(found) + ("; …" if found and len(rows) > _PLACES else "")


def choose(report: Mapping[str, Any], wanted: Iterable[int] | None = None) -> tuple[list[Mapping[str, Any]], int]:
    """The rank rows to show and how many are left out: those asked for, or the telling ones of a large job."""
    rows = list(report["ranks"])
    if wanted is not None:
        chosen = set(wanted)
        return [row for row in rows if row["rank"] in chosen], 0
    if len(rows) <= SHOWN:
        return rows, 0
    named = [rank for verdict in report["verdicts"] for rank in [*verdict["ranks"], *verdict["victims"]]]
    by_caused = sorted(rows, key=lambda row: -(row.get("caused_wait_ms") or 0.0))
    by_wait = sorted(rows, key=lambda row: -(row.get("wait_ms") or 0.0))
    extremes = [row["rank"] for pair in zip(by_caused, by_wait, strict=True) for row in pair]
    chosen = set(list(dict.fromkeys([*named, *extremes]))[:SHOWN])
    return [row for row in rows if row["rank"] in chosen], len(rows) - len(chosen)
