"""Several recordings of one run, made one: each table from the source that knows it best, identities from all.

Steps that a profiler disturbed are found among those that another source marked in the same run.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.model import COLLECTIVES, PROFILED, RANKS, UNMEASURED, Job, Run, Table, has_launches, rows

from hindmost_collector.formats import inspector
from hindmost_collector.formats.nvml_csv import gpu, labels_of
from hindmost_collector.recordings import clocks, missing_ranks, one_job
from hindmost_collector.recordings.operations import with_ranks_by_time, with_steps, with_what_others_saw
from hindmost_collector.recordings.tables import concatenate, has_rows, select, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Tables of which one source's rows stand for the run; the others add up.
_ONE_SOURCE = ("steps", "collectives", "communicators", "in_flight", "operations")
_ADDED_UP = ("intervals", "metrics", "stacks", "rank_states")


def combine(path: Path, runs: Sequence[Run]) -> Run:
    """One run from several views of it, best first. Ranks are joined by their number."""
    one_job.refuse_other_runs(path, runs)
    runs = clocks.together(path, with_ranks_by_time(runs))
    runs = [_with_ranks_of_processes(run, runs) for run in runs]
    world = next((run.communicators for run in runs if has_rows(run, "communicators")), None)
    runs = [_in_the_communicators_of(world, run) for run in runs]
    chosen: dict[str, Any] = {
        name: next((run.tables()[name] for run in runs if has_rows(run, name)), None) for name in _ONE_SOURCE
    }
    chosen["steps"] = _steps(runs)
    chosen["communicators"] = _communicators(runs)
    added: dict[str, Any] = {name: concatenate(name, [run.tables()[name] for run in runs]) for name in _ADDED_UP}
    ranks = _ranks(runs)
    notes = [note for run in runs for note in run.notes]
    if chosen["collectives"] is not None and (chosen["collectives"]["duration_ns"] < 0).all():
        notes.append("No file says how long collectives took: which rank waits is not known.")
    if chosen["collectives"] is not None:
        chosen["collectives"] = with_what_others_saw(chosen["collectives"], [run.collectives for run in runs])
    run = Run(
        job=_job(path, runs, ranks),
        ranks=ranks,
        **{name: part for name, part in chosen.items() if part is not None},
        **added,
        notes=tuple(notes),
    )
    run = _with_steps_of_operations(run)
    if next((one.job.source for one in runs if has_rows(one, "collectives")), "") == inspector.NAME:
        run = with_steps(run)
    run = missing_ranks.marked(_with_gpus_by_index(_looked_at_to_the_end(_open_when_written(run))), runs)
    return replace(run, notes=_few_alike(run.notes))


#: Most notes reported that differ in numbers only, such as one of each rank's file; the rest is counted.
_ALIKE = 3


def _few_alike(notes: Sequence[str]) -> tuple[str, ...]:
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(re.sub(r"\d+", "0", note), []).append(note)
    told = []
    for same in alike.values():
        told += same[:_ALIKE] if len(same) > _ALIKE + 1 else same
        told += [f"… and {len(same) - _ALIKE:,} more notes like the last."] if len(same) > _ALIKE + 1 else []
    return tuple(told)


def _steps(runs: Sequence[Run]) -> Table:
    """The steps of the source with the most: a profiler sees a few of a log's steps, and disturbs those."""
    chosen = max((run.steps for run in runs), key=rows)
    for run in runs:
        if run.steps is not chosen and PROFILED in run.steps["kind"]:
            chosen = marked(chosen, run.steps)
    return chosen


def _job(path: Path, runs: Sequence[Run], ranks: Table) -> Job:
    nodes = {node for node in ranks["node"].tolist() if node}
    name = path.name.split(".tar")[0].removesuffix(".tgz").removesuffix(".txz").removesuffix(".zip")
    return Job(
        id=next((run.job.id for run in runs if run.job.id), name or str(path)),
        command=next((run.job.command for run in runs if run.job.command), None),
        world_size=max((run.job.world_size or 0 for run in runs), default=0) or None,
        nodes=len(nodes) or None,
        source=" + ".join(run.job.source for run in runs),
        pace_ns=next((run.job.pace_ns for run in runs if run.job.pace_ns), None),
    )


def _ranks(runs: Sequence[Run]) -> Table:
    """Every rank any source names; of each field the first that is measured."""
    known: dict[int, dict[str, Any]] = {}
    for run in runs:
        for i in range(rows(run.ranks)):
            row = {name: values[i] for name, values in run.ranks.items()}
            mine = known.setdefault(int(row["rank"]), {})
            mine.update({name: value for name, value in row.items() if value not in (-1, "") and name not in mine})
    if not known:
        return table("ranks", rank=[])
    order = sorted(known)
    missing = table("ranks", rank=order)
    return {
        name: np.array([known[rank].get(name, missing[name][i]) for i, rank in enumerate(order)], dtype=dtype)
        for name, dtype in RANKS.items()
    }


def _with_ranks_of_processes(run: Run, runs: Sequence[Run]) -> Run:
    """Stacks known by process id only get the rank that another source gives that process; others are dropped."""
    if "pid" not in run.stacks:
        return run
    known = {int(pid): int(rank) for one in runs for pid, rank in zip(one.ranks["pid"], one.ranks["rank"], strict=True)}
    ranks = np.array([known.get(pid, UNMEASURED) for pid in run.stacks["pid"].tolist()], dtype=np.int32)
    stacks = {name: values for name, values in run.stacks.items() if name != "pid"} | {"rank": ranks}
    return replace(run, stacks=select(stacks, ranks >= 0))


def _in_the_communicators_of(chosen: Table | None, run: Run) -> Run:
    """A source's operations, its process groups named as the chosen communicators with the same members."""
    if chosen is None or run.communicators is chosen:
        return run
    ours = {members: comm for comm, members in _members(chosen).items()}
    same = {comm: ours.get(members, comm) for comm, members in _members(run.communicators).items()}

    def renamed(part: Table) -> Table:
        comms, which = np.unique(part["comm"], return_inverse=True)
        names = np.array([same.get(comm, comm) for comm in comms.tolist()], dtype=np.uint64)
        return {**part, "comm": names[which]} if len(comms) else part

    return replace(
        run,
        collectives=renamed(run.collectives),
        in_flight=renamed(run.in_flight),
        communicators=renamed(run.communicators),
    )


def _communicators(runs: Sequence[Run]) -> Table:
    """Those of the best source, and those of the others that it does not know, because a member's file is missing
    for example."""
    found: list[Table] = []
    for run in runs:
        known = np.concatenate([part["comm"] for part in found]) if found else np.empty(0, np.uint64)
        found.append(select(run.communicators, ~np.isin(run.communicators["comm"], known)))
    return concatenate("communicators", found)


def _members(communicators: Table) -> dict[int, frozenset[int]]:
    members: dict[int, set[int]] = {}
    for comm, rank in zip(communicators["comm"].tolist(), communicators["rank"].tolist(), strict=True):
        members.setdefault(comm, set()).add(rank)
    return {comm: frozenset(ranks) for comm, ranks in members.items()}


def _with_steps_of_operations(run: Run) -> Run:
    """Operations belong to the step in which the host enqueued them; the model's own columns remain."""
    operations = dict(run.collectives)
    if has_launches(operations) and rows(run.steps):
        operations["step"] = operations["step"].copy()
        for rank in np.unique(operations["rank"]).tolist():
            mine = operations["rank"] == rank
            operations["step"][mine] = _step_at(run.steps, rank, operations["enqueue_ns"][mine])
    return replace(run, collectives={name: operations[name] for name in COLLECTIVES})


def _step_at(steps: Table, rank: int, times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The step a rank was in at each time; -1 outside of all."""
    mine = np.flatnonzero(steps["rank"] == rank)
    if not len(mine):
        return np.full(len(times), UNMEASURED)
    mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
    at = np.searchsorted(steps["start_ns"][mine], times, side="right") - 1
    inside = (at >= 0) & (times < (steps["start_ns"] + steps["duration_ns"])[mine][at])
    return np.where(inside, steps["step"][mine][at], UNMEASURED)


#: Steps that a job at work makes in the time that writing dumps took.
_MEANWHILE = 50
#: A log whose last step ends this many steps from the newest operation keeps none back; a file's buffer holds 200.
_NO_FURTHER = 2


def _open_when_written(run: Run) -> Run:
    """What a dump found in flight still was when its file was written, where no rank has logged a step since: its
    process lived until then, and a job at work goes on meanwhile."""
    steps = run.steps
    logged = rows(steps) and set(run.ranks["rank"].tolist()) <= set(steps["rank"].tolist())
    if not logged or not rows(run.in_flight) or "changed_ns" not in run.in_flight or steps["start_ns"].min() < 0:
        return run
    found, changed = run.in_flight["observed_ns"], run.in_flight["changed_ns"]
    usual = float(np.median(steps["duration_ns"]))
    last = int((steps["start_ns"] + steps["duration_ns"]).max())
    logged_to = np.abs(last - found) <= _NO_FURTHER * usual
    later = (found != UNMEASURED) & logged_to & (changed - found >= _MEANWHILE * usual)
    if not later.any():
        return run
    note = "Waits count up to the writing of the dumps: no rank made a step after their newest operation."
    looked = {**run.in_flight, "observed_ns": np.where(later, changed, found)}
    return replace(run, in_flight=looked, notes=(*run.notes, note))


def _looked_at_to_the_end(run: Run) -> Run:
    """What a dump found in flight still was when the recording's last sample was taken: nothing finished since."""
    if not rows(run.in_flight) or not rows(run.metrics):
        return run
    last, found = run.metrics["time_ns"].max(), run.in_flight["observed_ns"]
    later = last > np.maximum(found, run.in_flight["start_ns"])
    if not later.any():
        return run
    return replace(run, in_flight={**run.in_flight, "observed_ns": np.where(later, last, found)})


def _with_gpus_by_index(run: Run) -> Run:
    """GPU samples with an index only belong to the ranks of that number, if there are as many of both, missing ranks
    counted.

    Those of a node that is not the job's first belong to its ranks in order, if these have no gap.
    """
    gpus = {label for label in np.unique(run.metrics["labels"]).tolist() if '"gpu_uuid": "gpu' in label}
    size = rows(run.ranks)
    if not gpus or not size or run.ranks["gpu_uuid"].astype(bool).any():
        return run
    if len(gpus) not in (size, run.job.world_size, run.ranks["rank"].max() + 1):
        return replace(run, notes=(*run.notes, f"{len(gpus)} GPUs were sampled for {size} ranks: not joined."))
    numbers, first = sorted(run.ranks["rank"].tolist()), 0
    if numbers[-1] - numbers[0] == size - 1 and not any(labels_of(rank) in gpus for rank in numbers):
        first = numbers[0]
    uuid = np.array([gpu(int(rank) - first) for rank in run.ranks["rank"]])
    which = f"rank {first} + i" if first else "rank i"
    note = f"which GPU a rank uses was not recorded; assumed: {which} uses GPU i"
    return replace(run, ranks={**run.ranks, "gpu_uuid": uuid}, notes=(*run.notes, note))


#: A profiler is switched on some steps before the first that it records, to warm up: torch's schedules do so 1 to 5
#: steps before. It writes when the last ends, and the next step's GPUs wait for that.
_BEFORE, _AFTER = 5, 1


def marked(steps: Table, recorded: Table) -> Table:
    """The steps, those called ``PROFILED`` in which each rank's profiler recorded (its own steps), began or wrote."""
    kind = steps["kind"].astype(object)
    for rank in np.unique(recorded["rank"]).tolist():
        theirs, mine = recorded["rank"] == rank, np.flatnonzero(steps["rank"] == rank)
        begin = recorded["start_ns"][theirs].min()
        end = (recorded["start_ns"] + recorded["duration_ns"])[theirs].max()
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        start = steps["start_ns"][mine]
        inside = np.flatnonzero((start < end) & (start + steps["duration_ns"][mine] > begin))
        if len(inside):
            held = mine[max(inside[0] - _BEFORE, 0) : inside[-1] + _AFTER + 1]
            kind[held[steps["kind"][held] == "train"]] = PROFILED
    return {**steps, "kind": kind.astype(np.str_)}
