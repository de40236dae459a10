"""A report as Markdown, to paste into a ticket: the verdict as text, then every section as a table."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hindmost_collector.report import columns, sections, text

#: What would end a cell or begin markup in it; code spans keep theirs.
_MARKUP = re.compile(r"([|\\<>*_\[\]])")
_CODE = re.compile(r"(`[^`]*`)")


def render(report: Mapping[str, Any], ranks: Sequence[int] | None = None, path: str = text.PATH) -> str:
    """The report with its sections; the block with the verdict is what a terminal shows, with commands on ``path``."""
    block = text.render(report, 100, ranks=ranks, path=path, titled=False)
    found = [f"# {_safe(columns.title(report))}", "", "```text", *block.rstrip().splitlines(), "```"]
    title = ""
    for table in sections.shown(report.get("sections") or {}, sections.rows_of(report, ranks)):
        found += ["", f"## {table.title}"] if table.title != title else []
        title = table.title
        found += ["", table.about, "", *_table(table)]
    return "\n".join(found) + "\n"


def _table(table: sections.Shown) -> Iterable[str]:
    yield _row(column.title for column in table.columns)
    yield _row("---" if column.unit == "text" else "---:" for column in table.columns)
    yield from (_row(map(_safe, cells)) for cells in table.cells)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(cell: str) -> str:
    """One line without markup of its own."""
    parts = _CODE.split(" ".join(cell.split()))
    return "".join(part.replace("|", "\\|") if part[:1] == "`" else _MARKUP.sub(r"\\\1", part) for part in parts)
