"""What a report says in addition to its verdicts, section by section: one model that every format writes.

The model is plain data: section to table to rows, each row with all columns of its table; ``None`` is not measured.
:data:`SECTIONS` says what the columns are, and the schema of ``hindmost.report/2`` is generated from it. :func:`shown`
has the tables as people read them: the columns that have values, in words.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hindmost.errors import UsageError
from hindmost_judge import wall_clock
from hindmost_judge.verdict.schema import SCHEMA
from hindmost_judge.verdict.wording import UNMEASURED, duration, percent

from hindmost_collector.report import columns

#: A report with sections; without them it is :data:`hindmost_judge.verdict.schema.SCHEMA`, and all else is alike.
WITH_SECTIONS = "hindmost.report/2"
#: What is read as a report.
READ = (SCHEMA, WITH_SECTIONS)
#: What changes by more than this share of a step in the steps of a fault is shown.
CHANGED = 0.02

#: Plain data: section to table to rows.
Sections = dict[str, dict[str, list[dict[str, Any]]]]


@dataclass(frozen=True)
class Column:
    """One column: its key in JSON, its title, and its unit, of :data:`WRITTEN`; of ids, text shows what tells them
    apart."""

    key: str
    title: str
    unit: str = "text"
    ids: bool = False


@dataclass(frozen=True)
class Table:
    """One table: what it is, in a sentence, and its columns: ``KEY=TITLE:UNIT, …``, where a title is the key and a unit
    is text unless they are said, and ``id`` is text that shows what tells ids apart."""

    about: str
    listed: str

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """As they stand."""
        found = []
        for one in self.listed.split(", "):
            named, _, unit = one.partition(":")
            key, _, title = named.partition("=")
            found.append(Column(key, title or key, "text" if unit in ("", "id") else unit, ids=unit == "id"))
        return tuple(found)


@dataclass(frozen=True)
class Section:
    """One section: its title, and its tables by key."""

    title: str
    tables: dict[str, Table]


RANK, NODE = Column("rank", "rank", "count"), Column("node", "node")
#: The ranks of a row, as ``0,1``.
OF_RANKS = Column("ranks", "ranks")


SECTIONS: dict[str, Section] = {
    "wall_clock": Section(
        "Wall clock",
        {
            "parts": Table(
                "From the start of the job to its end, the mean of all ranks; the parts add up to the whole.",
                "part, seconds=mean:s, share:ratio, least:s, least_rank=on rank:count, most:s, most_rank=on rank:count",
            )
        },
    ),
    "throughput": Section(
        "Throughput",
        {
            "job": Table(
                "After warm-up. Items are samples, tokens where batches have `input_ids`, or what"
                " `hindmost.step(work=...)` counts.",
                "steps:count, step_ms=mean step:ms, steps_per_s=steps/s:number, "
                "work_per_s=items/s:number, work_per_step=items a step:number",
            ),
            "ranks": Table(
                "The same by rank.",
                "rank:count, steps:count, steps_per_s=steps/s:number, work_per_s=items/s:number, "
                "work_per_step=items a step:number",
            ),
        },
    ),
    "limits": Section(
        "What limits the job",
        {
            "bound": Table("What limits the typical step.", "by, evidence, cost_ratio=of the mean step:ratio"),
            "achieved": Table(
                "The mean GPU in the steps, by NVIDIA's monitor: operations of bf16 or fp16 (of TF32 half). Below the"
                " ridge, in operations a byte, memory is the limit. MFU is of --flops-per-sample.",
                "gpu=GPU, gpus=GPUs:count, flops=achieved:flop/s, peak_flops=of:flop/s, "
                "bytes_per_s=memory:TB/s, peak_bytes_per_s=of:TB/s, "
                "intensity=operations a byte:number, ridge:number, mfu=MFU:ratio",
            ),
            "if_free": Table(
                "The mean step if one thing took no time. Last: if each rank took as long as the median one. COST of a"
                " verdict removes one fault, and no delay by chance.",
                "without=if, step_ms=mean step:ms, saved:ratio, steps_per_s=steps/s:number, work_per_s=items/s:number",
            ),
        },
    ),
    "advice": Section(
        "Settings to try",
        {
            "settings": Table(
                "For the whole job, or for ranks; what verdicts advise is not repeated. The first is about most of the"
                " step.",
                "name=setting, ranks, found, threshold=advised from, set, share=of the step:ratio",
            )
        },
    ),
    "phases": Section(
        "Phases",
        {
            "ranks": Table(
                "ms per step, medians of all steps after warm-up: the least, the median and the most of all ranks.",
                "phase, least:ms, least_rank=on rank:count, median:ms, most:ms, most_rank=on rank:count",
            ),
            "fault": Table(
                "ms per step in the steps of a verdict, next to the whole run: means of waits caused, else medians.",
                "rank:count, measure, since_step=since step:count, until_step=before step:count, "
                "ms=in these:ms, whole_run_ms=whole run:ms",
            ),
        },
    ),
    "efficiency": Section(
        "Parallel efficiency",
        {
            "lanes": Table(
                "As POP defines them: parallel = load balance x communication, communication = serialisation x"
                " transfer. GPUs have the factor orchestration, too: time in phases, gaps between kernels included.",
                "lane=of, parallel:ratio, load_balance=load balance:ratio, communication:ratio, "
                "serialisation:ratio, transfer:ratio, orchestration:ratio",
            )
        },
    ),
    "communication": Section(
        "Communication",
        {
            "operations": Table(
                "Operation, size class and communicator; calls and bytes of all ranks, times of the mean call. Bus"
                " bandwidth as NCCL's tests count it.",
                "operation, least=from:bytes, bytes=to:bytes, communicator, group=ranks:count, "
                "groups:count, calls:count, total=in all:bytes, took_ms=mean call:ms, "
                "wait_ms=wait:ms, transfer_ms=transfer:ms, bandwidth:bytes/s, "
                "bus_bandwidth=bus:bytes/s, exposed:ratio",
            ),
            "ranks": Table(
                "All calls by rank. Time in collectives and in messages is ms per step; GPUs may compute meanwhile.",
                "rank:count, calls:count, messages:count, sent:bytes, "
                "collectives_ms=in collectives:ms, messages_ms=in messages:ms",
            ),
        },
    ),
    "io": Section(
        "Files",
        {
            "ranks": Table(
                "By rank over the whole recording; workers are its DataLoader and other child processes. Reads are of"
                " both, from disk or memory.",
                "rank:count, read=read from disk:bytes, read_per_s=read/s:bytes/s, "
                "workers_read_per_s=workers' read/s:bytes/s, written_per_s=written/s:bytes/s, "
                "reads_per_s=reads/s:number, read_size=mean read:bytes, asked_per_s=all reads/s:bytes/s, "
                "file_s=in file calls:s, blocked:ratio, workers:number",
            ),
            "calls": Table(
                "Calls on files of all ranks, by size: all of MPI-IO, others of MPI programs from 0.1 ms on.",
                "operation, least=from:bytes, most=to:bytes, ranks:count, calls:count, "
                "total=moved:bytes, took_ms=mean call:ms, longest_ms=longest:ms, "
                "bandwidth=while in it:bytes/s",
            ),
            "devices": Table(
                "Disks and network file systems by node: the mean of the run, and the most between two samples.",
                "node, device, mounted=mounted at, read_per_s=read/s:bytes/s, "
                "best_read_per_s=at best:bytes/s, written_per_s=written/s:bytes/s, "
                "best_written_per_s=at best:bytes/s, busy:ratio",
            ),
        },
    ),
    "hosts": Section(
        "Hosts",
        {
            "ranks": Table(
                "Means over the recording. Waits are those of the training thread, and of all threads together.",
                "rank:count, cpu=CPUs used:number, allowed:number, of_allowed=of allowed:ratio, "
                "workers_cpu=workers' CPUs:number, wait_for_cpu=waits for CPU:ratio, "
                "threads_waiting=threads waiting:number, threads:count, "
                "faults_per_s=disk faults/s:number, preempted_per_s=preempted/s:number, "
                "memory=peak memory:bytes",
            ),
            "nodes": Table(
                "Means over the recording; pressure is the share of the time in which some task waited.",
                "node, cpus=CPUs:count, busy:ratio, cpu_pressure=CPU pressure:ratio, "
                "memory_pressure=memory pressure:ratio, io_pressure=I/O pressure:ratio, "
                "memory=peak memory:bytes, memory_total=of:bytes, received_per_s=received/s:bytes/s, "
                "sent_per_s=sent/s:bytes/s, energy:joules",
            ),
        },
    ),
    "gpus": Section(
        "GPUs",
        {
            "gpus": Table(
                "Means over the recording; memory is the peak, throttled the time in which a reason slowed the clocks."
                " Energy is the GPU's counter, else power over time.",
                "gpu=GPU:id, node, ranks, busy:ratio, sm=SMs:ratio, occupancy:ratio, tensor:ratio, "
                "dram=DRAM:ratio, memory:bytes, memory_total=of:bytes, power:watts, "
                "power_limit=limit:watts, clock:hertz, clock_max=highest:hertz, throttled:ratio, "
                "temperature=hottest:celsius, pcie_in_per_s=PCIe in:bytes/s, "
                "pcie_out_per_s=PCIe out:bytes/s, nvlink_in_per_s=NVLink in:bytes/s, "
                "nvlink_out_per_s=NVLink out:bytes/s, energy:joules",
            )
        },
    ),
    "not_measured": Section(
        "Not measured",
        {"what": Table("And why.", "section, what, why")},
    ),
}


def chosen(text: str) -> list[str]:
    """The sections of a list such as ``hosts,gpus``; ``all``. Raises UsageError for a name that is none."""
    if text == "all":
        return list(SECTIONS)
    names = [name.strip().replace("-", "_") for name in text.split(",")]
    for name in names:
        if name not in SECTIONS:
            wrong = f"--sections {text}: there is no section {name!r}" if text.strip() else "--sections: LIST is empty"
            raise UsageError(f"{wrong}; sections are all, {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in names]


def listed() -> str:
    """The sections that there are, a line each, with what their tables are called."""
    width = max(map(len, SECTIONS))
    return "".join(f"{name:<{width}}  {one.title}: {', '.join(one.tables)}\n" for name, one in SECTIONS.items())


def added(report: Mapping[str, Any], found: Sections) -> dict[str, Any]:
    """The report with its sections, as ``hindmost.report/2``. Settings that remedy slow input are its advice."""
    settings = (found.get("advice") or {}).get("settings", [])
    verdicts = [_remedied(one, settings) for one in report["verdicts"]]
    return {**report, "schema": WITH_SECTIONS, "verdicts": verdicts, "sections": found}


#: Settings that are the remedy of slow input.
_LOADERS = ("DataLoader workers", "small reads", "storage")


def as_text(ranks: Iterable[int]) -> str | None:
    """The ranks of a row as :data:`OF_RANKS` has them."""
    return ",".join(map(str, ranks)) or None


def _remedied(verdict: Mapping[str, Any], settings: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Advice on input is for a recording that shows no setting."""
    slow_input = (verdict["kind"], verdict["cause"]) == ("input_bound", "input")
    found = [f"{one['set']} ({one['found']})" for one in settings if slow_input and one["name"] in _LOADERS]
    return {**verdict, "advice": found} if found else verdict


#: Parts of the wall clock that the one line names: from this share on, and so many.
_SAID, _PARTS = 0.02, 4


def _seconds(value: float) -> str:
    if 0 < abs(value) < 0.05:
        return f"{value * 1e3:.1f} ms"
    return f"{value:,.{0 if abs(value) >= 100 else 1}f} s"


#: How a value of each unit is written for people.
WRITTEN: dict[str, Callable[[Any], str]] = {
    "text": str,
    "words": str,
    "count": lambda value: f"{value:,.0f}",
    "number": columns.number,
    "ms": lambda value: duration(value) if abs(value) >= 1e-4 or not value else "<0.0001 ms",
    "s": _seconds,
    "ratio": percent,
    "bytes": columns.size,
    "bytes/s": lambda value: f"{columns.size(value)}/s",
    "flop/s": lambda value: f"{value / 1e12:,.{1 if value < 1e14 else 0}f} TFLOP/s",
    "TB/s": lambda value: f"{value / 1e12:.{2 if value >= 1e11 else 3}f} TB/s",
    "watts": lambda value: f"{value:.0f} W",
    "hertz": lambda value: f"{value / 1e6:,.0f} MHz",
    "celsius": lambda value: f"{value:.0f} C",
    "joules": lambda value: f"{value / 3.6e6:.2f} kWh" if value >= 3.6e5 else f"{value / 1e3:,.1f} kJ",
}


def written(value: Any, unit: str) -> str:
    """A value in words; a dash where it was not measured."""
    return UNMEASURED if value is None else WRITTEN[unit](value)


@dataclass(frozen=True)
class Shown:
    """A table as every format shows it: columns that have a value in some row, rows, and how many more there are."""

    section: str
    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    left_out: int = 0

    @property
    def cells(self) -> list[list[str]]:
        """The rows in words."""
        return [[written(row.get(column.key), column.unit) for column in self.columns] for row in self.rows]


@dataclass(frozen=True)
class Chosen:
    """The ranks of which tables show rows, and the nodes of these."""

    ranks: set[int]
    nodes: set[str | None]

    def has(self, table: Table, row: Mapping[str, Any]) -> bool:
        """Whether a row of a table is of one of them; so are those of no rank and no node."""
        if RANK in table.columns:
            return row["rank"] in self.ranks
        if OF_RANKS in table.columns and row["ranks"]:
            return not self.ranks.isdisjoint(map(int, row["ranks"].split(",")))
        return NODE not in table.columns or row["node"] in self.nodes


def shown(found: Sections, chosen: Chosen | None = None) -> list[Shown]:
    """The tables that have rows, in order; rows of ranks, nodes and GPUs of those that are ``chosen`` only."""
    tables = []
    for name, section in SECTIONS.items():
        for key, table in section.tables.items():
            rows = (found.get(name) or {}).get(key) or ()  # those with their names only are of what was not measured
            whole = [row for row in rows if any(row.get(one.key) is not None for one in table.columns[1:])]
            chosen_rows = [row for row in whole if chosen is None or chosen.has(table, row)]
            if key == "fault" and chosen_rows:
                tables.append(_side_by_side(chosen_rows, section.title))
                continue
            used = tuple(
                column for column in table.columns if any(row.get(column.key) is not None for row in chosen_rows)
            )
            if chosen_rows and used:
                tables.append(
                    Shown(name, key, section.title, table.about, used, chosen_rows, len(whole) - len(chosen_rows))
                )
    return tables


def _side_by_side(rows: list[dict[str, Any]], title: str) -> Shown:
    """The rows of a fault, a column for each measure that is another in its steps than in the whole run."""
    steps = [row["whole_run_ms"] for row in rows if row["measure"] == "step"]
    least = CHANGED * max((ms for ms in steps if ms is not None), default=0.0)
    named, by_rank = ["step"], dict[int, dict[str, Any]]()
    for row in rows:
        measured = None not in (row["ms"], row["whole_run_ms"])
        by_rank.setdefault(row["rank"], {"rank": row["rank"]})[row["measure"]] = (
            f"{columns.number(row['ms'])} ({columns.number(row['whole_run_ms'])})" if measured else None
        )
        if measured and abs(row["ms"] - row["whole_run_ms"]) > least and row["measure"] not in named:
            named.append(row["measure"])
    until = "" if rows[0]["until_step"] is None else f" to before {rows[0]['until_step']}"
    steps_of = f"{rows[0]['since_step']}{until or ' to the last'}"
    about = f"ms per step in steps {steps_of}, medians but of caused wait; in brackets in the whole run."
    shown_columns = (RANK, *(Column(name, name, "words") for name in named))
    return Shown("phases", "fault", title, about, shown_columns, list(by_rank.values()))


def in_one_line(found: Sections) -> str:
    """``46.7 steps/s; run time 52.1 s: training 45.0 s, start-up 3.1 s (6.0 %)``; empty where unknown.

    Start-up is all that comes before the first step: launch, imports, communicators, set-up, the first batch.
    """
    (pace, *_) = found.get("throughput", {}).get("job") or [{}]
    units = {"steps_per_s": "steps/s", "work_per_s": "items/s"}
    paces = ", ".join(f"{_rate(pace[key])} {unit}" for key, unit in units.items() if pace.get(key))
    parts = found.get("wall_clock", {}).get("parts") or []
    whole = next((row["seconds"] for row in parts if row["part"] == "all"), None)
    named: dict[str, float] = {}
    for row in parts:
        name = "start-up" if row["part"] in wall_clock.START_UP else row["part"]
        named[name] = named.get(name, 0.0) + row["seconds"]
    large = sorted(((seconds, name) for name, seconds in named.items() if name != "all"), reverse=True)[:_PARTS]
    shown = [
        f"{name} {_seconds(seconds)}" + (f" ({columns.ratio(seconds / whole)})" if name == "start-up" else "")
        for seconds, name in large
        if whole and seconds >= _SAID * whole
    ]
    times = f"run time {_seconds(whole)}: {', '.join(shown)}" if whole and len(shown) > 1 else ""
    return "; ".join(said for said in (paces, times) if said) or _of_process(found)


#: What the line says of a lone process that makes no steps, from these sections.
OF_PROCESS = {
    "hosts": {
        "cpu": "uses {} CPUs",
        "of_allowed": "{} of those that it may run on",
        "wait_for_cpu": "waits for one {} of the time",
        "memory": "peak memory {}",
    },
    "io": {"asked_per_s": "reads {} from files", "blocked": "waits for storage {} of the time"},
}


def _of_process(found: Sections) -> str:
    """``uses 1.0 CPUs, 50 % of those that it may run on, …``; nothing of several processes.

    Where those below it use more CPU, they do the work: only the CPUs of all are said.
    """
    said = []
    (row, *more) = (found.get("hosts") or {}).get("ranks") or [{}]
    own, below = row.get("cpu") or 0.0, row.get("workers_cpu") or 0.0
    if below > own and not more:
        return f"uses {written(own + below, 'number')} CPUs with the processes that it started"
    for section, words in OF_PROCESS.items():
        rows, table = (found.get(section) or {}).get("ranks") or (), SECTIONS[section].tables["ranks"]
        units = {column.key: column.unit for column in table.columns}
        if len(rows) == 1:
            known = {key: rows[0][key] for key in words if rows[0][key]}
            said += [words[key].format(written(value, units[key])) for key, value in known.items()]
    return ", ".join(said)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else columns.number(value)


def rows_of(report: Mapping[str, Any], wanted: Iterable[int] | None) -> Chosen | None:
    """Those of the ranks that are asked for, else of the telling ones of a large job; ``None``: all."""
    rows, left_out = columns.choose(report, wanted)
    if wanted is None and not left_out:
        return None
    return Chosen({row["rank"] for row in rows}, {row.get("node") for row in rows})
