"""``hindmost query``: SQL over a run directory or a store, also while it is written."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import re
import shutil
import sys
import threading
from concurrent.futures import Future
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any, TextIO

from hindmost.errors import UsageError, printable

from hindmost_cli import stdio
from hindmost_cli.report import place

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

#: Answered by every job of several ranks; steps are recorded where a loop marks them.
EXAMPLE = "select rank, op, count(*), avg(duration_ns) from collectives group by rank, op"
#: How long an engine may take to stop after Ctrl-C.
_GIVEN_UP_S = 5.0
#: Rows on a terminal.
_MOST_ROWS = 1000
_NOT_KEPT = "the run has recorded no row of it yet"
#: Why a table is empty that people expect to be filled.
UNRECORDED = {
    "steps": "no rank marked steps. PyTorch and Keras loops mark them, other loops call `with hindmost.step():`."
    " `hindmost report` infers them from collectives where it can",
    "collectives": "no collective was recorded; `hindmost doctor` lists what can be measured",
}
#: The same of a job without Python.
_UNRECORDED_NATIVE = UNRECORDED | {
    "steps": "no rank marked steps; query `collectives`, from which `hindmost report` infers them"
}
#: What recorded such ranks: the MPI library's hooks, or NCCL's.
_NATIVE = {"mpi", "nccl"}


EPILOG = f"""\
example:
  hindmost query hindmost-runs/JOB "{EXAMPLE}"

tables: ranks, steps, collectives, communicators, intervals, in_flight, metrics, stacks, clocks, rank_states,
operations; `describe steps` lists the columns of one.
Durations are nanoseconds. Times are nanoseconds since 1970 on the job clock. -1 means not measured.
Run directories take DuckDB's SQL, clickhouse://USER@HOST:PORT/DATABASE takes ClickHouse's."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("paths", metavar="PATH", nargs="+", type=place, help="run directories or stores of one job")
    parser.add_argument("sql", metavar="SQL", help="one SELECT statement")
    kinds = ["text", "csv", "json"]
    parser.add_argument("--format", choices=kinds, default="text", help="output format (default: text)")


def run(args: argparse.Namespace) -> int:
    import hindmost_collector

    try:
        question = os.fsencode(args.sql).decode()  # whatever the locale takes the command line for
    except UnicodeDecodeError as error:
        raise UsageError(f"SQL is not UTF-8 ({error.reason} at byte {error.start})") from error
    recording = hindmost_collector.open(*args.paths)
    result = _interruptible(recording, question)
    empty = recording.unrecorded(question)
    reasons = _UNRECORDED_NATIVE if empty and _native(recording) else UNRECORDED
    for table in empty:
        sys.stderr.write(f"hindmost query: {table} is empty: {reasons.get(table, _NOT_KEPT)}\n")
    if len(jobs := recording.jobs) > 1 and not re.search(r"\bjob\b", question, re.IGNORECASE):
        sys.stderr.write(f"hindmost query: over {len(jobs)} jobs; for one: where job = '{printable(jobs[-1])}'\n")
    text = _screen if sys.stdout.isatty() else _text
    {"csv": _csv, "json": _json, "text": text}[args.format](result.column_names, _rows(result), sys.stdout)
    return 0


def _native(recording: Any) -> bool:
    """Whether all ranks are programs without Python, which cannot mark steps."""
    frameworks = set(recording.ranks("framework").column(0).to_pylist())
    return bool(frameworks) and frameworks <= _NATIVE


def _interruptible(recording: Any, question: str) -> Any:
    """The answer, or what it raises, from a second thread: the engine blocks Ctrl-C for minutes."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(recording.sql(question))
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
            answer.set_exception(error)

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    try:
        return answer.result()
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            recording.interrupt()
            asking.join(_GIVEN_UP_S)
        if asking.is_alive():  # the interpreter's own end would stop it amid C++, which aborts with a core
            os._exit(130)
        raise


def _rows(result: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of an Arrow table, a NaN as None; without pandas, which takes longer to load than most questions."""
    for batch in result.to_batches():
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield tuple(None if one != one else one for one in row)  # noqa: PLR0124 - only a NaN is unlike itself


def _csv(names: list[str], rows: Iterator[tuple[Any, ...]], out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)


def _json(names: list[str], rows: Iterator[tuple[Any, ...]], out: TextIO) -> None:
    for row in rows:
        out.write(json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":"), default=str) + "\n")


def _text(names: list[str], rows: Iterator[tuple[Any, ...]], out: TextIO) -> None:
    shown = [names, *([_cell(one) for one in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        out.write("  ".join(one.rjust(width) for one, width in zip(row, widths, strict=True)) + "\n")


def _screen(names: list[str], rows: Iterator[tuple[Any, ...]], out: TextIO) -> None:
    """For a terminal: long values are folded in their column, and a page is no millions of rows."""
    from hindmost_collector.report.text import console, written
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = [*itertools.islice(rows, _MOST_ROWS)]
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for name, values in itertools.zip_longest(names, zip(*shown, strict=True), fillvalue=()):
        numbers = all(isinstance(value, (int, float, Decimal, NoneType)) for value in values)
        table.add_column(printable(str(name)), justify="right" if numbers else "left", overflow="fold")
    for row in shown:
        table.add_row(*(printable(_cell(one), keep="\n") for one in row))
    page = console(shutil.get_terminal_size().columns, stdio.colored(out))
    page.print(table)
    out.write(written(page))
    if left := sum(1 for _ in rows):
        out.write(f"{left:,} more rows: --format csv prints all\n")


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and 1e-3 <= abs(value) < 1e15:
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return str(value)
