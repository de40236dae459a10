"""Which rows and columns ``hindmost top`` shows, in which order and width: no cell is ever cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hindmost.errors import one_line
from hindmost_collector.report.columns import count
from hindmost_collector.report.verdict_lines import lasting
from hindmost_judge.verdict.wording import UNMEASURED

#: A row of a table by column, with ``None`` for what was not measured.
Row: TypeAlias = "Mapping[str, Any]"
#: The views in the order of their keys, and what identifies their rows.
VIEWS: Mapping[str, tuple[str, ...]] = {
    "ranks": ("rank",),
    "nodes": ("node",),
    "gpus": ("node", "gpu"),
    "jobs": ("job",),
}
#: Longest name of a node, a job, a model: longer ones lose their middle.
_LONGEST = 24
#: Blanks between two columns.
GAP = 2
#: Seconds without data after which a job's age is shown, and of verdicts after which theirs is.
_STALE_S, _OLD_VERDICTS_S = 5.0, 15.0
#: Ranks that a cell lists.
_LISTED = 4
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")


@dataclass(frozen=True)
class Column:
    """A column: its title in two lines, the value to sort by, and how that is written."""

    title: str
    value: Callable[[Row], Any]
    written: Callable[[Any], str]
    left: bool = False
    #: Largest first when it is what rows are sorted by.
    falling: bool = True


def _number(value: float) -> str:
    """Three digits, as many as a reader compares; none of what these do not show."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 or size < 0.005 else f"{value:.1f}" if size >= 1 else f"{value:.2f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _name(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2 - 1]}…{text[-_LONGEST // 2 :]}"


def state(picture: Mapping[str, Any]) -> str:
    """Whether what a collector says of a job is live."""
    if picture.get("over"):
        return "ended"
    heard_s, judged_s = picture.get("age_s") or 0.0, picture.get("judged_s") or 0.0
    lost = picture.get("lost") or ()
    if lost:
        return f"lost contact with {lost[0] if len(lost) == 1 else count(len(lost), 'node')}"
    if heard_s > _STALE_S:
        return f"no data for {lasting(heard_s, 0)}"
    return f"live, verdicts {lasting(judged_s, 0)} old" if judged_s > _OLD_VERDICTS_S else "live"


def lost(picture: Mapping[str, Any]) -> str:
    """That what follows was so before, where contact with nodes of a job is lost; while others send, of their ranks."""
    nodes, heard_s = picture.get("lost") or (), picture.get("age_s") or 0.0
    if not nodes or picture.get("over"):
        return ""
    old = f", no data for {lasting(heard_s, 0)}: what follows was so before"
    if heard_s <= _STALE_S:
        old = f": {'its' if len(nodes) == 1 else 'their'} ranks below are old, others are live"
    return f"LOST   {state(picture).removeprefix('lost ')}{old}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks)) if len(ranks) <= _LISTED else f"{len(ranks)} ranks"


def _of(name: str, factor: float = 1.0) -> Callable[[Row], Any]:
    def value(row: Row) -> Any:
        found = row.get(name)
        return found * factor if isinstance(found, float) else found

    return value


def _share(part: str, whole: str) -> Callable[[Row], Any]:
    def value(row: Row) -> Any:
        return 100 * row[part] / row[whole] if row.get(part) is not None and row.get(whole) else None

    return value


_MEGA, _GIBI = 1e-6, 2.0**-30
#: The columns of each view, the most telling first; the first stays in sight.
COLUMNS: Mapping[str, Sequence[Column]] = {
    "ranks": (
        Column("rank", _of("rank"), str, falling=False),
        Column("caused\nwait ms", _of("caused_wait_ms"), _number),
        Column("wait\nms", _of("wait_ms"), _number),
        Column("self\nms", _of("self_ms"), _number),
        Column("GPU\n%", _of("gpu_busy", 100.0), _whole),
        Column("GPU\nGiB", _of("gpu_memory", _GIBI), _number),
        Column("clock\nMHz", _of("gpu_clock", _MEGA), _whole),
        Column("GPU\n°C", _of("gpu_temperature"), _whole),
        Column("CPU\n%", _of("cpu", 100.0), _whole),
        Column("wait for\nCPU %", _of("cpu_wait", 100.0), _whole),
        Column("read\nMB/s", _of("read", _MEGA), _number),
        Column("write\nMB/s", _of("written", _MEGA), _number),
        Column("node net\nMB/s", _of("node_net", _MEGA), _number),
        Column("node", _of("node"), _name, left=True, falling=False),
        Column("memory\nGiB", _of("memory", _GIBI), _number),
        Column("workers", _of("children"), _whole),
        Column("step", _of("step"), _whole),
        Column("SM\n%", _of("gpu_sm", 100.0), _whole),
        Column("power\nW", _of("gpu_power"), _whole),
    ),
    "nodes": (
        Column("node", _of("node"), _name, left=True, falling=False),
        Column("CPU\n%", _share("cpu", "cpus"), _whole),
        Column("some wait\nfor CPU %", _of("cpu_wait", 100.0), _whole),
        Column("memory\n%", _share("memory", "memory_total"), _whole),
        Column("read\nMB/s", _of("read", _MEGA), _number),
        Column("write\nMB/s", _of("written", _MEGA), _number),
        Column("net in\nMB/s", _of("received", _MEGA), _number),
        Column("net out\nMB/s", _of("sent", _MEGA), _number),
        Column("ranks", _of("ranks"), _ranks, falling=False),
        Column("load", _of("load"), _number),
        Column("CPUs", _of("cpus"), _whole),
    ),
    "gpus": (
        Column("GPU", _of("gpu"), _name, left=True, falling=False),
        Column("rank", _of("ranks"), _ranks, falling=False),
        Column("GPU\n%", _of("busy", 100.0), _whole),
        Column("SM\n%", _of("sm", 100.0), _whole),
        Column("memory\n%", _share("memory", "memory_total"), _whole),
        Column("clock\nMHz", _of("clock", _MEGA), _whole),
        Column("of\nMHz", _of("clock_max", _MEGA), _whole),
        Column("°C", _of("temperature"), _whole),
        Column("power\nW", _of("power"), _whole),
        Column("of\nW", _of("power_limit"), _whole),
        Column("index", _of("index"), str, falling=False),
        Column("node", _of("node"), _name, left=True, falling=False),
        Column("model", _of("model"), _name, left=True, falling=False),
    ),
    "jobs": (
        Column("job", _of("job"), _name, left=True, falling=False),
        Column("cost\n%", _of("cost", 100.0), _number),
        Column("ranks", _of("size"), _whole),
        Column("step", _of("step"), _whole),
        Column("mean\nstep ms", _of("mean_step_ms"), _number),
        Column("last\nheard", _of("age_s"), lambda seconds: lasting(seconds, 0)),
        Column("verdict", _of("verdict"), one_line, left=True, falling=False),
    ),
}


def rows_of(picture: Mapping[str, Any], view: str) -> list[Row]:
    table = picture["tables"][view]
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def identity(row: Row, view: str) -> str:
    """What makes a row the same one in the next picture."""
    return "\0".join(str(row.get(name)) for name in VIEWS[view])


def named(picture: Mapping[str, Any]) -> dict[int, int]:
    """The ranks that verdicts name, each with the place of its first verdict."""
    found: dict[int, int] = {}
    for place, verdict in enumerate(picture["verdicts"]):
        for rank in verdict["ranks"]:
            found.setdefault(rank, place)
    return found


def culprit(row: Row, culprits: Mapping[int, int]) -> int | None:
    """The place of the first verdict that names this rank, or one on this node or GPU; None where none does."""
    ranks = [row["rank"]] if row.get("rank") is not None else row.get("ranks") or ()
    return min((culprits[rank] for rank in ranks if rank in culprits), default=None)


def arranged(rows: Sequence[Row], culprits: Mapping[int, int], by: Column | None, *, turned: bool = False) -> list[int]:
    """Places of rows in the order of a column, ``turned`` the other way round; without one culprits first.

    What was not measured comes last either way.
    """
    if by is None:

        def worst_first(at: int) -> tuple[bool, int, float]:
            place = culprit(rows[at], culprits)
            weight = rows[at].get("caused_wait_ms") or rows[at].get("cost") or 0.0
            return place is None, place or 0, -weight

        ordered = sorted(range(len(rows)), key=worst_first)
        return ordered[::-1] if turned else ordered
    values = [by.value(row) for row in rows]
    known = sorted((at for at, value in enumerate(values) if value is not None), key=lambda at: values[at])
    if by.falling != turned:
        known.reverse()
    return [*known, *(at for at, value in enumerate(values) if value is None)]


def matching(rows: Iterable[Row], text: str) -> list[Row]:
    """Rows that a filter lets through: ranks by number and range (``3``, ``0-7``), all by a part of a name."""
    words = [word.lower() for word in re.split(r"[,\s]+", text) if word]
    return [row for row in rows if not words or any(_matches(row, word) for word in words)]


def _matches(row: Row, word: str) -> bool:
    numbers = _RANGE.match(word)
    ranks = [row["rank"]] if row.get("rank") is not None else row.get("ranks") or ()
    if numbers and any(int(numbers[1]) <= rank <= int(numbers[2] or numbers[1]) for rank in ranks):
        return True
    names = (row.get(name) for name in ("node", "gpu", "job", "model", "verdict"))
    return any(word in str(name).lower() for name in names if name is not None) and (not numbers or "rank" not in row)


def cell(column: Column, row: Row) -> str:
    """One value as it is written; a dash where it was not measured."""
    value = column.value(row)
    return UNMEASURED if value is None or value == [] else column.written(value)


@dataclass(frozen=True)
class Written:
    """A column with its cells as they are written, and the width that all of them fit into."""

    column: Column
    cells: Sequence[str]
    width: int


def measured(view: str, rows: Sequence[Row]) -> list[Written]:
    """The columns in which any row has a value: a job without GPUs has no columns of these."""
    found = []
    for column in COLUMNS[view]:
        cells = [cell(column, row) for row in rows]
        if any(one != UNMEASURED for one in cells):
            width = max(map(len, (*column.title.split("\n"), *cells)))
            found.append(Written(column, cells, width))
    return found


def fitting(columns: Sequence[Written], width: int, skipped: int = 0) -> list[Written]:
    """The columns that fit in full: the first, and those that follow ``skipped`` others."""
    found: list[Written] = []
    for one in (*columns[:1], *columns[1 + skipped :]):
        gap = GAP if found else 1  # before the first is the mark of culprits
        if found and width < one.width + gap:
            break
        found.append(one)
        width -= one.width + gap
    return found


def header(layout: Sequence[Written]) -> list[str]:
    """The titles above their columns, in two lines."""
    titles = [["", *written.column.title.split("\n")][-2:] for written in layout]
    return [_joined(layout, [title[at] for title in titles], " ") for at in (0, 1)]


def line(layout: Sequence[Written], at: int, *, marked: bool) -> str:
    return _joined(layout, [written.cells[at] for written in layout], "*" if marked else " ")


def _joined(layout: Sequence[Written], cells: Sequence[str], mark: str) -> str:
    aligned = [
        text.ljust(one.width) if one.column.left else text.rjust(one.width)
        for one, text in zip(layout, cells, strict=True)
    ]
    return mark + (" " * GAP).join(aligned)


def title_at(layout: Sequence[Written], x: int) -> str:
    """The title of the column at this place of a line; empty right of all."""
    for written in layout:
        x -= written.width + GAP
        if x < 0:
            return written.column.title
    return ""
