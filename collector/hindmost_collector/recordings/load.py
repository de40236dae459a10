"""Recordings of any format: :func:`load` finds the format of files, :func:`combine` makes several recordings one run.

Each table is from the source that measured it best, identities are from all. Steps that a profiler disturbed are found
among those that another source marked in the same run.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge.model import COLLECTIVES, PROFILED, RANKS, UNMEASURED, Job, Run, Table, rows
from hindmost_judge.timeline.phases import with_steps_of_launches
from hindmost_judge.verdict.missing_ranks import with_missing

from hindmost_collector.formats import inspector, registry, steps_jsonl, straggler_analysis
from hindmost_collector.formats.nvml_csv import gpu, labels_of
from hindmost_collector.recordings import clocks, missing_ranks, one_job
from hindmost_collector.recordings.operations import with_ranks_by_time, with_steps, with_what_others_saw
from hindmost_collector.recordings.tables import concatenate, has_rows, select, table
from hindmost_collector.recordings.trace_files import UNREAD, Sample, is_archive, read_undamaged, sample, unpacked, walk
from hindmost_collector.store import meta
from hindmost_collector.store.clickhouse.client import is_url
from hindmost_collector.store.parquet import journal
from hindmost_collector.store.parquet.run_directory import read_run, read_together

#: The common name of run directories.
RUN_DIRECTORIES = "hindmost runs"
#: A collector writes every few seconds while a job goes on: after so long without a file there is none any more. Sooner
#: where none holds the lock, of which not every file system tells other hosts.
_ABANDONED_S, UNLOCKED_S = 600.0, 30.0


def load(path: Path | str) -> Run:
    """A recorded run: a run directory, a folder of foreign files, one such file, an archive of them, or the URL of a
    ClickHouse database.

    Files of several formats in one folder are taken as the same run seen several ways and combined. Raises
    :class:`UsageError` naming what was found where nothing is understood.
    """
    if is_url(path):
        from hindmost_collector.store.clickhouse.reading import ClickHouseRecording  # noqa: PLC0415 - where used

        return ClickHouseRecording(str(path)).run()
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; give a run directory or a folder of traces")
    with unpacked(path) as folder:
        return _load(path, folder)


def _load(path: Path, folder: Path) -> Run:
    own = find_run_directory(folder)
    if own is not None:
        return load_run_directory(own)
    if (together := _of_several_hosts(folder)) is not None:
        return together
    if (runs := several_runs(folder)) is not None:
        raise UsageError(runs)
    files = walk(folder)
    formats = registry()
    found: dict[str, list[Path]] = {form.NAME: [] for form in formats}
    unrecognised: list[Sample] = []
    for file in files:
        head = sample(file)
        owner = next((form.NAME for form in formats if form.recognises(head)), None)
        if owner is None:
            unrecognised.append(head)
        else:
            found[owner].append(file)
    if len(unrecognised) == len(files):
        archives = [one for one in files if is_archive(one)]
        if len(archives) == 1:
            return load(archives[0])
        raise UsageError(
            _several(path, "archives", archives) or _of_a_run(path) or _nothing_understood(path, unrecognised)
        )
    met = [form for form in formats if found[form.NAME]]
    views, damage = read_undamaged(met, lambda form: form.load(found[form.NAME]))
    run = combine(path, views)
    odd = _left_out(unrecognised, [file for of_format in found.values() for file in of_format])
    return replace(run, notes=(*run.notes, *damage, *odd))


def find_run_directory(folder: Path) -> Path | None:
    """The run directory that ``folder`` is, or holds as its only folder (as an archive does); None where it is none."""
    if not folder.is_dir():
        return None
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    candidates = [folder, *inside] if len(inside) == 1 and inside[0].is_dir() else [folder]
    return next((path for path in candidates if is_run(path)), None)


def load_run_directory(folder: Path, now: Callable[[], float] = time.time) -> Run:
    run = with_missing(read_run(folder))
    if not rows(run.ranks) and journal.is_locked(folder):
        raise UsageError(_nothing_yet(folder))
    written = max((path.stat().st_mtime for path in folder.glob("segments/*")), default=0.0)
    patience_s = UNLOCKED_S if journal.is_locked(folder) is False else _ABANDONED_S
    return replace(run, job=replace(run.job, abandoned=run.job.ended_ns is None and now() - written > patience_s))


def load_run_directories(folders: Sequence[Path]) -> Run:
    """What the run directories of one job recorded, each written by another collector."""
    return with_missing(read_together(folders))


def _of_several_hosts(folder: Path) -> Run | None:
    """The job of which each run directory in this folder has other ranks; ``None`` where they are not such parts."""
    parts = [one for one in _inside(folder) if one.is_dir() and is_run(one)]
    if len(parts) < 2 or len({meta.facts(one).get("job_id") or one.name for one in parts}) > 1:
        return None
    ranks = [rank for one in parts for rank in load_run_directory(one).ranks["rank"].tolist()]
    return load_run_directories(parts) if len(ranks) == len(set(ranks)) else None


def is_run(folder: Path) -> bool:
    """Whether this folder itself is a run directory."""
    if (folder / "segments").is_dir():
        return True
    return meta.is_ours(folder)


def _left_out(unrecognised: Sequence[Sample], understood: Sequence[Path]) -> list[str]:
    """A note on files that are named as those that were understood, and hold something else or nothing."""
    shapes = {_shape(file.name) for file in understood}
    odd = sorted(head.path.name for head in unrecognised if _shape(head.path.name) in shapes)
    if not odd:
        return []
    which = f"{', '.join(odd[:4])}{f' and {len(odd) - 4} more' if len(odd) > 4 else ''}"
    return [f"{which}: left out; not the format of the other files of that name."]


def _shape(name: str) -> str:
    """A file's name but for its numbers."""
    return re.sub(r"\d+", "0", name)


def _nothing_understood(path: Path, unrecognised: list[Sample]) -> str:
    for one in unrecognised:
        if (lacking := steps_jsonl.lacks(one)) is not None:
            return f"{path if path.name == one.path.name else path / one.path.name}: {lacking}"
    understood = ", ".join([RUN_DIRECTORIES, *(form.NAME for form in registry())])
    if not unrecognised and not path.is_dir() and not is_archive(path):
        return f"{path}: neither a file nor a folder; hindmost reads {understood}"
    if not unrecognised and path.is_dir() and not any(path.iterdir()):
        return f"{path}: an empty folder; give a run directory (hindmost-runs/JOB), or a folder of traces"
    if not unrecognised:
        return f"{path}: no file in it that could be read; hindmost reads {understood}"
    if all(head.size == 0 for head in unrecognised) or [head.path for head in unrecognised] == [path]:
        are = "not a recording" if any(head.size for head in unrecognised) else "empty"
        return f"{path}: {are}; give a run directory (hindmost-runs/JOB) or traces; `hindmost run` makes one"
    # What is in them is not quoted: it may be a password.
    endings = Counter("".join(head.path.suffixes[-1:]) or "no suffix" for head in unrecognised).most_common(3)
    kinds = ", ".join(f"{count} of {ending}" for ending, count in endings)
    return f"{path}: found {kinds} ({unrecognised[0].path.name}); hindmost reads {understood}"


def _of_a_run(path: Path) -> str | None:
    """What to give instead of a part of a run directory, or of one without rows yet; ``None`` where it is neither."""
    if path.is_dir() and journal.is_locked(path):
        return _nothing_yet(path)
    run = next((parent for parent in path.absolute().parents[:3] if is_run(parent)), None)
    return None if run is None else f"{path}: a part of a run directory; give the run directory: {run}"


def _nothing_yet(folder: Path) -> str:
    return f"{folder}: its job runs, and nothing is stored yet; wait a minute, or use the address of its page"


def recordings_in(path: Path | str) -> list[Path | str]:
    """What to load, one after the other: the path itself, but each trace of a folder of the straggler study's."""
    if not isinstance(path, Path) or not path.is_dir():
        return [path]
    found = [one for one in _inside(path) if one.is_file() and straggler_analysis.recognises(sample(one))]
    return [*found] if len(found) > 1 else [path]


def several_runs(folder: Path) -> str | None:
    """That a folder holds run directories, and how to name one; ``None`` where it holds none.

    `hindmost run` puts them into a folder of their own."""
    inside = [*_inside(folder), *_inside(folder / "hindmost-runs")]
    return _several(folder, "runs", [path for path in inside if path.is_dir() and is_run(path)])


def _several(folder: Path, what: str, found: list[Path]) -> str | None:
    if not found:
        return None
    newest = max(found, key=lambda one: one.stat().st_mtime_ns)
    return f"{folder}: holds {what} ({len(found)}), each a recording; name one: `hindmost report {newest}`"


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(one for one in folder.iterdir() if not one.name.startswith(".") and one.name not in UNREAD)


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
    run = with_steps_of_launches(replace(run, collectives={name: run.collectives[name] for name in COLLECTIVES}))
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
    shortened = []
    for same in alike.values():
        shortened += same[:_ALIKE] if len(same) > _ALIKE + 1 else same
        shortened += [f"… and {len(same) - _ALIKE:,} more notes like the last."] if len(same) > _ALIKE + 1 else []
    return tuple(shortened)


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
            around = mine[max(inside[0] - _BEFORE, 0) : inside[-1] + _AFTER + 1]
            kind[around[steps["kind"][around] == "train"]] = PROFILED
    return {**steps, "kind": kind.astype(np.str_)}
