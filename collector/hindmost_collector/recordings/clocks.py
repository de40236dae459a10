"""Files of one job whose hosts' clocks are far apart: proven to be one job's, and put on one clock.

If a rank was recorded hours before the others, it is of another run, or its host's clock is that far off. Three
proofs show that it is the same job. NCCL's own numbers of communicators join the ranks, whatever else was recorded
at the same time by the same clocks. Or the ranks' steps keep one rhythm, which no two runs do for long. Or all had
stopped at one place of their collectives. Without any of these the files are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hindmost_judge.model import Run, rows
from hindmost_judge.verdict.wording import names

from hindmost_collector.formats import inspector, profiler_csv
from hindmost_collector.recordings import one_job
from hindmost_collector.recordings.tables import bounds

if TYPE_CHECKING:
    import pandas as pd
    from hindmost_judge.types import Array

#: Each rank's operations by name, and when they began, by its own clock.
Events: TypeAlias = "dict[int, pd.Series[Any]]"

#: Sources that number communicators by NCCL's own numbers; they refuse unconnected ranks themselves.
_NUMBERED = (inspector.NAME, profiler_csv.NAME)
#: Common steps that a rhythm takes, and standard errors by which their lengths must go together.
_STEPS, _SURE = 40, 5.0
#: Clocks part by 100 ppm at most each; what pairs of ranks' steps are apart beyond that stays within a part of a step.
_DRIFT, _APART = 300e-6, 0.25
#: Operations that ranks which stopped together are apart at most, and so many must have come before.
_PLACES, _BEFORE = 2, 20


def together(path: Path, runs: Sequence[Run]) -> list[Run]:
    """The same views of a run with all ranks' times on one clock; raises where they may be of different jobs."""
    apart = [run for run in runs if _are_apart(run)]
    if not apart:
        return list(runs)
    of_views = [events for run in runs if len(events := _events(run)) > 1] if _of_one_job(runs) else []
    for events in of_views:
        offsets = _offsets(events, _usual(events))
        moved = [_moved(run, offsets) for run in runs]
        if not any(_are_apart(run) for run in moved):
            return [replace(moved[0], notes=(*moved[0].notes, _note(offsets))), *moved[1:]]
    for run in apart:
        if run.job.source not in _NUMBERED:
            named = {f"rank {rank}": times for rank, times in _host_times(run).items()}
            one_job.refuse_other_times(f"{path}: {run.job.source}", named)
    return list(runs)


def _of_one_job(runs: Sequence[Run]) -> bool:
    """Whether anything proves it."""
    ranks = {int(rank) for run in runs for rank in _host_times(run)}
    numbered = (run for run in runs if run.job.source in _NUMBERED)
    return (
        any(ranks <= set(run.ranks["rank"].tolist()) for run in numbered)
        or any(_in_step(run) for run in runs)
        or any(_stopped_together(run) for run in runs)
    )


def _host_times(run: Run) -> dict[int, Array]:
    """Rank to when it did anything first and last in each table, by its host's clock."""
    tables = ((run.steps, "start_ns"), (run.collectives, "enqueue_ns"), (run.in_flight, "start_ns"))
    found: dict[int, list[int]] = {}
    for table, column in tables:
        known = np.flatnonzero(table.get(column, np.empty(0, np.int64)) >= one_job.EPOCH_NS)
        for rank, *both in zip(*bounds(table["rank"][known], table[column][known]), strict=True) if len(known) else ():
            found.setdefault(int(rank), []).extend(both)
    return {rank: np.array(times) for rank, times in sorted(found.items())}


def _are_apart(run: Run) -> bool:
    return len(one_job.at_one_time(_host_times(run))) > 1


def _events(run: Run) -> Events:
    """What ranks did that has a number all of them know: steps, else operations."""
    import pandas as pd  # noqa: PLC0415 - where used: a recording by one clock does without

    by_steps = rows(run.steps) > 0
    table, column = (run.steps, "start_ns") if by_steps else (run.collectives, "enqueue_ns")
    if column not in table:
        return {}
    found = {}
    for rank in np.unique(table["rank"]).tolist():
        mine = np.flatnonzero((table["rank"] == rank) & (table[column] >= 0))
        keys: list[Any] = [table[name][mine] for name in (("step",) if by_steps else ("comm", "op", "seq"))]
        index: Any = pd.Index(keys[0]) if by_steps else pd.MultiIndex.from_arrays(keys)
        series = pd.Series(table[column][mine], index=index)
        found[rank] = series[~series.index.duplicated()].sort_values()
    return found


def _usual(events: Events) -> pd.Series[Any]:
    """When things began for the typical of most ranks, whose clocks are together; of as many, the lowest rank's."""
    import pandas as pd  # noqa: PLC0415 - where used: a recording by one clock does without

    most = one_job.most_at_one_time({rank: one.to_numpy() for rank, one in events.items()})
    if not most:
        return pd.Series(dtype=np.int64)
    first = events[most[0]].iloc[0]
    joined = pd.concat([events[rank] - first for rank in most])
    usual: pd.Series[Any] = joined.groupby(level=list(range(joined.index.nlevels))).median().astype(np.int64)
    usual += first
    return usual


def _offsets(events: Events, usual: pd.Series[Any]) -> dict[int, int]:
    """Rank to the ns by which its clock is ahead, where that is further than clocks are anyway."""
    found = {}
    for rank, mine in events.items():
        ahead = (mine - usual.reindex(mine.index)).dropna()
        if len(ahead) and abs(offset := int(ahead.median())) > one_job.APART_NS:
            found[rank] = offset
    return found


def _in_step(run: Run) -> bool:
    """Whether the steps of ranks with other clocks begin in the rhythm of most."""
    events = _events(run) if rows(run.steps) else {}
    usual = _usual(events)
    others = [events[rank] for rank in _offsets(events, usual)]
    return len(others) > 0 and all(_one_rhythm(mine, usual) for mine in others)


def _one_rhythm(mine: pd.Series[Any], usual: pd.Series[Any]) -> bool:
    """Whether these steps are as long as those, one by one, and as long in all but for the drift of a clock."""
    import pandas as pd  # noqa: PLC0415 - where used: a recording by one clock does without

    common = mine.index.intersection(usual.index).sort_values()
    if len(common) < _STEPS:
        return False
    whole = [one[common].to_numpy() for one in (mine, usual)]
    ours, theirs = ((one - one[0]).astype(np.float64) for one in whole)
    lengths = pd.DataFrame({"ours": np.diff(ours), "theirs": np.diff(theirs)})
    alike = lengths.rank().corr()["ours"]["theirs"]
    if not alike * np.sqrt(len(lengths) - 1) >= _SURE:  # NaN where all are of one length
        return False
    ahead = ours - theirs
    half = len(common) // 2
    since = np.median(theirs[half:]) - np.median(theirs[:half])
    drift = np.clip((np.median(ahead[half:]) - np.median(ahead[:half])) / max(since, 1.0), -_DRIFT, _DRIFT)
    low, high = np.percentile(ahead - drift * theirs, (5, 95))
    return bool(high - low <= _APART * float(lengths["theirs"].median()))


def _stopped_together(run: Run) -> bool:
    """Whether ranks that left something open had come to one place in every communicator that they share."""
    import pandas as pd  # noqa: PLC0415 - where used: a recording by one clock does without

    left = run.in_flight["kind"] == "collective" if rows(run.in_flight) else np.zeros(0, bool)
    if not left.any():
        return False
    opened, ran = (
        pd.DataFrame({name: table[name][mask] for name in ("comm", "rank", "seq")}).groupby(["comm", "rank"])["seq"]
        for table, mask in ((run.in_flight, left), (run.collectives, run.collectives["peer"] < 0))
    )
    place = opened.min().combine_first(ran.max() + 1)  # what is enqueued behind what is open had not begun
    met = place.groupby("comm").agg(["min", "max", "size"])
    met = met[met["size"] > 1]
    return bool(len(met) and (met["max"] - met["min"] <= _PLACES).all() and (met["min"] >= _BEFORE).all())


#: Columns of each table that are times of a rank's host; when a dump was written, all dumps say together.
_OF_HOSTS = {
    "steps": ("start_ns",),
    "collectives": ("start_ns", "enqueue_ns"),
    "intervals": ("start_ns",),
    "in_flight": ("start_ns",),
}


def _moved(run: Run, offsets: dict[int, int]) -> Run:
    tables: dict[str, Any] = {name: dict(run.tables()[name]) for name in _OF_HOSTS}
    for name, columns in _OF_HOSTS.items():
        rank = tables[name]["rank"]
        ahead = np.zeros(len(rank), np.int64)
        for one, offset in offsets.items():
            ahead[rank == one] = offset
        for column in set(columns) & tables[name].keys():
            times = tables[name][column]
            tables[name][column] = np.where(times >= 0, times - ahead, times)
    return replace(run, **tables)


def _note(offsets: dict[int, int]) -> str:
    notes = [
        f"{names([rank])}'s clock is {abs(ns) / 1e9:,.0f} s {'ahead of' if ns > 0 else 'behind'} the others'"
        for rank, ns in sorted(offsets.items())[:4]
    ]
    more = f"; and so for {len(offsets) - 4} more" if len(offsets) > 4 else ""
    return f"{'; '.join(notes)}{more}: corrected by their common operations."
