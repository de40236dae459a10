"""Coarser levels of the samples as SQL: what compaction has made, and the newest samples that it has not come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_collector.store import schema
from hindmost_collector.store.parquet import segments

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

_COLUMNS = "node, name, labels, time_ns, count, min, max, sum, last"


def quoted(text: str) -> str:
    """A SQL string."""
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
