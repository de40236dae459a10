"""Whether files are of one job: each rank's own, made at one time. What contradicts that is refused, not judged."""

from __future__ import annotations

import filecmp
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge.model import Run
from hindmost_judge.types import Array

#: Clocks of a cluster's hosts are ms apart; what was recorded by so much later than the rest has ended was another run.
APART_NS = 5 * 10**9
#: Times before 2001 are not of a clock that others can be set against, but count from a trace's own begin.
EPOCH_NS = 10**18

#: By clocks that tell no less than this apart two ranks may well have done everything at the same times.
_TICK_NS = 1000
#: So many steps of two ranks may begin at the same ns by chance, whatever the clock.
_ALIKE_BY_CHANCE = 1

#: What to do about it.
REMEDY = "name the folder of one job, with one file a rank"


def refuse_copies(files: Sequence[Path]) -> None:
    """Raise where two files that hold who wrote them are byte for byte the same: another rank's is missing then."""
    alike: dict[tuple[int, bytes], list[Path]] = defaultdict(list)
    for path in files:
        with path.open("rb") as stream:
            head = stream.read(4096)
            stream.seek(-min(4096, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            alike[os.fstat(stream.fileno()).st_size, head + stream.read(4096)].append(path)
    for (size, _), found in alike.items():
        for at, path in enumerate(found[1:], 1):
            first = next((one for one in found[:at] if size and filecmp.cmp(one, path, shallow=False)), None)
            if first is not None:
                raise UsageError(f"{path.parent}: {first.name} and {path.name} are the same, byte for byte; {REMEDY}")


def refuse_twins(what: str, times: Mapping[str, Array]) -> None:
    """Raise where two ranks (by what they are called) did everything at the same ns, by clocks that tell ns apart."""
    seen: dict[bytes, str] = {}
    for name, mine in times.items():
        twin = seen.setdefault(mine.tobytes(), name)
        if twin != name and len(mine) > _ALIKE_BY_CHANCE and (mine % _TICK_NS != 0).any():
            raise UsageError(f"{what}: {twin} and {name} are one rank's recording under two names; {REMEDY}")


def refuse_other_times(what: str, times: Mapping[str, Array]) -> None:
    """Raise where what some of these (by what they are called) recorded had ended well before that of others began.

    ``times`` are ns of Unix time; others, and -1 for unmeasured, are left out.
    """
    spans = {name: span for name, one in times.items() if (span := _span([one])) is not None}
    _refuse_gap(what, spans, f": different jobs, or clocks that far apart; {REMEDY}")


def at_one_time(times: Mapping[Any, Array]) -> list[list[Any]]:
    """Groups of ranks recorded at one time, in the order of time; those without times are in no group."""
    spans = {name: span for name, one in times.items() if (span := _span([one])) is not None}
    groups: list[list[Any]] = []
    last = 0
    for name in sorted(spans, key=lambda one: spans[one]):
        if not groups or spans[name][0] - last > APART_NS:
            groups.append([])
        groups[-1].append(name)
        last = max(last, spans[name][1])
    return groups


def most_at_one_time(times: Mapping[Any, Array]) -> list[Any]:
    """The largest of these groups; of equally large ones the one whose member comes first in ``times``."""
    order = list(times)
    groups = at_one_time(times)
    return max(groups, key=lambda group: (len(group), -min(map(order.index, group))), default=[])


def refuse_other_steps(what: str, steps: Mapping[str, Array]) -> None:
    """Raise where one of several ranks (by what they are called) has no step number that any other has."""
    for name, mine in steps.items():
        others = [one for other, one in steps.items() if other != name]
        if len(mine) and others and not np.isin(mine, np.concatenate(others)).any():
            raise UsageError(f"{what}: {name} has no step in common with any other; {REMEDY}")


def refuse_other_runs(path: Path, runs: Sequence[Run]) -> None:
    """Raise where what one kind of file saw had ended well before another kind's began."""
    spans = {f"the {run.job.source}": span for run in runs if (span := _span(_times(run))) is not None}
    _refuse_gap(path, spans, "; name the folder of one job")


def refuse_other_jobs(what: str, rank_in: Mapping[str, Mapping[int, int]], times: Mapping[str, Array]) -> None:
    """Raise where two processes claim one place in a communicator, or some are in none with the others.

    ``rank_in`` maps what a process is called to its rank in each communicator, ``times`` to the ns at which it was at
    work. An NCCL communicator's number is its own; groups that no communicator joins may be stages of a pipeline, whose
    sends were not recorded, if they worked at one time.
    """
    members: dict[int, dict[int, str]] = defaultdict(dict)
    for name, inside in rank_in.items():
        for comm, rank in inside.items():
            twin = members[comm].setdefault(rank, name)
            if twin != name:
                raise UsageError(f"{what}: {twin} and {name} are both rank {rank} of communicator {comm:#x}; {REMEDY}")
    groups = _joined([set(group.values()) for group in members.values()])
    alone = next((name for group in groups for name in group if len(group) == 1), None)
    if len(groups) > 1 and alone is not None:
        raise UsageError(
            f"{what}: {alone} has no communicator in common with any other: another job's, or recorded in part;"
            f" {REMEDY}"
        )
    if len(groups) > 1:
        together = {min(group): np.concatenate([times[name] for name in sorted(group)]) for group in groups}
        refuse_other_times(what, together)


def _joined(groups: list[set[str]]) -> list[set[str]]:
    """These sets, those with a member in common made one."""
    apart: list[set[str]] = []
    for group in groups:
        touching = [one for one in apart if one & group]
        apart = [one for one in apart if not one & group]
        apart.append(group.union(*touching))
    return apart


def _refuse_gap(what: str | Path, spans: Mapping[str, tuple[int, int]], remedy: str) -> None:
    """Raise where one begins well after all before it have ended, and name the last of those."""
    order = sorted(spans, key=lambda one: spans[one])
    gaps, last = [(-1, "", "")], order[0] if order else ""
    for one in order[1:]:
        gaps.append((spans[one][0] - spans[last][1], one, last))
        last = max(last, one, key=lambda span: spans[span][1])
    gap, later, earlier = max(gaps, key=lambda found: found[0])
    if gap > APART_NS:
        begins = f"what {later} recorded begins {gap / 1e9:,.0f} s after what {earlier} did has ended"
        raise UsageError(f"{what}: {begins}{remedy}")


def _span(times: Iterable[Array]) -> tuple[int, int] | None:
    known = [part[part >= EPOCH_NS] for part in times]
    bounds = [int(bound) for part in known if len(part) for bound in (part.min(), part.max())]
    return (min(bounds), max(bounds)) if bounds else None


def _times(run: Run) -> list[Array]:
    """Host times of a run; those of GPUs' own clocks are not among them."""
    enqueued = run.collectives.get("enqueue_ns", np.empty(0, np.int64))
    return [run.steps["start_ns"], enqueued, run.in_flight["start_ns"], run.metrics["time_ns"]]
