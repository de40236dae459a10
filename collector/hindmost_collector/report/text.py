"""A report for the eye: 80 to 120 columns, colour on a terminal, plain when piped."""

import io
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import repeat
from typing import Any, Literal

from hindmost.errors import one_line
from hindmost_judge.verdict.schema import STOPS
from hindmost_judge.verdict.wording import ALONE, STALL, START_UP
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from hindmost_collector.report import columns, sections
from hindmost_collector.report.verdict_lines import RenderedVerdict, decisive, in_short, overlap, rendered

_STYLES = {"OK": "bold green", "UNSURE": "bold yellow"}
_LABEL = 7
#: Labels of what to do, and of what to do after that.
_DO, _THEN = (f"{label} ".ljust(_LABEL) for label in ("DO", "THEN"))
#: Of names in a recording (nodes, functions) so many characters are shown at most.
_LONGEST, _WIDEST = 2000, 64
#: Of ids at least so many are.
_ID = 12
#: Commands, numbers with their units, and how sure a verdict is stay on one line: a private character as wide stands
#: for their blanks until the lines are broken.
_UNITS = r"%|[mun]?s|min|h|[KMGT]?i?B(?:/s)?|W|C|MHz|TFLOP/s|k?J|kWh"
_WHOLE, _BLANK = re.compile(rf"`[^`]+`|\(?[\d.,]+ % sure\)?$|[\d.,]+ (?:{_UNITS})(?!\w)"), "\ue000"
#: Notes that are shown without being asked for.
_NOTES = 2
#: A table with a text of more words than this is written row by row.
_PROSE = 7
#: What stands for a recording where its path is not known.
PATH = "PATH"
#: The label of what limits the typical step, as verdicts on all ranks have it.
_LIMITED = "LIMITED BY"
#: What the numbers of a verdict are, with all its evidence.
_SURE = "% sure: that the finding is true, not that COST is exact"
_COST = "COST: how much shorter the mean step gets without it"


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
    program: str = "hindmost",
) -> str:
    """The report (``Report.to_dict()`` or a parsed report.json) as text.

    ``ranks`` limits the tables to these. Without ``explain`` each verdict has the one line of evidence that decided it,
    and a last line has the command that shows more, with the ``path`` of the recording as a shell takes it (empty: the
    job runs). Of a job that stopped or failed that also has the pace and the table. Of a report with sections, pace and
    wall clock stand below the verdicts, and those that are ``wanted`` at the end. ``program`` starts its commands.
    """
    page = console(width, color)
    chosen = None if ranks is None else list(ranks)
    request = _Request(report, chosen, explain, path, wanted, titled, page.width, program)
    return written(page, _lines(request))


@dataclass(frozen=True)
class _Request:
    """A report and how it is to be shown, as :func:`render` takes it."""

    report: Mapping[str, Any]
    ranks: list[int] | None
    explain: bool
    path: str
    wanted: Collection[str]
    titled: bool
    width: int
    program: str

    @cached_property
    def verdicts(self) -> list[RenderedVerdict]:
        """Those that are shown: of a job that stopped, the stop alone."""
        known = (rendered if self.explain else in_short)(self.report, self.path, self.program)
        stopped = not self.explain and any(one.kind in STOPS for one in known[:1])
        return [one for one in known if one.kind in STOPS] if stopped else known

    @cached_property
    def end_alone(self) -> bool:
        """Whether how the job ended is the news."""
        failed = bool(self.report["job"].get("to_do")) and not any(one.cost for one in self.verdicts)
        return not self.explain and (failed or any(one.kind in STOPS for one in self.verdicts[:1]))

    @cached_property
    def limit_first(self) -> bool:
        return not self.end_alone and columns.limits_more(self.report)

    @cached_property
    def on_limit(self) -> list[str]:
        """What to do about what limits the job; the settings, too, where that is reported first."""
        settings = columns.settings(self.report) if self.limit_first else []
        return [*filter(None, [columns.on_bound(self.report)]), *settings]

    @cached_property
    def notes(self) -> list[str]:
        """All of them, those on stalls first, without what is said with the pace, or of a stall by its verdict."""
        said = [f"{STALL}{line}" for one in self.verdicts for line in (one.why if self.explain else decisive(one))]
        found = []
        for note in self.report.get("notes") or ():
            rest = note.removeprefix(next((line for line in said if note.startswith(line)), "")).removeprefix("; ")
            if rest and (self.end_alone or not rest.startswith(START_UP)):
                found.append((not note.startswith(STALL), rest))
        return [note for _, note in sorted(found, key=lambda one: one[0])]

    @property
    def shown_notes(self) -> list[str]:
        return self.notes[: None if self.explain else _NOTES]

    @cached_property
    def hidden(self) -> int:
        """How many lines of evidence and verdicts are not shown."""
        evidence = sum(len(one.why) - len(decisive(one)) for one in self.verdicts)
        return evidence + len(self.report["verdicts"]) - len(self.verdicts)


def _lines(request: _Request) -> Iterator[RenderableType]:
    """The report from the top; what has nothing to say has no line."""
    report, job = request.report, request.report["job"]
    if request.titled:
        yield paragraph(one_line(columns.title(report)), "bold")
    if job.get("ended"):
        yield labelled("ENDED", job["ended"], "bold red")
    if job.get("to_do"):
        yield labelled("DO", job["to_do"])
    if request.limit_first:
        yield from _limit(request)
    yield from _verdicts(request)
    if found := overlap(report):
        yield labelled("NOTE", found, "dim")
    if not request.end_alone and not request.limit_first and (request.explain or columns.bound_by(report)):
        yield from _limit(request)
    if not request.end_alone:
        yield from _pace(request)
    for at, line in enumerate(columns.waste(report) if request.explain else ()):
        yield labelled("" if at else "WASTE", line)
    for note in request.shown_notes:
        yield labelled("NOTE", note, "dim")
    yield from _more(request)
    if request.ranks is not None or not request.end_alone:  # no column shows a stop
        yield from _ranks(request)
    yield from _sections(request)


def _verdicts(request: _Request) -> Iterator[RenderableType]:
    """Those that say nothing of a job that ended or failed are a note. So are those on a lone rank of known limit."""
    job = request.report["job"]
    failed = job.get("ended") and not job.get("interrupted_by")
    for one in request.verdicts:
        if not request.explain and {"OK": job.get("ended"), "UNSURE": failed}.get(one.head):
            balanced = one.kind == "balanced"
            why = () if balanced and job.get("to_do") else decisive(one)
            yield labelled("NOTE", "; ".join((one.what, *why) if balanced else why or (one.what,)), "dim")
        elif request.limit_first and ALONE in one.what and not request.explain:
            if not request.on_limit:
                yield from (labelled("DO", line) for line in one.do)
            yield labelled("NOTE", one.what, "dim")
        else:
            yield from _verdict(one, request.width, request.explain)


def _pace(request: _Request) -> Iterator[RenderableType]:
    """Settings to try, the job's pace, and who was waited for before the first step."""
    for setting in () if request.limit_first else columns.settings(request.report):
        yield labelled("TRY", setting)
    if pace := sections.in_one_line(request.report.get("sections") or {}):
        yield labelled("PACE", pace)
    for note in request.report.get("notes") or ():
        if note.startswith(START_UP):
            yield labelled("", note)


def _more(request: _Request) -> Iterator[RenderableType]:
    """Where the rest is; with all of it, what its numbers mean."""
    left = request.hidden or columns.waste(request.report) or len(request.notes) > len(request.shown_notes)
    if not request.explain and (request.end_alone or left):
        command = f"{request.program} report {request.path} --explain" if request.path else "on the page"
        yield Text(f"all evidence: {command}", "dim")
    if request.explain:
        means = [_SURE] * any(one.sure and one.short_cost for one in request.verdicts)
        means += [_COST] * any(one.cost and one.kind not in ("stalled", *STOPS) for one in request.verdicts)
        if means:
            yield labelled("NOTE", ". ".join(means), "dim")


def _ranks(request: _Request) -> Iterator[RenderableType]:
    """The table of ranks, what its columns mean, and how many ranks it leaves out."""
    report = request.report
    rows, left_out = columns.choose(report, request.ranks)
    titles, cells = columns.table(rows, request.width, columns.deciding(report), columns.of_fault(report))
    if len(titles) > 1:
        named = {rank for verdict in report["verdicts"] for rank in verdict["ranks"]}
        styles = ["red" if row["rank"] in named else "" for row in rows]
        yield table_of(titles, ([*map(_cell, line)] for line in cells), ("node",), styles)
        yield paragraph(columns.caption(titles, report, explain=request.explain), "dim")
    if left_out:
        yield Text(f"{left_out:,} more ranks are not shown: --ranks 0-{len(report['ranks']) - 1} shows all", "dim")


def _sections(request: _Request) -> Iterator[RenderableType]:
    """Those that are wanted, table after table."""
    found = request.report.get("sections") or {}
    chosen, title = {name: one for name, one in found.items() if name in request.wanted}, ""
    for table in sections.shown(chosen, sections.rows_of(request.report, request.ranks)):
        yield Text(f"\n{table.title}" if table.title != title else "", style="bold")
        yield paragraph(table.about.replace("`", ""), "dim")
        yield from _prose(table) if _is_prose(table) else _columns(table, request.width)
        if table.left_out and request.ranks is None:
            yield Text(f"{table.left_out:,} more rows are not shown: --format csv has all", "dim")
        title = table.title


def _is_prose(table: sections.Shown) -> bool:
    """Whether it holds sentences, which no column is wide enough for."""
    texts = [column.key for column in table.columns if column.unit == "text"]
    long = (len(str(row.get(key) or "").split()) > _PROSE for row in table.rows for key in texts)
    return len(texts) == len(table.columns) or any(long)


def _prose(table: sections.Shown) -> Iterator[RenderableType]:
    """A paragraph a row, or where it has more than two sentences a line each of them, with its title."""
    _, *rest = table.columns
    for name, *cells in table.cells:
        if len(rest) < 3:
            yield labelled("", f"{name.replace('_', ' ')}: {': '.join(cells)}")
            continue
        yield labelled("", name, style="bold")
        for one, cell in zip(rest, cells, strict=True):
            yield labelled("", f"{one.title}: {cell}")


def _columns(table: sections.Shown, width: int) -> Iterator[RenderableType]:
    """The table, its cells in a line each."""
    cells = [_short(column, [*of]) for column, of in zip(table.columns, zip(*table.cells, strict=True), strict=True)]
    texts = [one.title for one in table.columns if one.unit == "text"]
    return parts([one.title for one in table.columns], zip(*cells, strict=True), texts, width)


def parts(
    titles: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str], width: int
) -> Iterator[RenderableType]:
    """A table; one that is wider than the page in parts, which all have its first column: no number is cut."""
    cells = [*zip(*rows, strict=True)]
    widths = [columns.width_of(columns.heading(title), of) for title, of in zip(titles, cells, strict=True)]
    for first, last in _that_fit(widths, width):
        shown = [0, *range(first, last)]
        yield table_of([titles[at] for at in shown], zip(*(cells[at] for at in shown), strict=True), left)


def _short(column: sections.Column, cells: list[str]) -> list[str]:
    """What a column says of each row: of ids what tells them apart."""
    lengths = (end for end in range(_ID, _WIDEST) if len({cell[:end] for cell in cells}) == len({*cells}))
    if not column.ids or (length := next(lengths, None)) is None:
        return [_cell(cell) for cell in cells]
    return [_cell(cell if len(cell) <= length + 1 else f"{cell[:length]}…") for cell in cells]


def _cell(text: str) -> str:
    """The text in one line that fits into a column: a longer one keeps its begin and its end."""
    line = one_line(text, _LONGEST)
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST // 2]}…{line[1 - _WIDEST // 2 :]}"


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


def _limit(request: _Request) -> Iterator[RenderableType]:
    """What limits the job, and what to do about it."""
    if bound := columns.bound(request.report):
        yield labelled(_LIMITED, bound)
        for at, to_do in enumerate(request.on_limit):
            yield labelled("TRY" if at else "DO", to_do)


def table_of(
    titles: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = (), styles: Iterable[str] = repeat("")
) -> Table:
    """A table: numbers to the right, a column as wide as its heading or longest number, rows in these ``styles``."""
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for title in titles:
        justify: Literal["left", "right"] = "left" if title in left else "right"
        drawn.add_column(columns.heading(title), justify=justify, no_wrap=True, vertical="bottom")
    for row, style in zip(rows, styles, strict=False):
        drawn.add_row(*row, style=style)
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
        soft_wrap=True,  # paragraphs break their lines themselves
    )


def written(page: Console, lines: Iterable[RenderableType] = ()) -> str:
    """Everything printed on a page, and these lines, without blanks at their ends. A DO after the first is THEN."""
    label = _DO
    for one in lines:
        to_do = isinstance(one, _Paragraph) and one.label == _DO
        page.print(replace(one, label=label) if isinstance(one, _Paragraph) and to_do else one)
        label = _THEN if to_do else label
    whole = page.file.getvalue() if isinstance(page.file, io.StringIO) else ""
    return "\n".join(line.rstrip().replace(_BLANK, " ") for line in whole.splitlines()) + "\n"


def of_verdicts(verdicts: Iterable[Mapping[str, Any]], width: int) -> str:
    """Verdicts in words, as the tables of a running job have them, with all that is known of them."""
    names = [field.name for field in fields(RenderedVerdict)]
    found = [RenderedVerdict(**{name: one[name] for name in names if name in one}) for one in verdicts]
    lines = [line for one in found for line in (*_verdict(one, width, explain=True), paragraph("", ""))]
    return written(console(width, color=False), lines).strip()


@dataclass(frozen=True)
class _Paragraph:
    """Words in lines of the page's width, the first after a label. A command is one word, which moves to a line of its
    own and is never broken; so is a number with its unit."""

    label: str
    words: str
    style: str
    label_style: str = ""

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        indent = len(self.label)
        whole = _WHOLE.sub(lambda found: found[0].replace(" ", _BLANK), self.words)
        lines = textwrap.wrap(whole, max(options.max_width - indent, 1), break_long_words=False, break_on_hyphens=False)
        for at, line in enumerate(lines or [""]):
            yield Text.assemble((" " * indent if at else self.label, self.label_style), (line, self.style))


def labelled(label: str, text: str, style: str = "", label_style: str = "bold") -> _Paragraph:
    """A paragraph with its label in front, lines that follow indented below the text."""
    return _Paragraph(f"{label} ".ljust(_LABEL), one_line(text, _LONGEST), style, label_style)


def paragraph(words: str, style: str) -> _Paragraph:
    """The same without a label."""
    return _Paragraph("", words, style)


def _verdict(one: RenderedVerdict, width: int, explain: bool) -> Iterator[_Paragraph]:
    yield _head(one, width)
    why = one.why if explain else decisive(one)
    where = (one.where,) if one.where and explain else ()
    parts = {
        "COST": filter(None, (one.cost,)),
        "ALSO": filter(None, (one.also,)),
        "WHY": why,
        "WHERE": where,
        "DO": one.do,
    }
    for label, texts in parts.items():
        yield from (labelled("" if at else label, text) for at, text in enumerate(texts))


def _head(one: RenderedVerdict, width: int) -> _Paragraph:
    """The finding on the left, how sure that is on the right; one after the other where the line is too short."""
    style = _STYLES.get(one.head, "bold red")
    what = one_line(one.what, _LONGEST)
    room = width - max(_LABEL, len(one.head) + 1) - len(what) - len(one.sure)
    sure = " " * room + one.sure if room >= 2 else f" ({one.sure})"  # no_wrap would cut
    return labelled(one.head, what + (sure if one.sure else ""), style="bold", label_style=style)
