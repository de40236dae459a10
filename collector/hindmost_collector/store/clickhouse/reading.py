"""Reading what collectors wrote into ClickHouse: a run for the judge, tables and SQL for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hindmost.errors import HindmostError, MissingError, UsageError

from hindmost_collector.live.window import CAUSAL
from hindmost_collector.store import meta, partial_read, schema
from hindmost_collector.store.clickhouse import ddl
from hindmost_collector.store.clickhouse.client import Server, Unreachable, parse
from hindmost_collector.store.parquet.run_directory import run_of
from hindmost_collector.store.tables import Tables, checked

if TYPE_CHECKING:
    import pyarrow as pa
    from hindmost_judge.model import Run


def read_file(server: Server, job: str, name: str) -> bytes | None:
    """The newest content of a job's file; None where it has none of that name."""
    found = server.rows(
        f"SELECT content FROM {_view(server, 'files')} WHERE job = {{job:String}} AND name = {{name:String}}"
        " ORDER BY flush DESC LIMIT 1",
        {"job": job, "name": name},
    )
    content = found["content"][0].as_py() if len(found) else None
    return content.encode() if isinstance(content, str) else content


def read_meta(server: Server, job: str) -> tuple[dict[str, Any], list[str]]:
    """What is known of a job as a whole, and notes on what is not. Raises HindmostError where that is newer."""
    content = read_file(server, job, meta.NAME)
    return meta.parsed(content, f"{meta.NAME} of {job}") if content is not None else ({}, [meta.MISSING])


def jobs(server: Server) -> list[str]:
    """Every job that has a ``meta.json``."""
    query = f"SELECT DISTINCT job FROM {_view(server, 'files')} WHERE name = 'meta.json' ORDER BY job"
    return [str(job) for job in server.rows(query)["job"].to_pylist()]


def read_run(server: Server, job: str) -> Run:
    """The record of one job as the model's arrays; a part if it is large, as from a run directory.

    Raises UsageError where there is nothing.
    """
    known, notes = read_meta(server, job)
    part = _plan(server, job)
    tables = {table: schema.to_numpy(table, _rows(server, table, job, part)) for table in schema.STORED}
    if not known and not any(len(next(iter(table.values()))) for table in tables.values()):
        raise UsageError(f"{server.target} holds no job {job!r}; it holds {_listed(jobs(server))}")
    return partial_read.said_of(run_of(tables, known, job, notes), part)


def _plan(server: Server, job: str) -> partial_read.PartialRead | None:
    """What to read of a job; None: all of it."""
    counts = {"metrics": _extent(server, "metrics", job, "time_ns")[0]}
    times: list[tuple[int, int]] = []
    for table in partial_read.MOST:
        counts[table], *span = _extent(server, table, job, "start_ns")
        times += [(span[0], span[1])] if span else []
    if not partial_read.too_large(counts):
        return None
    _, *numbers = _extent(server, "steps", job, "step")
    return partial_read.spread(counts, times, [(numbers[0], numbers[1])] if numbers else [])


def _extent(server: Server, table: str, job: str, column: str) -> tuple[int, ...]:
    """How many rows a job has, and the least and greatest value of a column where any was measured."""
    query = (
        f"SELECT count() AS rows, minIf({column}, {column} >= 0) AS low, max({column}) AS high,"
        f" countIf({column} >= 0) AS told FROM {_view(server, table)} WHERE job = {{job:String}}"
    )
    (found,) = server.rows(query, {"job": job}).to_pylist()
    return (found["rows"], found["low"], found["high"]) if found["told"] else (found["rows"],)


def _in_part(table: str, part: partial_read.PartialRead | None) -> str:
    """The SQL condition for the rows of a table that belong to the part."""
    column = partial_read.TIME.get(table)
    if part is None or column is None:
        return ""
    condition = f" AND positiveModulo({column} - {part.first}, {part.every_ns}) < {part.kept_of(table)}"
    if table == "metrics":
        causal = " OR ".join(f"startsWith(name, '{prefix}')" for prefix in CAUSAL)
        condition += f" AND ({causal}) AND intDiv(time_ns, 1000000000) % {part.sample_every} = 0"
    return condition


def _rows(server: Server, table: str, job: str, part: partial_read.PartialRead | None) -> pa.Table:
    names = ", ".join(ddl.quoted(name) for name in schema.STORED[table])
    order = ", ".join(("flush", *ddl.ORDER.get(table, ())) if table not in schema.ORDER else ddl.ORDER[table])
    query = (
        f"SELECT {names} FROM {_view(server, table)} WHERE job = {{job:String}}{_in_part(table, part)} ORDER BY {order}"
    )
    return server.rows(query, {"job": job})


def _view(server: Server, table: str) -> str:
    return f"{ddl.quoted(server.target.place.database)}.{table}"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


class ClickHouseRecording(Tables):
    """A database that collectors write into; one job of it where the URL says ``?job=ID``."""

    def __init__(self, url: str) -> None:
        """Raises UsageError when there is no recording there, HindmostError when the server does not answer."""
        self._target = parse(url)
        try:
            self._server = Server(self._target, use_database=True)
            self._jobs = [self._target.job] if self._target.job else jobs(self._server)
        except (Unreachable, MissingError):
            raise
        except HindmostError as error:
            raise UsageError(f"{self._target} holds no recording: {error}") from error
        if not self._jobs:
            raise UsageError(f"{self._target} holds no recording: no collector has written there yet")

    @property
    def meta(self) -> dict[str, Any]:
        """What is known of the job; of the first where there are several."""
        return read_meta(self._server, self._jobs[0])[0]

    @property
    def jobs(self) -> list[str]:
        """The ids of its jobs, sorted; of the one that the URL names."""
        return self._jobs

    def table(self, name: str, *columns: str) -> pa.Table:
        """All rows of a stored table, with the job in the column ``job``; of one job where the URL names one."""
        names = ", ".join(map(ddl.quoted, checked(name, columns)))
        return self._server.rows(f"SELECT {names} FROM {_view(self._server, name)}", settings=self._settings())

    def _reports(self) -> Iterator[tuple[str, bytes]]:
        for job in self._jobs:
            content = read_file(self._server, job, "report.json")
            if content is not None:
                yield job, content

    def _equal(self, column: str, text: str) -> str:
        return f"{column} = {_literal(text)}"

    def run(self) -> Run:
        """The run as detectors take it. Raises UsageError where there are several jobs and the URL names none."""
        if len(self._jobs) != 1:
            raise UsageError(f"{self._target} holds {_listed(self._jobs)}: say which one with ?job=ID")
        return read_run(self._server, self._jobs[0])

    def _settings(self) -> dict[str, str]:
        """What lets the server read the rows of the job that the URL names, whatever a query is."""
        if not self._target.job:
            return {}
        where = _literal(self._equal("job", self._target.job))
        names = [
            f"{self._target.place.database}.{table}_{suffix}" for table in ddl.TABLES for suffix in ("rows", "local")
        ]
        return {"additional_table_filters": f"{{{', '.join(f'{_literal(name)}: {where}' for name in names)}}}"}

    def sql(self, query: str) -> pa.Table:
        """Run ClickHouse SQL over the tables; every table has a column ``job``. Raises UsageError when it is wrong.

        Where the URL names a job the store's tables hold its rows alone, and no others are read.
        """
        try:
            return self._server.rows(query, settings=self._settings())
        except Unreachable:
            raise
        except HindmostError as error:
            raise UsageError(f"the query failed: {error}") from error
