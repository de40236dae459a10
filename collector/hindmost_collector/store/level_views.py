"""Coarser levels of the samples as SQL: what compaction has made, and the newest samples that it has not come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_collector.store import schema, segments

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

FINEST, *_, COARSEST = schema.LEVELS
_COLUMNS = "node, name, labels, time_ns, count, min, max, sum, last"


def quoted(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def present(directory: Path, torn: Collection[Path] = ()) -> list[Path]:
    """A table's segments, oldest first, without those that are known to be torn."""
    return [one.path for one in segments.listed(directory) if one.path not in torn]


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


def conditions(name: str, node: str | None, start_ns: int | None, end_ns: int | None) -> str:
    """What selects a metric's rows."""
    found = [f"name = {quoted(name)}"]
    found += [f"node = {quoted(node)}"] if node is not None else []
    found += [f"time_ns >= {int(start_ns)}"] if start_ns is not None else []
    found += [f"time_ns < {int(end_ns)}"] if end_ns is not None else []
    return " and ".join(found)


def span_query(where: str, level: str) -> str:
    """Asks from when to when the selected samples go: ``first`` and ``last``, as exactly as a level knows."""
    width = schema.LEVELS[level]
    return f"select min(time_ns) as first, max(time_ns) + {width} as last from {level} where {where}"


def series_queries(length_ns: int, where: str, points: int) -> Iterator[str]:
    """The rows of each level of which a series has ``points`` at most over ``length_ns``, the finest first."""
    columns = "job, node, labels, time_ns"
    for level, width in {"metrics": 1_000_000_000, **schema.LEVELS}.items():
        if width * points >= length_ns or level == COARSEST:
            shown = "1 as count, value as min, value as max, value as mean, value as last"
            if level != "metrics":
                shown = "count, min, max, sum / count as mean, last"
            yield f"select {columns}, {shown} from {level} where {where} order by job, node, labels, time_ns"


def _files(paths: Iterable[Path]) -> str:
    return f"read_parquet([{', '.join(quoted(str(path)) for path in paths)}], filename = true)"
