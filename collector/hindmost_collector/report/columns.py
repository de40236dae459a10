"""What the table of ranks shows, once for every format: a column's title and how a row fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost_collector.model import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: What stands for a value that was not measured.
UNMEASURED = "\N{EN DASH}"

#: Ranks shown of a large job: culprits, victims, then the extremes.
SHOWN = 16

_PHASES = tuple(name for name in PHASES if name not in ("cpu", "runqueue"))
_TITLES = {"gpu_forward": "gpu fwd", "gpu_backward": "gpu bwd", "gpu_optimizer": "gpu opt"}


def duration(value: float | None) -> str:
    """Milliseconds with as many digits as the eye can use; a dash where unmeasured."""
    if value is None:
        return UNMEASURED
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


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells for these rank rows; a column that no rank measured is left out."""
    chosen = [(title, cell) for title, cell in _columns(rows) if any(cell(row) != UNMEASURED for row in rows)]
    return [title for title, _ in chosen], [[cell(row) for _, cell in chosen] for row in rows]


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Callable[[Mapping[str, Any]], str]]]:
    measured = {name for row in rows for name, value in (row.get("phases_ms") or {}).items() if value is not None}

    def phase(name: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: duration((row.get("phases_ms") or {}).get(name))

    return [
        ("rank", lambda row: str(row["rank"])),
        ("node", lambda row: row.get("node") or UNMEASURED),
        ("step", lambda row: duration(row.get("step_ms"))),
        ("self", lambda row: duration(row.get("self_ms"))),
        *[(_TITLES.get(name, name), phase(name)) for name in _PHASES if name in measured],
        ("comm wait", lambda row: duration(row.get("wait_ms"))),
        ("caused wait", lambda row: duration(row.get("caused_wait_ms"))),
        ("last in", lambda row: ratio(row.get("share_last"))),
        ("cpu", lambda row: ratio(row.get("cpu_ratio"))),
        ("rss", lambda row: size(row.get("rss_bytes"))),
    ]


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
