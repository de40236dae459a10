"""A report for the eye: 80 to 120 columns, colour on a terminal, plain when piped."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, Literal

from hindmost.errors import one_line
from hindmost_judge.verdict.schema import STOPS
from hindmost_judge.verdict.wording import STALL
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hindmost_collector.report import columns, sections
from hindmost_collector.report.verdict_lines import decisive, filled, in_short, overlap, rendered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hindmost_collector.report.verdict_lines import RenderedVerdict

_STYLES = {"OK": "bold green", "UNSURE": "bold yellow"}
_LABEL = 7
#: Of names in a recording (nodes, functions) so many characters are shown at most.
_LONGEST, _WIDEST = 2000, 64
#: Commands, numbers with their units, and how sure a verdict is stay on one line: a private character as wide stands
#: for their blanks until the lines are broken.
_UNITS = r"%|[mun]?s|min|h|[KMGT]?i?B(?:/s)?|W|C|MHz|TFLOP/s|k?J|kWh"
_WHOLE, _BLANK = re.compile(rf"`[^`]+`|\(?[\d.,]+ % sure\)?$|[\d.,]+ (?:{_UNITS})(?!\w)"), "\ue000"
#: Kinds of verdicts that can wait while a job has stopped.
_LIMITS = ("input_bound", "host_bound")
#: Notes, and settings to try, that are shown without being asked for.
_NOTES, _ADVICE = 2, 2
#: A table with a text of more words than this is written row by row; settings are tried first that are about this
#: share of the step.
_PROSE, _TRIED = 7, 0.05
#: What stands for a recording where its path is not known, and what judges write in advice for it.
PATH, _RUN = "PATH", "hindmost report RUN"
#: The label of what limits the typical step, as verdicts on all ranks have it.
_LIMITED = "LIMITED BY"
#: A verdict that costs this share of the step stands before a limit, which is reported from half of the time on.
_BEFORE_A_LIMIT = 0.25
#: What the numbers of a verdict are, with all its evidence.
_MEANS = "how sure: of the ranks, not of the cost. COST: how much shorter the mean step is without this fault"


def render(
    report: Mapping[str, Any],
    width: int = 100,
    color: bool = False,
    ranks: Iterable[int] | None = None,
    *,
    explain: bool = False,
    path: str = PATH,
    wanted: Collection[str] = (),
    titled: bool = True,
) -> str:
    """The report (``Report.to_dict()`` or a parsed report.json) as text.

    ``ranks`` limits the tables to these. Without ``explain`` each verdict has the one line of evidence that decided it,
    and a last line has the command that shows more, with the ``path`` of the recording as a shell takes it (empty: the
    job runs). Of a job that stopped or failed that also has the limit, the pace and the table. Of a report with
    sections, pace and wall clock stand below the verdicts, and those that are ``wanted`` at the end.
    """
    page = console(width, color)
    _print_head(page, report, titled=titled)
    verdicts = [filled(one, {_RUN: f"hindmost report {path}"}) for one in (rendered if explain else in_short)(report)]
    notes = sorted(report.get("notes") or (), key=lambda note: not note.startswith(STALL))
    stopped = any(verdict.kind in STOPS for verdict in verdicts[:1])
    shown = [verdict for verdict in verdicts if explain or not stopped or verdict.kind not in _LIMITS]
    costs = any(verdict.cost for verdict in shown)
    over = not explain and (stopped or (bool(report["job"].get("to_do")) and not costs))  # the end is the news
    ended = report["job"].get("ended")
    failed = ended and not report["job"].get("interrupted_by")
    if limit_first := not over and _limits_more(report):
        _print_limit(page, report, also=False)
    for one in shown:
        aside = not explain and {"OK": ended, "UNSURE": failed}.get(one.head)
        decided = () if one.head == "OK" and report["job"].get("to_do") else decisive(one)
        said = "; ".join((one.what, *decided) if one.head == "OK" else decided)
        page.print(labelled("NOTE", said, "dim") if aside else _verdict(one, page.width, explain))
    if overlapping := overlap(report):
        page.print(labelled("NOTE", overlapping, "dim"))
    if not over and not limit_first and (explain or columns.bound_by(report)):
        _print_limit(page, report, also=costs and columns.bound_by(report))
    if not over:
        _print_job(page, report)
    waste = columns.waste(report)
    for line in waste if explain else ():
        page.print(labelled("WASTE" if line is waste[0] else "", line))
    # The verdict on a stall has the rest of such a note.
    stalled = not explain and any(verdict.kind == "stalled" for verdict in shown)
    shown_notes = [note for note in notes if not (stalled and note.startswith(STALL))][: None if explain else _NOTES]
    for note in shown_notes:
        page.print(labelled("NOTE", note, "dim"))
    hidden = sum(len(verdict.why) - len(decisive(verdict)) for verdict in shown) + len(report["verdicts"]) - len(shown)
    if not explain and (over or hidden or waste or len(notes) > len(shown_notes)):
        more = f"hindmost report {path} --explain" if path else "on the page"
        page.print(Text(f"all evidence: {more}", "dim"), soft_wrap=True)
    if explain and costs:
        page.print(labelled("NOTE", _MEANS, "dim"))
    if ranks is not None or not over:  # no column shows a stop
        _print_ranks(page, report, ranks)
    asked = {name: found for name, found in (report.get("sections") or {}).items() if name in wanted}
    title = ""
    for table in sections.shown(asked, sections.rank_rows(report, ranks)):
        page.print(Text(f"\n{table.title}" if table.title != title else "", style="bold"))
        page.print(_text(table.about.replace("`", ""), "dim"))
        (_print_prose if _is_prose(table) else _print_section)(page, table)
        title = table.title
    return written(page)


def _print_head(page: Console, report: Mapping[str, Any], *, titled: bool) -> None:
    """Which job it is, unless that is said elsewhere, and how it failed."""
    if titled:
        page.print(_text(one_line(columns.title(report)), "bold"), soft_wrap=False)
    if report["job"].get("ended"):
        page.print(labelled("ENDED", report["job"]["ended"], "bold red"))
    if report["job"].get("to_do"):
        page.print(labelled("DO", report["job"]["to_do"]))


def _is_prose(table: sections.Shown) -> bool:
    """Whether it holds sentences, which no column is wide enough for."""
    texts = [column.key for column in table.columns if column.unit == "text"]
    return any(len(str(row.get(key) or "").split()) > _PROSE for row in table.rows for key in texts)


def _print_prose(page: Console, table: sections.Shown) -> None:
    """A paragraph a row, or where it has more than two sentences a line each of them, with its title."""
    first, *rest = table.columns
    for row in table.rows:
        name, cells = str(row[first.key]), [sections.written(row.get(one.key), one.unit) for one in rest]
        if len(rest) < 3:
            page.print(labelled("", f"{name.replace('_', ' ')}: {': '.join(cells)}"))
            continue
        page.print(labelled("", name, style="bold"))
        for one, cell in zip(rest, cells, strict=True):
            page.print(labelled("", f"{one.title}: {cell}"))


def _print_section(page: Console, table: sections.Shown) -> None:
    """The table; one that is wider than the page in parts, which all have its first column: no number is cut."""
    rows = [
        [one_line(sections.written(row.get(column.key), column.unit), _WIDEST) for column in table.columns]
        for row in table.rows
    ]
    widths = [
        max([len(word) for word in one.title.split()] + [len(row[at]) for row in rows])
        for at, one in enumerate(table.columns)
    ]
    for first, last in _that_fit(widths, page.width):
        shown = [0, *range(first, last)]
        columns_shown = [table.columns[at] for at in shown]
        texts = [one.title for one in columns_shown if one.unit == "text"]
        drawn = table_of([one.title for one in columns_shown], left=texts)
        for row in rows:
            drawn.add_row(*(row[at] for at in shown))
        page.print(drawn)


def _that_fit(widths: Sequence[int], width: int) -> Iterator[tuple[int, int]]:
    """Ranges of columns that fit next to the first one, which stands in each."""
    first = 1
    while first < len(widths) or first == 1:
        last, room = first, width - widths[0] - 3
        while last < len(widths) and (last == first or room >= widths[last]):
            room -= widths[last] + 3
            last += 1
        yield first, last
        first = max(last, first + 1)


def _limits_more(report: Mapping[str, Any]) -> bool:
    """Whether too few free CPUs take much more of the step than any verdict says."""
    costs = [verdict["cost_ratio"] for verdict in report["verdicts"] if verdict.get("cost_ratio")]
    return bool(costs) and max(costs) < _BEFORE_A_LIMIT and (report["job"].get("bound") or {}).get("by") == "cpu"


def _settings(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings that are worth trying."""
    advice = (report.get("sections") or {}).get("advice") or {}
    return [setting for setting in advice.get("settings", ()) if (setting["share"] or 0.0) >= _TRIED]


def _print_limit(page: Console, report: Mapping[str, Any], *, also: bool) -> None:
    """What limits the job, and what to do about it."""
    if bound := columns.bound(report):
        page.print(labelled(_LIMITED, f"also {bound}" if also else bound))
        if (to_do := columns.on_bound(report)) and not _settings(report):
            page.print(labelled("DO", to_do))


def _print_job(page: Console, report: Mapping[str, Any]) -> None:
    """The job's pace, and settings to try."""
    if pace := sections.in_one_line(report.get("sections") or {}):
        page.print(labelled("PACE", pace))
    for setting in _settings(report)[:_ADVICE]:
        page.print(labelled("TRY", f"{setting['set']} ({setting['found']})"))


def _print_ranks(page: Console, report: Mapping[str, Any], ranks: Iterable[int] | None) -> None:
    """The table of ranks, what its columns mean, and how many ranks it leaves out."""
    rows, left_out = columns.choose(report, ranks)
    titles, cells = columns.table(rows, page.width, columns.deciding(report), columns.of_fault(report))
    if len(titles) > 1:
        named = {rank for verdict in report["verdicts"] for rank in verdict["ranks"]}
        page.print(_table(rows, titles, cells, named))
        page.print(_text(columns.caption(titles, report), "dim"))
    if left_out:
        page.print(
            Text(f"{left_out:,} more ranks are not shown: --ranks 0-{len(report['ranks']) - 1} shows all", "dim")
        )


def table_of(titles: Sequence[str], left: Collection[str] = ()) -> Table:
    """A table without rows: numbers to the right, a column as wide as its longest word or number, never narrower."""
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for title in titles:
        justify: Literal["left", "right"] = "left" if title in left else "right"
        drawn.add_column(title.replace(" ", "\n"), justify=justify, no_wrap=True, vertical="bottom")
    return drawn


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
    return "\n".join(line.rstrip().replace(_BLANK, " ") for line in whole.splitlines()) + "\n"


def labelled(label: str, text: str, style: str = "", label_style: str = "bold") -> Padding:
    """A paragraph with its label in front, lines that follow indented below the text."""
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=max(_LABEL, len(label) + 1), no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style=label_style), _text(one_line(text, _LONGEST), style))
    return Padding(grid, 0)


def _text(words: str, style: str) -> Text:
    """Text in which a command is one word, which moves to a line of its own where it does not fit; so is a number with
    its unit.
    """
    return Text(_WHOLE.sub(lambda found: found[0].replace(" ", _BLANK), words), style=style)


def _verdict(one: RenderedVerdict, width: int, explain: bool) -> Group:
    lines = [_head(one, width)]
    lines += [labelled("COST", one.cost)] if one.cost else []
    lines += [labelled("ALSO", one.also)] if one.also else []
    why = one.why if explain else decisive(one)
    lines += [labelled("" if at else "WHY", text) for at, text in enumerate(why)]
    lines += [labelled("WHERE", one.where)] if one.where and explain else []
    lines += [labelled("" if at else "DO", text) for at, text in enumerate(one.do)]
    return Group(*lines)


def _head(one: RenderedVerdict, width: int) -> Padding:
    """The finding on the left, how sure that is on the right; one after the other where the line is too short."""
    style = _STYLES.get(one.head, "bold red")
    what = one_line(one.what, _LONGEST)
    room = width - max(_LABEL, len(one.head) + 1) - len(what) - len(one.sure)
    sure = " " * room + one.sure if room >= 2 else f" ({one.sure})"  # no_wrap would cut
    return labelled(one.head, what + (sure if one.sure else ""), style="bold", label_style=style)


def _table(rows: Sequence[Mapping[str, Any]], titles: list[str], cells: list[list[str]], named: set[int]) -> Table:
    shown = table_of(titles, left=("node",))
    for row, line in zip(rows, cells, strict=True):
        shown.add_row(*(one_line(cell, _WIDEST) for cell in line), style="red" if row["rank"] in named else None)
    return shown
