"""The table of ranks, or of a section, as CSV for a spreadsheet: plain numbers, an empty cell where unmeasured."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hindmost.errors import printable

from hindmost_collector.report.sections import SECTIONS

_PLAIN = (
    *"rank node gpu median_step_ms self_ms wait_ms transfer_ms caused_wait_ms".split(),
    *"share_last cpu_ratio runqueue_ratio rss_bytes calls_ratio".split(),
)
#: What a column is called in a report, where a file without captions has to say more.
_KEYS = {"median_step_ms": "step_ms"}


def render(report: Mapping[str, Any], ranks: Iterable[int] | None = None) -> str:
    """A header line and a line for each rank; phases as columns ``phase_NAME_ms``."""
    phases = sorted({name for row in report["ranks"] for name in row["phases_ms"]})
    wanted = set(ranks) if ranks is not None else None
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([*_PLAIN, *(f"phase_{name}_ms" for name in phases)])
    for row in report["ranks"]:
        if wanted is None or row["rank"] in wanted:
            writer.writerow(
                [_cell(row.get(_KEYS.get(name, name))) for name in _PLAIN]
                + [_cell(row["phases_ms"].get(name)) for name in phases]
            )
    return sink.getvalue()


def render_sections(report: Mapping[str, Any], wanted: Collection[str]) -> str:
    """The tables of these sections, one after the other: first their names, then a header line, then the rows."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    for name in wanted:
        for key, table in SECTIONS[name].tables.items():
            writer.writerow([f"# {name}.{key}"])
            writer.writerow([column.key for column in table.columns])
            for row in (report["sections"].get(name) or {}).get(key) or ():
                writer.writerow([_cell(row.get(column.key)) for column in table.columns])
    return sink.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 6)
    return value
