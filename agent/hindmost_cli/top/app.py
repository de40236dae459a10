"""The screen of ``hindmost top``, in Textual."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Any, ClassVar

from hindmost.errors import HindmostError, one_line
from hindmost_collector.report.columns import count
from hindmost_collector.report.text import of_verdicts
from hindmost_judge.verdict.wording import UNMEASURED
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from hindmost_cli.top import rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import ComposeResult
    from textual.events import Click, Resize

    from hindmost_cli.top.source import Source

HELP = f"""\
1 2 3 4   ranks, nodes, GPUs, jobs     Tab  the next of these
Up Down PgUp PgDn Home End  scroll     Left Right  columns
s S       sort by the next or previous column, or culprits first
r         turn the order round         click a title: sort by it
/         filter: ranks 0-7,12, or a part of a name; Esc ends it
v         verdicts with all evidence   Enter  show the chosen job
space     hold the picture, go on      q    leave

*         named by a verdict, or its node or GPU
{UNMEASURED}         not measured
caused wait  what others wait for this rank. With wait and self
             time: a typical step. All else is of the last sample.
read, CPU, wait for CPU, memory  with DataLoader workers
node net  traffic of the rank's node, in and out"""
#: Of a screen's lines verdicts take at most this share, and at least so many.
_VERDICT_SHARE, _VERDICT_LINES = 4, 3
_NAMES = {"ranks": "ranks", "nodes": "nodes", "gpus": "GPUs", "jobs": "jobs"}
_STYLES = {"OK": "bold green", "UNSURE": "bold yellow"}


class Page(ModalScreen[None]):
    """Text over the screen, until a key."""

    CSS = "Page { align: center middle; } VerticalScroll { width: 90%; max-height: 90%; height: auto; border: round; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,v,enter", "dismiss", show=False)]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)


class Table(ScrollView, can_focus=True):
    """Lines of text with a cursor. Only those in sight are drawn: a thousand ranks cost no more than twenty."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "move(-1000000000)"),
        Binding("end", "move(1000000000)"),
        Binding("enter", "choose"),
        Binding("left", "app.columns(-1)"),
        Binding("right", "app.columns(1)"),
    ]

    class Chosen(Message):
        """Enter on a line."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, str]] = []
        self.cursor = 0

    def fill(self, lines: list[tuple[str, str]], cursor: int) -> None:
        """Show these lines, each with its style, and the cursor at one of them, as far down the screen as before."""
        self._lines, moved = lines, cursor - self.cursor
        self.virtual_size = Size(0, len(lines))
        self.cursor = max(min(cursor, len(lines) - 1), 0)
        if moved:
            self.scroll_to(y=max(self.scroll_offset.y + moved, 0) if cursor else 0, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        at, width = y + self.scroll_offset.y, self.size.width
        if at >= len(self._lines):
            return Strip.blank(width)
        text, style = self._lines[at]
        drawn = Style.parse(style) + Style(reverse=at == self.cursor and self.has_focus)
        return Strip([Segment(text.ljust(width), drawn)]).adjust_cell_length(width)

    def action_move(self, by: int) -> None:
        self.cursor = max(min(self.cursor + by, len(self._lines) - 1), 0)
        top, height = self.scroll_offset.y, self.size.height
        if not top <= self.cursor < top + height:
            self.scroll_to(y=self.cursor if self.cursor < top else self.cursor - height + 1, animate=False)
        self.refresh()

    def action_page(self, by: int) -> None:
        self.action_move(by * self.size.height)

    def action_choose(self) -> None:
        self.post_message(self.Chosen())


class Top(App[None]):
    """One job's picture, read again every ``interval`` seconds in a thread of its own."""

    CSS = """
    Screen { layers: base; }
    #title, #verdicts, #views, #keys { height: auto; width: 100%; }
    #title { text-style: bold; }
    #header { height: 2; text-style: bold; }
    Table { height: 1fr; scrollbar-size-vertical: 1; }
    Input { height: 1; border: none; padding: 0; display: none; }
    #keys { text-style: dim; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", priority=False),
        Binding("question_mark", "help"),
        Binding("v", "verdicts"),
        Binding("s", "sort(1)"),
        Binding("S", "sort(-1)"),
        Binding("r", "turn"),
        Binding("slash", "filter", priority=True),  # before the next key, which is typed into it
        Binding("space", "hold"),
        Binding("escape", "unfilter"),
        Binding("tab", "view('')", priority=True),
        *(Binding(str(at + 1), f"view('{name}')") for at, name in enumerate(rows.VIEWS)),
    ]

    def __init__(self, source: Source, first: Mapping[str, Any], job: str | None, interval: float) -> None:
        super().__init__()
        self._source, self._picture, self._job, self._interval = source, first, job, interval
        self._view, self._sorted_by, self._turned, self._filter, self._skipped = "ranks", "", False, "", 0
        self._trouble, self._since, self._held = "", time.time(), False
        self._is_reading = False  # one at a time, however slow the source is
        self._shown: list[rows.Row] = []
        self._layout: list[rows.Written] = []
        self.identities: list[str] = []  # of the rows of the table

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Static(id="verdicts", markup=False)
        yield Static(id="views", markup=False)
        yield Static(id="header", markup=False)
        yield Table()
        yield Input(placeholder="ranks 0-7,12 or a part of a name")
        yield Static(" q quit  ? keys  s sort  / filter  Tab view  ←→ columns  v verdicts", id="keys", markup=False)

    def on_mount(self) -> None:
        self.theme = "textual-ansi" if "textual-ansi" in self.available_themes else self.theme
        self.query_one(Table).focus()
        self.set_interval(self._interval, self._read)
        self.show()

    def on_resize(self, _: Resize) -> None:
        self.call_after_refresh(self.show)

    def _read(self) -> None:
        if not self._held and not self._is_reading:
            self._is_reading = True
            self.run_worker(self._reading, thread=True)

    def _reading(self) -> None:
        """In a thread: read a picture, and have it shown."""
        try:
            picture, trouble = self._source.picture(self._job), ""
        except (HindmostError, OSError, ValueError) as error:
            picture, trouble = None, one_line(str(error))
        if self.is_running:
            self.call_from_thread(self.take, picture, trouble)

    def take(self, picture: Mapping[str, Any] | None, trouble: str = "") -> None:
        """Show a new picture, or that there is none and why; what was shown stays in sight then."""
        self._trouble, self._is_reading = trouble, False
        if picture is not None:
            self._picture, self._since = picture, time.time()
        self.show()

    def show(self) -> None:
        width = self.size.width
        title = textwrap.shorten(one_line(self._picture["title"]), width, placeholder="…")
        self.query_one("#title", Static).update(title)
        self.query_one("#verdicts", Static).update(self._verdicts(width))
        columns = self._table(width)
        self.query_one("#views", Static).update(self._views(columns, width))

    def _state(self) -> str:
        """Whether what is shown is live."""
        if self._trouble:
            return f"NO CONTACT since {time.strftime('%H:%M:%S', time.localtime(self._since))}"
        if self._held:
            return "held"
        return rows.state(self._picture)

    def _verdicts(self, width: int) -> Text:
        """The verdicts in as many lines as leave the table most of the screen; of a single one its cost, or else
        why, and what to do."""
        room = max(self.size.height // _VERDICT_SHARE, _VERDICT_LINES)
        verdicts = self._picture["verdicts"]
        lines: list[tuple[str, str]] = []
        if self._trouble:
            lines += [("bold red", line) for line in textwrap.wrap(self._trouble, width)[:2]]
        elif {row["node"] for row in rows.rows_of(self._picture, "ranks")} <= {*(self._picture.get("lost") or ())}:
            lines += [("bold red", line) for line in textwrap.wrap(rows.lost(self._picture), width)]
        if not verdicts:
            none = "no rank is slow now" if self._picture["judged"] else "no verdict yet"
            lines += [("", line) for line in textwrap.wrap(none, width)]
        heads = [(verdict, textwrap.wrap(_head(verdict), width, subsequent_indent=" " * 7)) for verdict in verdicts]
        for at, (one, head) in enumerate(heads):
            rest = len(heads) - at
            if at and len(lines) + len(head) + (rest > 1) > room:
                lines.append(("", f"{rest} more verdict{'s' if rest > 1 else ''}: press v"))
                break
            lines += [(_STYLES.get(one["head"], "bold red"), line) for line in head]
        if len(verdicts) == 1:
            one = verdicts[0]
            second = ("COST", one["cost"]) if one["cost"] else ("WHY", next(iter(one["why"]), ""))
            for label, text in (second, ("DO", next(iter(one["do"]), ""))):
                wrapped = textwrap.wrap(f"{label:<6} {one_line(text)}", width, subsequent_indent=" " * 7)
                if text and len(lines) + len(wrapped) <= room:
                    lines += [("", line) for line in wrapped]
        return Text("\n").join(Text(line, style) for style, line in lines)

    def _views(self, columns: int, width: int) -> Text:
        """The names of the views, how rows are sorted and filtered, and the state of the data."""
        text = Text(no_wrap=True)
        for at, name in enumerate(rows.VIEWS):
            style = "reverse" if name == self._view else ""
            text.append(f"[{at + 1}] {_NAMES[name]}", style).append(" ")
        order = f"by {self._sorted_by.replace(chr(10), ' ')}" if self._sorted_by else "culprits first"
        hidden = columns - len(self._layout)
        known = [order + (", turned" if self._turned else ""), count(len(self._shown), "row")]
        known += [f"/{self._filter}"] if self._filter else []
        known += [f"{hidden} more column{'s' if hidden > 1 else ''}"] if hidden > 0 else []
        state = self._state()
        room = width - len(text.plain) - len(state) - 1
        while known and len("· " + " · ".join(known)) > room:
            known.pop()
        text.append("· " + " · ".join(known) if known else "")
        text.append(" " * max(width - len(text.plain) - len(state), 1)).append(
            state, "" if state.startswith("live") else "bold yellow"
        )
        return text

    def _table(self, width: int) -> int:
        """Fill the table; how many columns could be shown."""
        table = self.query_one(Table)
        # at the top it stays there
        chosen = self.identities[table.cursor] if 0 < table.cursor < len(self.identities) else ""
        found = rows.matching(rows.rows_of(self._picture, self._view), self._filter)
        culprits = rows.named(self._picture)
        columns = rows.measured(self._view, found)
        by = next((column.column for column in columns if column.column.title == self._sorted_by), None)
        self._skipped = min(self._skipped, max(len(columns) - 2, 0))
        self._layout = rows.fitting(columns, width - 1, self._skipped)  # the scroll bar takes one
        order = rows.arranged(found, culprits, by, turned=self._turned)
        self._shown = [found[at] for at in order]
        self.identities = [rows.identity(row, self._view) for row in self._shown]
        self.query_one("#header", Static).update("\n".join(rows.header(self._layout)))
        marked = [rows.culprit(row, culprits) is not None and self._view != "jobs" for row in self._shown]
        lines = [
            (rows.line(self._layout, at, marked=culprit), "bold red" if culprit else "")
            for at, culprit in zip(order, marked, strict=True)
        ]
        if not lines:
            lines = [(f" no {_NAMES[self._view]} {'match the filter' if self._filter else 'were measured'}", "")]
        table.fill(lines, self.identities.index(chosen) if chosen in self.identities else 0)
        return len(columns)

    def summary(self) -> str:
        """What stays on the terminal when the user has left."""
        heads = [_head(verdict) for verdict in self._picture["verdicts"]]
        return "".join(f"{line}\n" for line in (one_line(self._picture["title"]), *heads))

    def action_view(self, name: str) -> None:
        names = list(rows.VIEWS)
        self._view = name or names[(names.index(self._view) + 1) % len(names)]
        self._sorted_by, self._turned, self._skipped = "", False, 0
        self.identities = []
        self.show()

    def action_sort(self, step: int) -> None:
        """Sort by the next column, after the last culprits first again."""
        titles = ["", *(one.column.title for one in rows.measured(self._view, self._shown))]
        at = titles.index(self._sorted_by) if self._sorted_by in titles else 0
        self._sorted_by, self._turned = titles[(at + step) % len(titles)], False
        self.show()

    def action_turn(self) -> None:
        self._turned = not self._turned
        self.show()

    def action_columns(self, step: int) -> None:
        self._skipped = max(self._skipped + step, 0)
        self.show()

    def action_hold(self) -> None:
        self._held = not self._held
        self.show()

    def action_help(self) -> None:
        self.push_screen(Page(HELP))

    def action_verdicts(self) -> None:
        """Show all verdicts with all that is known of them."""
        width = self.size.width * 9 // 10 - 4  # of the page below
        self.push_screen(Page(of_verdicts(self._picture["verdicts"], width) or "no verdict yet"))

    def action_filter(self) -> None:
        box = self.query_one(Input)
        if box.has_focus:
            box.insert_text_at_cursor("/")
            return
        box.display = True
        box.value = self._filter
        self.set_focus(box)  # at once: the next keys are already on their way

    def action_unfilter(self) -> None:
        self._filter = ""
        self._leave_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.query_one(Input).display:
            self._filter = event.value
            self.show()

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one(Input).display = False
        self.set_focus(self.query_one(Table))
        self.show()

    def on_click(self, event: Click) -> None:
        """Sort by the column whose title was clicked; turned round by the second click."""
        if event.widget is None or event.widget.id != "header":
            return
        title = rows.title_at(self._layout, event.x)
        self._turned = not self._turned if title == self._sorted_by else False
        self._sorted_by = title
        self.show()

    def on_table_chosen(self) -> None:
        at = self.query_one(Table).cursor
        if self._view == "jobs" and at < len(self._shown):
            self._job = str(self._shown[at]["job"])
            self.action_view("ranks")
            self._read()


def _head(one: Mapping[str, Any]) -> str:
    sure = f"  {one['sure']}" if one["sure"] else ""
    return one_line(f"{one['head']:<6} {one['what']}{sure}")
