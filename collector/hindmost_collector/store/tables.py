"""The tables of a recording by name, wherever it is kept, and a metric over any length of time."""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from hindmost.errors import UsageError
from hindmost_judge.model import AMOUNTS, PHASES

from hindmost_collector.store.schema import FILED, LEVELS

_FINEST, *_, _COARSEST = LEVELS


#: The columns of :meth:`Tables.verdicts`, as in ``hindmost.report/1``.
_VERDICT = pa.schema(
    [
        ("job", pa.string()),
        ("kind", pa.string()),
        ("ranks", pa.list_(pa.int64())),
        ("cause", pa.string()),
        ("since_step", pa.int64()),
        ("until_step", pa.int64()),
        ("cost_ms_per_step", pa.float64()),
        ("cost_ratio", pa.float64()),
        ("confidence", pa.float64()),
        ("evidence", pa.list_(pa.string())),
        ("advice", pa.list_(pa.string())),
    ]
)


class Tables(ABC):
    """What every recording offers to notebooks and scripts, on top of reading a table by its name."""

    @property
    @abstractmethod
    def jobs(self) -> list[str]:
        """The ids of its jobs, sorted."""

    @abstractmethod
    def table(self, name: str, *columns: str) -> pa.Table:
        """All rows of a table, with the job in the column ``job``; of these columns only, where any are named.

        Raises UsageError for a name that is none.
        """

    @abstractmethod
    def sql(self, query: str) -> pa.Table:
        """The answer to a query over the tables, in the SQL of what keeps them. Raises UsageError when it is wrong."""

    def unrecorded(self, query: str) -> list[str]:  # noqa: ARG002 - where it is known
        """Tables that a query reads, and of which nothing was recorded, where that is known."""
        return []

    def interrupt(self) -> None:  # noqa: B027 - where it can be
        """Give up the question that another thread asks."""

    @abstractmethod
    def _equal(self, column: str, text: str) -> str:
        """The SQL condition that a column is a text."""

    @abstractmethod
    def _reports(self) -> Iterator[tuple[str, bytes]]:
        """Each job whose report was written at its end, and that report as JSON."""

    def verdicts(self) -> pa.Table:
        """A row a verdict of the report at each job's end, the most costly first; none where no report was written."""
        found = []
        for job, content in self._reports():
            with contextlib.suppress(ValueError):
                verdicts = json.loads(content)["verdicts"]
                found += [
                    {"job": job, **{name: verdict.get(name) for name in _VERDICT.names[1:]}} for verdict in verdicts
                ]
        return pa.Table.from_pylist(found, schema=_VERDICT)

    def steps(self, *columns: str) -> pa.Table:
        """A row a step of a rank: durations and phases in ns, -1 unmeasured."""
        return self.table("steps", *columns)

    def collectives(self, *columns: str) -> pa.Table:
        """A row a collective or point-to-point call of a rank."""
        return self.table("collectives", *columns)

    def metrics(self, *columns: str) -> pa.Table:
        """A row a sample of a node or process metric; ``labels`` is JSON."""
        return self.table("metrics", *columns)

    def samples(self, *columns: str) -> pa.Table:
        """The same as :meth:`metrics`."""
        return self.metrics(*columns)

    def phases(self) -> pa.Table:
        """A row a phase of a step of a rank: job, rank, step, kind, phase, duration_ns. Unmeasured: no row."""
        named = {name: f"{name}_ns" for name in PHASES if name not in AMOUNTS}
        steps = self.table("steps", "job", "rank", "step", "kind", *named.values())
        parts = []
        for name, column in named.items():
            measured = steps.filter(pc.greater_equal(steps[column], 0))
            phase = pa.array([name] * len(measured), pa.string())
            parts.append(
                measured.select(["job", "rank", "step", "kind"])
                .append_column("phase", phase)
                .append_column("duration_ns", measured[column])
            )
        return pa.concat_tables(parts)

    def ranks(self, *columns: str) -> pa.Table:
        """A row a process of a rank, as it said last who it is; a ClickHouse store has a row each time that it did."""
        return self.table("ranks", *columns)

    def series(
        self,
        name: str,
        *,
        node: str | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        points: int = 1000,
    ) -> pa.Table:
        """A metric over time: job, node, labels, time_ns, count, min, max, mean, last; a row a series and interval.

        Args:
            node: of one node only.
            start_ns: from there on (Unix ns); from the first sample where not given.
            end_ns: up to there, exclusive; to the last sample where not given.
            points: a series has about so many rows at most: samples themselves (count 1), or intervals of the finest
                level that keeps to it.
        """
        conditions = [self._equal("name", name)]
        conditions += [self._equal("node", node)] if node is not None else []
        conditions += [f"time_ns >= {int(start_ns)}"] if start_ns is not None else []
        conditions += [f"time_ns < {int(end_ns)}"] if end_ns is not None else []
        where = " and ".join(conditions)
        first, last = self._span(where)
        length = (end_ns or last) - (start_ns or first)
        found: list[pa.Table] = []
        for query in _series_queries(length, where, points):
            found.append(self.sql(query))
            times = found[-1]["time_ns"].to_numpy()
            if len(times) and times.min() < first + LEVELS[_COARSEST]:
                break  # else the beginning is not there any more, but a coarser level may have it
        return found[-1]

    def _span(self, where: str) -> tuple[int, int]:
        """From when to when there is anything; ``(0, 0)`` where there is nothing."""
        first, last = self._extremes(where, _COARSEST)
        return self._extremes(where, _FINEST) if last - first < 24 * LEVELS[_COARSEST] else (first, last)

    def _extremes(self, where: str, level: str) -> tuple[int, int]:
        """From when to when the selected samples go, as exactly as a level knows."""
        query = f"select count(*) as rows, min(time_ns) as first, max(time_ns) as last from {level} where {where}"
        (found,) = self.sql(query).to_pylist()
        return (found["first"], found["last"] + LEVELS[level]) if found["rows"] else (0, 0)


def checked(name: str, columns: Sequence[str]) -> list[str]:
    """These columns of a table, or all of them. Raises UsageError for a name that is none."""
    if name not in FILED:
        raise UsageError(f"there is no table {name!r}; tables are {', '.join(FILED)}")
    known = ["job", *FILED[name]]
    for column in columns:
        if column not in known:
            raise UsageError(f"{name} has no column {column!r}; columns are {', '.join(known)}")
    return list(columns) or known


def _series_queries(length_ns: int, where: str, points: int) -> Iterator[str]:
    """The rows of each level of which a series has ``points`` at most over ``length_ns``, the finest first."""
    columns = "job, node, labels, time_ns"
    for level, width in {"metrics": 1_000_000_000, **LEVELS}.items():
        if width * points >= length_ns or level == _COARSEST:
            shown = "1 as count, value as min, value as max, value as mean, value as last"
            if level != "metrics":
                shown = "count, min, max, sum / count as mean, last"
            yield f"select {columns}, {shown} from {level} where {where} order by job, node, labels, time_ns"
