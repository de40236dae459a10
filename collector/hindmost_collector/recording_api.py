"""The Python API of recordings, for notebooks and ``hindmost query``: tables as Arrow or pandas, and SQL over them.

>>> run = hindmost_collector.open("runs/42")                            # doctest: +SKIP
>>> run.steps().to_pandas().groupby("rank").duration_ns.median()        # doctest: +SKIP
>>> run.sql("select rank, quantile_cont(duration_ns, 0.99) / 1e6 as p99_ms from steps group by rank").to_pandas()
...                                                                     # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from hindmost.errors import UsageError

from hindmost_collector.store import meta, schema
from hindmost_collector.store.clickhouse.client import is_url
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.run_directory import is_run_directory, read_run, read_together, united
from hindmost_collector.store.tables import Tables, checked

if TYPE_CHECKING:
    from hindmost_judge.model import Run

    from hindmost_collector.store.clickhouse.reading import ClickHouseRecording

log = logging.getLogger(__name__)

#: What DuckDB raises for a segment that is gone or damaged; the first is also the base of all others.
_UNREADABLE = {duckdb.Error, duckdb.IOException, duckdb.InvalidInputException}


#: What only reads; a PIVOT is several statements, of which the last reads.
_READING = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI}
#: An EXPLAIN that runs what it explains, where that is no question.
_RUNS = re.compile(
    r"\s*explain\b.*\b(copy|create|insert|update|delete|attach|export|call)\b", re.IGNORECASE | re.DOTALL
)


def _refuse_writing(statements: Sequence[duckdb.Statement]) -> None:
    """Raises UsageError for anything but reading: a recording, and the files around it, are only read."""
    for statement in statements:
        runs = statement.type == duckdb.StatementType.EXPLAIN and _RUNS.match(statement.query)
        if statement.type not in _READING or runs:
            kind = statement.query.split(maxsplit=1)[0].upper()
            raise UsageError(f"{kind} is not allowed: queries only read; use SELECT")
    if len(statements) > 1:
        raise UsageError(f"{len(statements)} statements: give one, its answer is what is printed")


class Recording(Tables):
    """One run directory, or a store of many. Reading works while a collector writes.

    With ``others``, where the agents of a job sent to several collectors, the directories of each job are read as one:
    rows of steps, collectives and intervals that two of them hold count once.
    """

    def __init__(self, path: str | Path, *others: str | Path) -> None:
        """Raises UsageError when there is no recording at a path."""
        self.path = Path(path)
        paths = {one.resolve(): one for one in map(Path, (path, *others))}
        self._jobs = [job for one in paths.values() for job in _directories(one)]
        self._names: dict[Path, str] = {}
        self._torn: set[Path] = set()
        self._unwarned: dict[Path, list[Path]] = {}
        self._checked: set[Path] = set()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._one_at_a_time = threading.Lock()

    @property
    def meta(self) -> dict[str, Any]:
        """What ``meta.json`` says of the run; of a store's first job where there are several."""
        return meta.facts(self._jobs[0])

    @property
    def jobs(self) -> list[str]:
        """The ids of its jobs, sorted."""
        return sorted({self._name(job) for job in self._jobs})

    def table(self, name: str, *columns: str) -> pa.Table:
        """All rows of a table of ``TABLES``, ``clocks`` or ``rank_states``, with the job in the column ``job``."""
        named = checked(name, columns)
        chosen = ", ".join(f'"{column}"' for column in named) if columns else "*"
        return self.sql(f'select {chosen} from "{name}"')

    def _reports(self) -> Iterator[tuple[str, bytes]]:
        for job in self._jobs:
            with contextlib.suppress(OSError):
                yield self._name(job), (job / "report.json").read_bytes()

    def _equal(self, column: str, text: str) -> str:
        return f"{column} = {quoted(text)}"

    def run(self) -> Run:
        """The run as detectors take it. Raises UsageError for several jobs."""
        if len(self.jobs) > 1:
            raise UsageError(f"{self.path} holds {len(self.jobs)} jobs: open one of its directories")
        return read_run(self._jobs[0]) if len(self._jobs) == 1 else read_together(self._jobs)

    def sql(self, query: str) -> pa.Table:
        """Run DuckDB SQL over the tables as views; every view has a column ``job``.

        A damaged segment is left out, and a warning names it. Raises UsageError, with DuckDB's own words, for a query
        that is wrong, and where damage left nothing of a table that it reads; HindmostError where a newer hindmost
        wrote what it asks for.
        """
        for attempt in range(5):
            with self._one_at_a_time:
                try:
                    _refuse_writing(self._engine().extract_statements(query))
                    self._views(query)
                    answer = self._engine().sql(query)
                    if answer is None:  # nothing, a comment, a setting
                        raise UsageError("the query asks for nothing: give a SELECT")
                    return self._warn_of_torn(query, answer.to_arrow_table())
                except duckdb.Error as error:
                    # a segment was compacted away after it was listed, or is torn: look closer, and again
                    if type(error) not in _UNREADABLE or attempt == 4:
                        why = str(error).splitlines()[0].rstrip("!")
                        known = f"tables: {', '.join(schema.STORED)}; `describe TABLE` lists the columns of one"
                        raise UsageError(f"the query failed: {why}; {known}") from error
                    self._leave_torn_out(query, whole=attempt > 0)
        raise AssertionError

    def interrupt(self) -> None:
        """Give up the question that another thread asks, which then fails."""
        if self._connection is not None:
            self._connection.interrupt()

    def unrecorded(self, query: str) -> list[str]:
        """Tables that a query reads, and of which nothing was recorded: its answer is no measurement of these."""
        with self._one_at_a_time:
            lacking = [table for table in _meant(query) if not self._has(table)]
            read = _read_by(query) if lacking else []  # to take it apart takes longer than most answers
            return [table for table in lacking if table in read]

    def _refuse_unreadable(self, query: str) -> None:
        """Raise UsageError where all there is of a table that the query reads is damaged: empty is not what it was."""
        for table in _read_by(query) if self._torn else ():
            written = "metrics" if table in schema.LEVELS else table
            lost = sum(path.parent.name == written for path in self._torn)
            if lost and not self._has(table):
                raise UsageError(
                    f"{self.path}: nothing of {table} can be read, for all of its segments ({lost:,}) are torn;"
                    " copy them again from where they were recorded, or from a backup"
                )

    def _has(self, table: str) -> bool:
        return any(self._select(job, table) for job in self._jobs)

    def _engine(self) -> duckdb.DuckDBPyConnection:
        """One engine for all questions: to start it takes longer than most of them."""
        if self._connection is None:
            self._connection = duckdb.connect()
        return self._connection

    def _views(self, query: str) -> None:
        """Define the tables that a query may mean, as they are now."""
        tables = _meant(query)
        for job in self._jobs:
            self._leave_out(job, [one.path for table in tables for one in segments.aside(job / "segments" / table)])
        for table in tables:
            parts: dict[str, list[str]] = {}
            for job in self._jobs:
                if part := self._select(job, table):
                    parts.setdefault(self._name(job), []).append(part)
            rows = " union all by name ".join(united(table, of_one_job) for of_one_job in parts.values())
            rows = _newest(rows) if rows and table == "ranks" else rows
            self._engine().execute(f'create or replace view "{table}" as {rows or _nothing(table)}')

    def _leave_torn_out(self, query: str, *, whole: bool) -> None:
        """Look through the segments that a query reads, at all of each if ``whole``, for such as are torn."""
        tables = set(_meant(query))
        tables |= {"metrics"} if tables & set(schema.LEVELS) else set()
        for job in self._jobs:
            found = (path for table in sorted(tables) for path in present(job / "segments" / table, self._torn))
            self._leave_out(job, [path for path in found if segments.is_torn(path, whole=whole)])

    def _leave_out(self, job: Path, torn: Sequence[Path]) -> None:
        """Read no row of these segments of a job from now on, and say so once, with the next answer."""
        new = [path for path in torn if path not in self._torn]
        self._torn.update(new)
        self._unwarned.setdefault(job, []).extend(new)

    def _warn_of_torn(self, query: str, answer: pa.Table) -> pa.Table:
        """The answer, once it is said what was left out of it."""
        self._refuse_unreadable(query)
        for job, torn in self._unwarned.items():
            for warning in segments.left_out(torn):
                log.warning("%s: %s", job, warning)
        self._unwarned.clear()
        return answer

    def _select(self, job: Path, table: str) -> str:
        """What selects a job's rows of a table; empty where it has none."""
        if table in schema.LEVELS:
            return level_select(self._name(job), job / "segments", table, self._torn)
        found = present(job / "segments" / table, self._torn)
        if not found:
            return ""
        if found[-1] not in self._checked:  # the newest of them: any newer writer has written that too
            with contextlib.suppress(OSError, pa.ArrowException):  # torn, or gone: DuckDB will say so
                segments.check_version(found[-1])
            self._checked.add(found[-1])
        files = ", ".join(quoted(str(path)) for path in found)
        options = "union_by_name = true" + (", filename = true, file_row_number = true" if table == "ranks" else "")
        rows = f"select {quoted(self._name(job))} as job, * from read_parquet([{files}], {options})"
        return _filled(table, rows)

    def _name(self, job: Path) -> str:
        if job not in self._names:
            self._names[job] = str(meta.facts(job).get("job_id") or job.name)
        return self._names[job]


def _directories(path: Path) -> list[Path]:
    """The run directory that a path is, or those of all jobs in a store. Raises UsageError when it is neither."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory: give a run directory, or a collector's store")
    if is_run_directory(path):
        return [path]
    found = sorted(one for one in path.iterdir() if one.is_dir() and is_run_directory(one))
    if not found:
        raise UsageError(f"{path} holds no recording: give a run directory, or a collector's store")
    return found


def _meant(query: str) -> list[str]:
    """The tables that a query may mean: it has their names, or asks which there are."""
    words = {word.lower() for word in re.findall(r"\w+", query)}
    return [table for table in schema.FILED if table in words or words & {"describe", "show", "tables"}]


def _read_by(query: str) -> list[str]:
    """The tables that a query reads; of a statement that the engine does not take apart, none."""
    named: set[str] = set()
    with duckdb.connect() as bare:  # where a view has a table's name, the engine looks through it
        for statement in bare.extract_statements(query):
            with contextlib.suppress(duckdb.Error):
                named |= {name.lower() for name in bare.get_table_names(statement.query)}
    return [table for table in schema.FILED if table in named]


def _nothing(table: str) -> str:
    columns = (_null(table, name) for name in schema.FILED[table])
    return f"select null::varchar as job, {', '.join(columns)} where false"


def _newest(rows: str) -> str:
    """Of each process the row of ``ranks`` that was written last: its probe may say only later what trains in it."""
    written = "parse_filename(filename) desc, file_row_number desc"
    process = f"partition by job, rank, world_size, node, pid order by {written}"
    return (
        f"select * exclude (filename, file_row_number) from ({rows})"
        f" qualify row_number() over ({process}) = 1 order by job, rank, start_ns"
    )


def _null(table: str, column: str) -> str:
    """A column of this name and type without a value."""
    kinds = {"i": "bigint", "u": "ubigint", "f": "double", "U": "varchar"}
    return f'null::{kinds[schema.missing_column(schema.FILED[table][column], 0).dtype.kind]} as "{column}"'


def _filled(table: str, rows: str) -> str:
    """The selected rows with every column of their table: *not measured* where a segment of an older run lacks one."""
    added = schema.ADDED.get(table, ())
    if not added:
        return rows
    absent = ", ".join(_null(table, name) for name in added)
    unmeasured = {name: schema.missing_column(schema.FILED[table][name], 1).item() for name in added}
    there = ", ".join(f'coalesce("{name}", {value!r}) as "{name}"' for name, value in unmeasured.items())
    return f"select * replace ({there}) from ({rows} union all by name select {absent} where false)"


def open_recording(path: str | Path, *others: str | Path) -> Recording | ClickHouseRecording:
    """The recording at ``path``: a run directory, a store, or the URL of one. Raises UsageError when it is neither.

    ``others`` are directories of other collectors, to be read together with it.
    """
    if others and any(map(is_url, (path, *others))):
        raise UsageError(f"{next(filter(is_url, (path, *others)))}: only directories can be read together")
    if is_url(path):
        from hindmost_collector.store.clickhouse.reading import ClickHouseRecording  # noqa: PLC0415 - where used

        return ClickHouseRecording(str(path))
    return Recording(path, *others)


_COLUMNS = "node, name, labels, time_ns, count, min, max, sum, last"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def present(directory: Path, torn: Collection[Path] = ()) -> list[Path]:
    """A table's segments, oldest first, without those that are known to be torn. Raises as ``segments.readable``."""
    return [one.path for one in segments.readable(directory) if one.path not in torn]


def level_select(job: str, directory: Path, level: str, torn: Collection[Path] = ()) -> str:
    """What selects a job's rows of a level, whole; ``directory`` is its ``segments``. Empty where it has no samples."""
    both = [*segments.listed(directory / level), *segments.listed(directory / "metrics")]
    names = {one.path.name for one in segments.standing(both)}
    made = [path for path in present(directory / level, torn) if path.name in names]
    there = {path.name for path in made}
    samples = present(directory / "metrics", torn)
    rest = [path for path in samples if path.name in names and path.name not in there]
    width = schema.LEVELS[level]
    parts = []
    if made:
        parts.append(f"select {_COLUMNS}, parse_filename(filename) as part from {_files(made)}")
    if rest:
        parts.append(
            f"select node, name, labels, time_ns - time_ns % {width} as time_ns, count(*) as count, min(value) as min,"
            " max(value) as max, sum(value) as sum, arg_max(value, time_ns) as last, parse_filename(filename) as part"
            f" from {_files(rest)} where isfinite(value) group by all"
        )
    if not parts:
        return ""
    return (  # an interval may lie across segments
        f"select {quoted(job)} as job, node, name, labels, time_ns, sum(count)::bigint as count, min(min) as min,"
        " max(max) as max, sum(sum) as sum, arg_max(last, part) as last"
        f" from ({' union all '.join(parts)}) group by node, name, labels, time_ns"
    )


def _files(paths: Iterable[Path]) -> str:
    return f"read_parquet([{', '.join(quoted(str(path)) for path in paths)}], filename = true)"
