"""Reading a run directory: while it is written, after a crash, or years later; several of one job together."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hindmost.errors import UsageError
from hindmost_judge.encoding import chosen, codes
from hindmost_judge.model import FINISHED, RUNNING, TABLES, Job, Run, Table, rows, world_size
from hindmost_judge.timeline.separate_jobs import judged_incarnation

from hindmost_collector.store import meta as of_job
from hindmost_collector.store import partial_read, schema
from hindmost_collector.store.parquet import segments

#: No step, call or interval takes as long as this, a year.
_LONGEST_NS = 365 * 86400 * 10**9
#: Unix time at which nothing begins: the year 2100 and later.
_LATEST_NS = 4_102_444_800 * 10**9


def set_aside(tables: dict[str, Table]) -> tuple[dict[str, Table], list[str]]:
    """The tables without such rows, and a note that counts them."""
    found, gone = dict(tables), dict[str, int]()
    for name in ("steps", "collectives", "intervals"):
        one = tables[name]
        possible = np.asarray((one["duration_ns"] < _LONGEST_NS) & (np.abs(one["start_ns"]) < _LATEST_NS))
        found[name] = chosen(one, possible)
        if count := len(possible) - int(np.count_nonzero(possible)):
            gone[name] = count
    if not gone:
        return tables, []
    counts = ", ".join(f"{count} of {name}" for name, count in gone.items())
    return found, [f"rows with times that no job has, a year long or after 2100, are left out: {counts}"]


def is_run_directory(path: Path) -> bool:
    """Whether ``path`` looks like something a collector recorded."""
    return (path / "segments").is_dir() or (path / "meta.json").is_file()


def read_run(path: Path) -> Run:
    """What a run directory holds, as the model's arrays: of a large one a part; what was lost or torn is in
    ``notes``.

    Raises:
        UsageError: ``path`` is not a run directory, an empty one, or one of which no segment can be read.
        HindmostError: a newer hindmost wrote it.
        PermissionError: some of it may not be read; the file or folder is its ``filename``.
    """
    stored, part = _stored(path)
    _refuse_unreadable([path], [stored])
    return partial_read.said_of(run_of(stored.tables, stored.meta, path.name, stored.notes), part)


def read_together(paths: Sequence[Path]) -> Run:
    """One job of which several collectors wrote a run directory each; what two of them hold counts once.

    Raises:
        UsageError: a path is not a run directory, they are of different jobs, or too large to be read as a whole.
    """
    found = [_stored(path) for path in paths]
    _refuse_unreadable(paths, [one for one, _ in found])
    jobs = {str(one.meta.get("job_id") or path.name): path for path, (one, _) in zip(paths, found, strict=True)}
    if len(jobs) > 1:
        jobs_of = ", ".join(f"{path} of {job}" for job, path in jobs.items())
        raise UsageError(f"run directories of different jobs ({jobs_of}): report on each separately")
    if any(part is not None for _, part in found):
        raise UsageError(f"{paths[0]} and the others are too large to be read together: report on each separately")
    metas = [one.meta for one, _ in found]
    ends = [meta["ended_ns"] for meta in metas if meta.get("ended_ns")]
    starts = [meta["started_ns"] for meta in metas if meta.get("started_ns")]
    meta = {name: value for one in reversed(metas) for name, value in one.items() if value is not None}
    meta |= {"started_ns": min(starts, default=None), "ended_ns": max(ends) if len(ends) == len(metas) else None}
    meta["left"] = [node for one in metas for node in of_job.left(one)]
    tables = {name: joined(name, [one.tables[name] for one, _ in found]) for name in schema.STORED}
    return run_of(tables, meta, paths[0].name, list(dict.fromkeys(note for one, _ in found for note in one.notes)))


class _Stored(NamedTuple):
    """What a run directory holds as it is written."""

    tables: dict[str, Table]
    meta: dict[str, Any]
    notes: list[str]
    torn: list[Path]

    @property
    def unreadable(self) -> bool:
        """Whether segments are there, and no row of any can be read."""
        return bool(self.torn) and not any(rows(table) for table in self.tables.values())


def _refuse_unreadable(paths: Sequence[Path], found: Sequence[_Stored]) -> None:
    """Raise UsageError where damage left nothing of any directory: a verdict on nothing would pass for one."""
    if not all(one.unreadable for one in found):
        return
    count = sum(len(one.torn) for one in found)
    raise UsageError(
        f"{', '.join(map(str, paths))}: nothing in it can be read, for all of its segments ({count:,}) are torn;"
        " nothing was changed there: copy it again from where it was recorded, or from a backup"
    )


def _stored(path: Path) -> tuple[_Stored, partial_read.PartialRead | None]:
    """What is there, and which part of it that is where it is not all."""
    if not path.is_dir():
        raise UsageError(f"{path} is no run directory: give the one that `hindmost run --out` wrote")
    if not is_run_directory(path):
        raise UsageError(f"{path} holds no recording (neither meta.json nor segments/): was the run written elsewhere?")
    damaged: list[Path] = []
    tables: dict[str, Table] = {}
    part = partial_read.plan(path / "segments")
    fewer_samples = part or partial_read.of_samples(path / "segments")
    for table in schema.STORED:
        chosen = fewer_samples if table == "metrics" else part
        reader = segments.read if chosen is None else functools.partial(partial_read.read, table=table, part=chosen)
        data, torn = segments.read_table(path / "segments" / table, table, reader=reader)
        tables[table] = schema.to_numpy(table, data)
        damaged += torn
        del data
        pa.default_memory_pool().release_unused()  # it would keep what the largest table took
    meta, damage = of_job.read(path)
    notes = [*segments.left_out(damaged), *_foreign(path / "segments"), *damage]
    return _Stored(tables, meta, notes, damaged), part


def run_of(tables: dict[str, Table], meta: dict[str, Any], name: str, notes: list[str]) -> Run:
    """The run that stored ``tables`` hold, wherever they were stored. ``name`` is the job's where ``meta`` has none."""
    tables, odd = set_aside(tables)
    states = _last_by(tables["rank_states"], ("rank",), "time_ns")
    shown: dict[str, Any] = {name: tables[name] for name in TABLES}
    shown["ranks"] = _last_by(tables["ranks"], ("rank",), None)
    shown["communicators"] = _last_by(tables["communicators"], ("comm", "rank"), None)
    failed = bool(meta.get("interrupted_by") or meta.get("exit_code"))
    shown["in_flight"] = _still_in_flight(tables["in_flight"], tables["rank_states"], states, failed=failed)
    shown["rank_states"] = states
    said = (*notes, *odd, *_clock_note(tables["clocks"]), *_wall_clocks(tables["metrics"]))
    return judged_incarnation(Run(job=_job(name, meta, shown), **shown, notes=said), tables["ranks"])


def _foreign(folder: Path) -> list[str]:
    """What lies among the segments and is none."""
    found = sorted(one.name for one in folder.glob("*") if not one.is_dir() and not one.name.startswith("."))
    if not found:
        return []
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return [f"segments/ holds what is no segment, left out: {', '.join(found[:3])}{more}"]


def _job(name: str, meta: dict[str, Any], tables: dict[str, Table]) -> Job:
    ranks = tables["ranks"]
    world = world_size(ranks)
    return Job(
        id=str(meta.get("job_id") or name),
        command=meta.get("command"),
        world_size=world or meta.get("world_size"),
        nodes=len(np.unique(ranks["node"])) or None,
        started_ns=meta.get("started_ns"),
        ended_ns=meta.get("ended_ns"),
        exit_code=meta.get("exit_code"),
        interrupted_by=meta.get("interrupted_by"),
        left=of_job.left(meta),
        no_ring=meta.get("no_ring"),
        entered=meta.get("entered") is True,
        thresholds=_thresholds(meta.get("thresholds")),
        settings=of_job.settings(meta),
    )


def _thresholds(found: object) -> tuple[tuple[str, float], ...]:
    known = found if isinstance(found, dict) else {}
    return tuple((str(name), value) for name, value in known.items() if isinstance(value, (int, float)))


def _last_by(table: Table, keys: tuple[str, ...], newest: str | None) -> Table:
    """The last row of each key: the one with the highest ``newest``, or the one written last."""
    count = rows(table)
    if not count:
        return table
    tie = table[newest] if newest else np.arange(count)
    order = np.lexsort((np.arange(count), tie, *(table[key] for key in reversed(keys))))
    last = np.ones(count, dtype=bool)
    last[:-1] = np.logical_or.reduce([table[key][order][1:] != table[key][order][:-1] for key in keys])
    return {name: column[order[last]] for name, column in table.items()}


def _still_in_flight(in_flight: Table, looks: Table, last: Table, *, failed: bool) -> Table:
    """What each rank had entered and not left when it was last looked at; nothing for a rank that finished.

    A rank that vanished had not left it until then: what was seen of it while it still ran, or after, is kept. Of a
    job that failed or was interrupted, ranks finish because they have to: their waits count until that was seen.
    """
    if not rows(in_flight):
        return in_flight
    running = _last_by({name: column[looks["life"] == RUNNING] for name, column in looks.items()}, ("rank",), "time_ns")
    alive = dict(zip(running["rank"].tolist(), running["time_ns"].tolist(), strict=True))
    ends = {
        rank: (time, life)
        for rank, time, life in zip(*(last[name].tolist() for name in ("rank", "time_ns", "life")), strict=True)
    }
    keep, observed = np.zeros(rows(in_flight), bool), in_flight["observed_ns"].copy()
    for rank, (time, life) in ends.items():
        mine = in_flight["rank"] == rank
        seen = in_flight["observed_ns"][mine].max(initial=-1)
        if (life != FINISHED or failed) and seen in (time, alive.get(rank)):
            keep |= mine & (in_flight["observed_ns"] == seen)
            observed[mine] = time if life != FINISHED else seen
    return {name: column[keep] for name, column in (in_flight | {"observed_ns": observed}).items()}


def _clock_note(clocks: Table) -> list[str]:
    """Say so when nodes' clocks could not be mapped to better than a millisecond."""
    last = _last_by(clocks, ("node",), "time_ns")
    if rows(last) < 2 or last["uncertainty_ns"].max() < 1_000_000:
        return []
    worst = int(last["uncertainty_ns"].argmax())
    node, error = last["node"][worst], last["uncertainty_ns"][worst] / 1e6
    return [f"the clock of node {node} is known to {error:.1f} ms: start times across nodes are no better"]


#: The collector's clock minus a node's, which its logs have; from so many seconds on a report speaks of it.
_WALL_CLOCK, _APART_S = "hindmost_agent_clock_offset_seconds", 1.0


def _wall_clocks(metrics: Table) -> list[str]:
    """Nodes whose wall clock is wrong or was set. The recording has the collector's time all the same."""
    code, names = codes(metrics["name"])
    if _WALL_CLOCK not in names:
        return []
    of_clocks = np.flatnonzero(code == names.index(_WALL_CLOCK))
    offsets, node = metrics["value"][of_clocks], metrics["node"][of_clocks]
    found = []
    for one in sorted(set(node.tolist())):
        mine = offsets[node == one]
        mine = mine[np.isfinite(mine)]
        if not len(mine) or np.abs(mine).max() < _APART_S:
            continue
        last = float(mine[-1])
        moved = f"was set by {abs(np.ptp(mine)):,.0f} s meanwhile" if np.ptp(mine) >= _APART_S else ""
        wrong = f"is {abs(last):,.0f} s {'behind' if last > 0 else 'ahead'}" if abs(last) >= _APART_S else ""
        how = " and ".join(filter(None, (moved, wrong)))
        found.append(f"the clock of {one} {how}: times here are the collector's, and differ from that node's logs")
    return found


#: By what a row is known again: each collector has its own clock, so times of it do not tell.
KNOWN_BY = {
    "steps": ("rank", "step", "kind", "duration_ns"),
    "collectives": ("rank", "comm", "seq", "op", "duration_ns"),
    "intervals": ("rank", "name", "duration_ns", "value"),
}


def joined(name: str, tables: Sequence[Table]) -> Table:
    """All rows of a table, in the order of the directories; those that an earlier one has left out."""
    found = tables[0]
    for table in tables[1:]:
        fresh = _fresh(name, found, table)
        found = {column: np.concatenate([found[column], table[column][fresh]]) for column in found}
    return found


def united(name: str, selects: Sequence[str]) -> str:
    """The same in SQL: the rows of a table of one job, of which there is a query for each directory."""
    if len(selects) > 1 and name in schema.LEVELS:
        return _added_up(selects)
    keys = ", ".join(KNOWN_BY.get(name, ()))
    found = list(selects)
    for number in range(1, len(selects) if keys else 1):
        known = " union all ".join(f"select {keys} from ({select})" for select in selects[:number])  # noqa: S608 - our own
        found[number] = f"select mine.* from ({selects[number]}) as mine anti join ({known}) using ({keys})"  # noqa: S608 - the same
    return " union all by name ".join(found)


def _added_up(selects: Sequence[str]) -> str:
    """Rows of a coarser level: of an interval in which an agent moved, each directory has a part.

    The last value is that of the directory in which the series goes on for longest.
    """
    until = "max(time_ns) over (partition by node, name, labels) as until"
    parts = " union all ".join(f"select *, {until} from ({select})" for select in selects)  # noqa: S608 - our own
    columns = "sum(count)::bigint as count, min(min) as min, max(max) as max, sum(sum) as sum"
    key = "job, node, name, labels, time_ns"
    return f"select {key}, {columns}, arg_max(last, until) as last from ({parts}) group by {key}"  # noqa: S608 - the same


def _fresh(name: str, known: Table, one: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    import pandas as pd  # noqa: PLC0415 - where used: SQL does without

    keys = KNOWN_BY.get(name)
    first = next(iter(one.values()))
    if keys is None or not len(first):
        return np.ones(len(first), bool)
    seen, rows = (pd.MultiIndex.from_arrays([table[key] for key in keys]) for table in (known, one))
    return np.asarray(~rows.isin(seen), bool)
