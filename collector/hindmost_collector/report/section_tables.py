"""Sections as people read them: tables of the columns that have values, in words, and one line of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hindmost_judge.verdict.wording import UNMEASURED, duration, percent

from hindmost_collector.report import columns
from hindmost_collector.report.sections import CHANGED, RANK, SECTIONS, Column, Sections

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


#: Parts of the wall clock that the one line names: from this share on, and so many.
_SAID, _PARTS = 0.02, 4


def _seconds(value: float) -> str:
    return (
        f"{value:,.0f} s"
        if abs(value) >= 100
        else f"{value:.1f} s"
        if abs(value) >= 0.05 or not value
        else f"{value * 1e3:.1f} ms"
    )


def _number(value: float) -> str:
    return (
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 0.05 or value == 0 else f"{value:.2g}"
    )


#: How a value of each unit is written for people.
WRITTEN: dict[str, Callable[[Any], str]] = {
    "text": str,
    "words": str,
    "count": lambda value: f"{value:,.0f}",
    "number": _number,
    "ms": duration,
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
    """A table as every format shows it: columns that have a value in some row, and rows."""

    section: str
    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]


def shown(found: Sections, ranks: Collection[int] | None = None) -> list[Shown]:
    """The tables that have rows, in order; of ``ranks`` only where a table is by rank and these are given."""
    tables = []
    for name, section in SECTIONS.items():
        for key, table in section.tables.items():
            held = (found.get(name) or {}).get(key) or []
            if ranks is not None and RANK in table.columns:
                held = [row for row in held if row["rank"] in ranks]
            if key == "fault" and held:
                tables.append(_side_by_side(held, section.title))
                continue
            used = tuple(one for one in table.columns if any(row.get(one.key) is not None for row in held))
            if held and used:
                tables.append(Shown(name, key, section.title, table.about, used, held))
    return tables


def _side_by_side(held: list[dict[str, Any]], title: str) -> Shown:
    """The rows of a fault, a column for each measure that is another in its steps than in the whole run."""
    steps = [row["whole_run_ms"] for row in held if row["measure"] == "step"]
    least = CHANGED * max((ms for ms in steps if ms is not None), default=0.0)
    named, by_rank = ["step"], dict[int, dict[str, Any]]()
    for row in held:
        measured = None not in (row["ms"], row["whole_run_ms"])
        by_rank.setdefault(row["rank"], {"rank": row["rank"]})[row["measure"]] = (
            f"{columns.number(row['ms'])} ({columns.number(row['whole_run_ms'])})" if measured else None
        )
        if measured and abs(row["ms"] - row["whole_run_ms"]) > least and row["measure"] not in named:
            named.append(row["measure"])
    until = "" if held[0]["until_step"] is None else f" to before {held[0]['until_step']}"
    about = f"ms per step in steps {held[0]['since_step']}{until or ' to the last'}; in brackets in the whole run."
    shown_columns = (RANK, *(Column(name, name, "words") for name in named))
    return Shown("phases", "fault", title, about, shown_columns, list(by_rank.values()))


def in_one_line(found: Sections) -> str:
    """``46.7 steps/s, 1,494 samples or tokens/s; 52.1 s: training 45.0 s, set-up 3.1 s``; empty where unknown."""
    (pace, *_) = found.get("throughput", {}).get("job") or [{}]
    units = {"steps_per_s": "steps/s", "work_per_s": "samples or tokens/s"}
    paces = ", ".join(f"{_number(pace[key])} {unit}" for key, unit in units.items() if pace.get(key))
    parts = found.get("wall_clock", {}).get("parts") or []
    whole = next((row["seconds"] for row in parts if row["part"] == "all"), None)
    named = sorted((row for row in parts if row["part"] != "all"), key=lambda row: -row["seconds"])
    large = [row for row in named if row["share"] and row["share"] >= _SAID][:_PARTS]
    times = (
        f"{_seconds(whole)}: " + ", ".join(f"{row['part']} {_seconds(row['seconds'])}" for row in large)
        if whole
        else ""
    )
    return "; ".join(said for said in (paces, times if len(large) > 1 else "") if said)


def rank_rows(report: Mapping[str, Any], wanted: Iterable[int] | None) -> set[int] | None:
    """The ranks of which tables show rows: those asked for, else the telling ones of a large job; ``None``: all."""
    if wanted is not None:
        return set(wanted)
    chosen_rows, left_out = columns.choose(report)
    return {row["rank"] for row in chosen_rows} if left_out else None
