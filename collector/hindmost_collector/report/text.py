"""A report for the eye: 80 to 120 columns, colour on a terminal, plain when piped."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from hindmost.printable import one_line
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hindmost_collector.report import columns, headline
from hindmost_collector.report.told import told

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hindmost_collector.report.told import Told

_STYLES = {"balanced": "bold green", "insufficient_data": "bold yellow"}
_LABEL = 9
#: What a recording says of itself (names of nodes, of functions) is shown in so many characters at most.
_LONGEST, _WIDEST = 2000, 64


def render(report: Mapping[str, Any], width: int = 100, color: bool = False, ranks: Iterable[int] | None = None) -> str:
    """The report (``Report.to_dict()`` or a parsed report.json) as text; ``ranks`` limits the table to these."""
    page = console(width, color)
    page.print(Text(one_line(headline.title(report)), style="bold"), soft_wrap=False)
    if report["job"].get("ended"):
        page.print(labelled("ENDED", report["job"]["ended"], "bold red"))
    for one in told(report):
        page.print(_verdict(one))
    if waste := headline.waste(report):
        page.print(labelled("WASTE", waste))
    if bound := headline.bound(report):
        page.print(labelled("BOUND", bound))
    for note in report.get("notes") or []:
        page.print(labelled("NOTE", note, "dim"))
    rows, left_out = columns.choose(report, ranks)
    titles, cells = columns.table(rows, page.width)
    if len(titles) > 1:
        page.print(_table(rows, titles, cells, _named(report)))
        page.print(Text(columns.caption(titles), "dim"))
    if left_out:
        page.print(
            Text(f"{left_out:,} more ranks are not shown: --ranks 0-{len(report['ranks']) - 1} shows all", "dim")
        )
    return written(page)


def console(width: int, color: bool) -> Console:
    """A page to print on; :func:`written` gives what was printed."""
    return Console(
        file=io.StringIO(),
        width=max(width, 60),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def written(page: Console) -> str:
    """Everything printed on a page, without blanks at the ends of lines."""
    whole = page.file.getvalue() if isinstance(page.file, io.StringIO) else ""
    return "\n".join(line.rstrip() for line in whole.splitlines()) + "\n"


def labelled(label: str, text: str, style: str = "") -> Padding:
    """A paragraph with its label in front, lines that follow indented below the text."""
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=_LABEL, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(one_line(text, _LONGEST), style=style))
    return Padding(grid, 0)


def _verdict(one: Told) -> Group:
    lines = [labelled("VERDICT", one.verdict, _STYLES.get(one.kind, "bold red"))]
    lines += [labelled("WHY", "; ".join(one.why))] if one.why else []
    lines += [labelled("COST", one.cost)] if one.cost else []
    lines += [labelled("WHERE", one.where)] if one.where else []
    lines += [labelled("NEXT", text) for text in one.next]
    return Group(*lines)


def _named(report: Mapping[str, Any]) -> set[int]:
    return {rank for verdict in report["verdicts"] for rank in verdict["ranks"]}


def _table(rows: Sequence[Mapping[str, Any]], titles: list[str], cells: list[list[str]], named: set[int]) -> Table:
    shown = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for title in titles:
        left = title == "node"
        words = title.replace(" ", "\n")  # a column is as wide as its longest word or number, and never narrower
        shown.add_column(words, justify="left" if left else "right", no_wrap=True, vertical="bottom")
    for row, line in zip(rows, cells, strict=True):
        shown.add_row(*(one_line(cell, _WIDEST) for cell in line), style="red" if row["rank"] in named else None)
    return shown
