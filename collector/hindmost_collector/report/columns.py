"""What the table of ranks shows, once for every format: a column's title and how a row fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hindmost_collector.model import OTHER, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: What stands for a value that was not measured.
UNMEASURED = "\N{EN DASH}"

Cell: TypeAlias = "Callable[[Mapping[str, Any]], str]"

#: Ranks shown of a large job: culprits, victims, then the extremes.
SHOWN = 16

_PHASES = (*(name for name in PHASES if name not in ("cpu", "runqueue")), OTHER)
_TITLES = {
    "forward": "fwd",
    "backward": "bwd",
    "optimizer": "opt",
    "checkpoint": "ckpt",
    "gpu_forward": "gfwd",
    "gpu_backward": "gbwd",
    "gpu_optimizer": "gopt",
    "negotiation": "nego",
}


def duration(value: float | None) -> str:
    """Milliseconds with as many digits as the eye can use; a dash where unmeasured."""
    if value is None:
        return UNMEASURED
    if abs(value) > 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if abs(value) >= 1000 else f"{value:.1f} ms" if abs(value) >= 0.05 else f"{value:.2f} ms"


def ratio(value: float | None) -> str:
    """A ratio as per cent; a dash where unmeasured."""
    return UNMEASURED if value is None else f"{value:.0%}" if value >= 0.1 or value == 0 else f"{value:.1%}"


def size(value: float | None) -> str:
    """Bytes in binary units; a dash where unmeasured."""
    if value is None:
        return UNMEASURED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: float | None) -> str:
    """Milliseconds without their unit, which the caption says once."""
    if value is None:
        return UNMEASURED
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:.1f}"
        if abs(value) >= 0.05 or value == 0
        else f"{value:.2f}"
    )


#: Columns that are no times, and so need no caption.
_NO_TIMES = {"rank", "node", "last in", "cpu", "rss"}


def caption(titles: Sequence[str]) -> str:
    """Under the table: what the numbers of its columns are; empty where there is nothing to explain."""
    if _NO_TIMES.issuperset(titles):
        return ""
    mean = ", caused wait a mean" if "caused wait" in titles else ""
    gpu = [title for title in ("gfwd", "gbwd", "gopt") if title in titles]
    return f"times in ms a step: medians{mean}" + (f"; {', '.join(gpu)}: on the GPU" if gpu else "")


#: What goes first where the table is too wide; phases go before these, the least telling first.
_FIRST_TO_GO = ("rss", "xfer", "cpu", "self", "node", "last in")


def table(rows: Sequence[Mapping[str, Any]], width: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Titles and cells for these rank rows. A column that no rank measured, or that tells nothing, is left out.

    With ``width``, columns are dropped until the rest fits: a number is never cut.
    """
    chosen = [(title, cell) for title, cell in _columns(rows) if any(cell(row) != UNMEASURED for row in rows)]
    phases = sorted(_telling(rows).items(), key=lambda item: item[1])
    order = [*_FIRST_TO_GO[:2], *(_TITLES.get(name, name) for name, _ in phases[:-2]), *_FIRST_TO_GO[2:]]
    while width is not None and order and sum(_width(title, cell, rows) + 3 for title, cell in chosen) > width + 2:
        gone = order.pop(0)
        chosen = [(title, cell) for title, cell in chosen if title != gone]
    return [title for title, _ in chosen], [[cell(row) for _, cell in chosen] for row in rows]


def _width(title: str, cell: Cell, rows: Sequence[Mapping[str, Any]]) -> int:
    return max([len(word) for word in title.split()] + [len(cell(row)) for row in rows])


def _telling(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Phases worth a column and how much: the larger of their size and their spread, above 2 % of the step."""
    found: dict[str, float] = {}
    for name in _PHASES:
        values = [value for row in rows if (value := (row.get("phases_ms") or {}).get(name)) is not None]
        steps = [row["step_ms"] for row in rows if row.get("step_ms")]
        if values and max(values) > (0.02 * max(steps) if steps else 0.0):
            found[name] = max(values) + 10 * (max(values) - min(values))
    return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Cell]]:
    telling = _telling(rows)
    nodes = {row.get("node") for row in rows}

    def phase(name: str) -> Cell:
        return lambda row: number((row.get("phases_ms") or {}).get(name))

    return [
        ("rank", lambda row: str(row["rank"])),
        *([("node", lambda row: row.get("node") or UNMEASURED)] if len(nodes) > 1 else []),
        ("step", lambda row: number(row.get("step_ms"))),
        ("self", lambda row: number(row.get("self_ms"))),
        ("own cpu", phase("self_cpu")),
        *[(_TITLES.get(name, name), phase(name)) for name in _PHASES if name in telling],
        ("comm wait", lambda row: number(row.get("wait_ms"))),
        ("xfer", lambda row: number(row.get("transfer_ms"))),
        ("caused wait", lambda row: number(row.get("caused_wait_ms"))),
        ("last in", lambda row: ratio(row.get("share_last"))),
        ("cpu", lambda row: ratio(row.get("cpu_ratio"))),
        ("rss", lambda row: size(row.get("rss_bytes"))),
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
