"""The scale-out store: tables in ClickHouse, on one server or a cluster, that many collectors write into.

A flush's rows are inserted table by table under the flush's number, and then the number itself into ``flushes``: one
row, in one insert, that makes all of them true. What a crash or a lost connection left without it is in no view. An
insert that is tried again carries the same deduplication token, so that it is done once.

The engine keeps the newest sequence of each agent and slot, whether or not its flush became whole. So a writer has two
slots for each agent, and never writes into the one that holds the agent's last whole flush; and each writer, at each
start, has slots of its own.

The engine adds up the coarser levels of samples, and rows that were added up cannot be taken back. So a flush's levels
are inserted after it has become whole, under tokens of their own: however often they are inserted, they count once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from hindmost.errors import HindmostError
from hindmost_judge.model import Run

from hindmost_collector.store import meta, schema
from hindmost_collector.store.arrow_tables import Clock, Files, Rows, reduced
from hindmost_collector.store.clickhouse import ddl
from hindmost_collector.store.clickhouse.client import Server, Target, Unreachable, parse
from hindmost_collector.store.clickhouse.reading import read_file, read_run
from hindmost_collector.store.parquet.compaction import in_order

#: Agents remembered; with more, the writer goes on in new slots.
_REMEMBERED = 100_000


class AgentSlots:
    def __init__(self) -> None:
        self._first: int | None = None
        self._held: dict[str, int] = {}

    def free(self, identities: Iterable[str], unique: Callable[[], int]) -> list[int]:
        """A slot for each agent that does not hold its last complete flush; ``unique`` draws a number not in use."""
        if self._first is None or len(self._held) > _REMEMBERED:
            self._first = unique() * 2
            self._held.clear()
        return [self._first + 1 - self._held.get(identity, 1) for identity in identities]

    def taken(self, identities: Iterable[str]) -> None:
        """The flush with what was written into the ``free`` slots is whole."""
        self._held.update({identity: 1 - self._held.get(identity, 1) for identity in identities})


log = logging.getLogger(__name__)

#: Rows of one insert at most: a server writes a part for each, and likes them large.
BLOCK_ROWS = 1 << 20
#: How often an insert is tried within one write; after that the recorder keeps the rows, and tries again later.
ATTEMPTS = 3
#: After a start, flushes up to this age are checked: their writer may have stopped before their levels. The engine
#: remembers the tokens of 10,000 inserts, which is longer than this with up to 28 collectors.
LEVELS_LATE_S = 3600
#: Lines that wait while the server is away; the oldest give way.
_LINES = 4096


class ClickHouseStore:
    """Writes flushes. Where ``write`` returned, its rows survive kill -9 of collector and server, and a power cut.

    Args:
        url: ``clickhouse://USER@HOST:PORT/DATABASE?cluster=NAME``. Missing tables are made.
        retention_days: rows are deleted after so many days; zero keeps them.
    """

    def __init__(self, url: str, retention_days: float = 0.0, now_ns: Callable[[], int] = time.time_ns) -> None:
        """Raises HindmostError when the server does not answer or does not let us make tables."""
        self.target: Target = parse(url)
        self.server = Server(self.target)
        self._now_ns = now_ns
        self._name = socket.gethostname()
        self._last = 0
        self._dangling: int | None = None
        self._slots = AgentSlots()
        self._lines: deque[tuple[str, str, str]] = deque(maxlen=_LINES)
        self._meta: dict[str, dict[str, Any]] = {}
        self._unsaved: set[str] = set()
        self._small = threading.RLock()
        self._prepare(retention_days)
        self._levels: deque[Insert] = deque(self._left_over())

    def _prepare(self, days: float) -> None:
        place = self.target.place
        first, *rest = ddl.statements(place, days)
        self.server.command(first)
        for statement in (*ddl.additions(place, self._columns()), *rest):
            self.server.command(statement)
        made = self._made()
        for table, clause, statement in ddl.retention(place, days):
            if clause not in made[table] or (not clause and " TTL " in made[table]):
                self.server.command(statement)

    def _columns(self) -> dict[str, frozenset[str]]:
        query = "SELECT table, name FROM system.columns WHERE database = {database:String}"
        found: dict[str, set[str]] = defaultdict(set)
        for row in self.server.rows(query, {"database": self.target.place.database}).to_pylist():
            found[row["table"]].add(row["name"])
        return {table: frozenset(names) for table, names in found.items()}

    def _made(self) -> dict[str, str]:
        """The statement that made each table."""
        query = "SELECT name, create_table_query AS made FROM system.tables WHERE database = {database:String}"
        found = self.server.rows(query, {"database": self.target.place.database}).to_pylist()
        return {row["name"]: row["made"] for row in found}

    def _left_over(self) -> list[Insert]:
        """The levels of the last flush that was written on this host: they may have been inserted, or not."""
        query = (
            f"SELECT max(flush) FROM (SELECT flush FROM {self._view('flushes')} WHERE collector = {{name:String}}"
            " GROUP BY flush HAVING max(void) = 0)"
        )
        newest = int(self.server.command(query, {"name": self._name}) or 0)
        age_s = self._now_ns() / 1e9 - (newest >> ddl.FLUSH_BITS) / 1000
        if age_s >= LEVELS_LATE_S:
            return []
        try:
            return levels_of_stored(self.server, newest)
        except HindmostError as error:  # levels lack a flush then, which is no reason not to record
            log.warning("the coarser levels of the last flush before this start were not checked: %s", error)
            return []

    @property
    def sequences(self) -> Mapping[str, int]:
        """Identity of an agent to the last batch sequence that is durable, whichever collector made it so."""
        query = f"SELECT identity, max(sequence) AS durable FROM {self._view('agents')} GROUP BY identity"
        return {row["identity"]: row["durable"] for row in self.server.rows(query).to_pylist()}

    @property
    def torn(self) -> tuple[str, ...]:
        """What of the store is damaged and left out: the server's own concern."""
        return ()

    @property
    def clock(self) -> dict[str, Any]:
        """What was given as ``clock`` to the last ``write`` on this host that had it."""
        ours = "collector = {name:String} AND clock != ''"
        query = f"SELECT argMax(clock, flush) FROM {self._view('flushes')} WHERE {ours}"
        answer = self.server.command(query, {"name": self._name})
        known: dict[str, Any] = json.loads(answer) if answer else {}
        return known

    def write(
        self, tables: Rows, sequences: Mapping[str, int], clock: Clock | None = None, files: Files | None = None
    ) -> tuple[int, int]:
        """Make rows of ``(job, table)``, files of ``(job, name)`` and agents' sequences durable; ``(rows, bytes)``.

        Raises OSError when they may not be: the next write undoes what there is of them.
        """
        try:
            self._settle()
            self._save_small()
            self._save_levels()
            flush, levels = self._number(), LevelsOfFlush()
            rows = total = 0
            for table, data in _by_table(tables):
                for number, block in enumerate(_blocks(levels.passing(data) if table == "metrics" else data)):
                    self._insert(f"{table}_rows", _numbered(block, flush), f"{flush}-{table}-{number}")
                    rows, total = rows + block.num_rows, total + block.nbytes
            if sequences:
                slots = self._slots.free(sequences, self._number)
                self._insert("agents_rows", _agents(sequences, slots, flush), f"{flush}-agents")
            if files:
                self._save("files", "content", [(job, name, content) for (job, name), content in files.items()])
            self._commit(flush, clock)
            self._slots.taken(sequences)
        except HindmostError as error:
            raise OSError(str(error)) from error
        self._levels.extend(levels.inserts(flush))
        with contextlib.suppress(HindmostError):  # the flush is whole; the next one begins with what is left
            self._save_levels()
        return rows, total

    def _save_levels(self) -> None:
        while self._levels:
            self._insert(*self._levels[0])
            self._levels.popleft()

    def _number(self) -> int:
        """The next flush's: unlike any other collector's, and above all that this one gave out."""
        drawn = (self._now_ns() // 1_000_000 << ddl.FLUSH_BITS) | secrets.randbits(ddl.FLUSH_BITS)
        with self._small:
            self._last = max(self._last + 1, drawn)
            return self._last

    def _commit(self, flush: int, clock: dict[str, Any] | None, *, void: bool = False) -> None:
        row = {"flush": [flush], "collector": [self._name], "clock": [json.dumps(clock) if clock else ""]}
        fields = [("flush", pa.uint64()), ("collector", pa.string()), ("clock", pa.string()), ("void", pa.uint8())]
        self._dangling = flush  # until the answer is here, it is unknown whether it is true
        self._insert("flushes", pa.table({**row, "void": [int(void)]}, schema=pa.schema(fields)), f"{flush}-{void:d}")
        self._dangling = None

    def _settle(self) -> None:
        """Undo a commit whose answer never came: its rows are written again, in another flush."""
        if self._dangling is not None:
            self._commit(self._dangling, None, void=True)

    def _insert(self, table: str, data: pa.Table, token: str, attempts: int = ATTEMPTS) -> None:
        try:
            self.server.insert(table, data, token)
        except Unreachable:
            if attempts == 1:
                raise
            self._insert(table, data, token, attempts - 1)

    def write_meta(self, job: str, facts: Mapping[str, Any]) -> None:
        """Merge ``facts`` into the job's ``meta.json``; it is written with the next flush."""
        with self._small:
            self._meta.setdefault(job, {}).update({key: value for key, value in facts.items() if value is not None})
            self._unsaved.add(job)

    def append_line(self, job: str, name: str, line: str) -> None:
        """Append one line to a text file of the job; it is written with the next flush."""
        with self._small:
            self._lines.append((job, name, line))

    def write_file(self, job: str, name: str, content: bytes) -> None:
        """Replace a file of the job (``report.json``, ``stacks/…``). Raises OSError."""
        try:
            self._save_small()
            self._save("files", "content", [(job, name, content)])
        except HindmostError as error:
            raise OSError(str(error)) from error

    def _save_small(self) -> None:
        with self._small:
            while self._lines:
                self._save("lines", "line", [self._lines[0]])
                self._lines.popleft()
            for job in list(self._unsaved):
                content = meta.merged(read_file(self.server, job, meta.NAME), self._meta[job])
                self._save("files", "content", [(job, meta.NAME, content)])
                self._unsaved.discard(job)

    def _save(self, table: str, column: str, found: list[tuple[str, str, Any]]) -> None:
        names = ("job", "name", column)
        data = pa.table({name: pa.array([row[index] for row in found]) for index, name in enumerate(names)})
        number = self._number()
        self._insert(f"{table}_rows", _numbered(data, number), f"{number}-{table}")

    def read_file(self, job: str, name: str) -> bytes | None:
        """The newest content of a job's file; None where it has none. Raises HindmostError."""
        return read_file(self.server, job, name)

    def place(self, job: str) -> str:
        """Its URL, for `hindmost report`, without the password."""
        return f"{self.server.target}?job={quote(job)}" + ("&secure=1" if self.server.target.secure else "")

    def read(self, job: str) -> Run:
        """Everything recorded of one job, by whichever collector."""
        self._save_small()
        return read_run(self.server, job)

    def close(self) -> None:
        """Write what waits, and let the connection go."""
        try:
            self._save_small()
            self._save_levels()
        except HindmostError as error:
            log.warning("the last notes on jobs were not written: %s", error)
        self.server.close()

    def _view(self, table: str) -> str:
        return f"{ddl.quoted(self.target.place.database)}.{table}"


def _by_table(tables: Rows) -> Iterator[tuple[str, Iterator[pa.Table]]]:
    """The pieces of all jobs by table, each with its job as a column: few large inserts rather than many small ones."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for job, table in tables:
        jobs[table].append(job)
    for table, names in jobs.items():
        yield table, (_of_job(piece, job) for job in names for piece in tables[job, table])


def _of_job(piece: pa.Table, job: str) -> pa.Table:
    column = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(piece)), pa.array([job]))
    return piece.replace_schema_metadata(None).append_column("job", column)


def _blocks(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    block: list[pa.Table] = []
    for piece in pieces:
        block.append(piece)
        if sum(map(len, block)) >= BLOCK_ROWS:
            yield _joined(block)
            block = []
    if block:
        yield _joined(block)


def _joined(pieces: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(pieces).unify_dictionaries().combine_chunks()


def _numbered(data: pa.Table, flush: int) -> pa.Table:
    return data.append_column("flush", pa.repeat(pa.scalar(flush, pa.uint64()), len(data)))


def _agents(sequences: Mapping[str, int], slots: Iterable[int], flush: int) -> pa.Table:
    columns = {
        "job": pa.repeat(pa.scalar("", pa.string()), len(sequences)),
        "identity": pa.array(list(sequences), pa.string()),
        "sequence": pa.array(list(sequences.values()), pa.uint64()),
        "slot": pa.array(list(slots), pa.uint64()),
    }
    return _numbered(pa.table(columns), flush)


class Insert(NamedTuple):
    """Rows of a level, all of one flush."""

    table: str
    data: pa.Table
    token: str


class LevelsOfFlush:
    """Takes the levels of the samples that pass through."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.Table]] = defaultdict(list)

    def passing(self, samples: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The same pieces, which have a column ``job``."""
        for piece in samples:
            if len(piece):
                self._add(piece["job"][0].as_py(), in_order("metrics", piece))
            yield piece

    def _add(self, job: str, piece: pa.Table) -> None:
        for level, columns in reduced(piece).items():
            last = pa.StructArray.from_arrays(
                [pa.array(columns["last_ns"]), pa.array(columns["last"])], ["ns", "value"]
            )
            made = {name: pa.array(columns[name]) for name in schema.LEVEL} | {"last": last}
            jobs = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(last), np.int32)), pa.array([job]))
            self._parts[level].append(pa.table({"job": jobs, **made}))

    def inserts(self, flush: int) -> list[Insert]:
        """What to insert once the flush is whole."""
        joined = {level: pa.concat_tables(parts).unify_dictionaries() for level, parts in self._parts.items()}
        return [_insert(level, rows, flush) for level, rows in joined.items() if len(rows)]


def levels_of_stored(server: Server, flush: int) -> list[Insert]:
    database = ddl.quoted(server.target.place.database)
    found = []
    for level, width in schema.LEVELS.items():
        query = (
            f"SELECT job, node, name, labels, time_ns - time_ns % {width} AS begin, count() AS found,"
            " min(value) AS least, max(value) AS most, sum(value) AS total, max((time_ns, value)) AS newest"
            f" FROM {database}.metrics_rows WHERE {ddl.of_flush(flush)} AND isFinite(value)"
            " GROUP BY job, node, name, labels, begin"
        )
        rows = server.rows(query)
        if len(rows):
            found.append(_insert(level, rows.rename_columns(["job", *schema.LEVEL]), flush))
    return found


def _insert(level: str, rows: pa.Table, flush: int) -> Insert:
    numbered = rows.append_column("flush", pa.repeat(pa.scalar(flush, pa.uint64()), len(rows)))
    return Insert(f"{level}_rows", numbered, f"{flush}-{level}")
