"""Whether a recording that is cut, repeated, scaled or renumbered still has the same ranks named.

    python -m bench.metamorphic [--corpus DIR]... [--only PATTERN]... [--forms FORM]... [--jobs N] [--out FILE]

Each recording in ``tests/fixtures/recordings`` and in each ``--corpus`` is judged as it is, and in each of these forms:

- ``until90``, ``until70``, ``from10``, ``from30``: a part of its steps. A persistent fault counts as missing where most
  of what is left has it. Of stalls, a part may have too few.
- ``onset``: without the steps before its first fault. Then a slow rank has no earlier steps to compare with.
- ``twice``: the same steps a second time after the first, without those in which it started.
- ``longer``: every time 1.4 times as long.
- ``shifted``: all clocks a day and 12,345 ns later.
- ``clock``: the clock of one rank 2 ms ahead, as clocks of hosts are after they were compared.
- ``renumbered``: ranks in reverse order.
- ``network``: each collective of ranks without GPUs takes longer for all, by a random time of 2 % of a step on average.

A form that a recording cannot have is left out, such as a part of a job that stopped. The table says for each form how
many recordings name other ranks, find other kinds of verdicts or another cause. One line a difference follows. It exits
with 1 where other ranks are named.
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, IN_FLIGHT, STACKS, Run, Table, empty, rows
from hindmost_judge.types import Array
from hindmost_judge.verdict.schema import QUIET, STOPS

from bench.golden import OURS, as_decision, recordings

Decision = dict[str, Any]

Form = Callable[[Run, list[Decision]], Run | None]

#: Columns that are moments; other columns in ns are how long something takes.
MOMENTS = frozenset({"start_ns", "time_ns", "observed_ns", "enqueue_ns", "ended_ns"})
LONGER = 1.4
SHIFT_NS, CLOCK_NS = 86_400_000_000_000 + 12_345, 2_000_000
#: A fault that has fewer steps left, or a smaller share of its steps, may vanish in a part.
FEWEST, MOST_OF_IT = 20, 0.5
#: Samples of a node are of a time around the steps.
AROUND_NS = 2e9
NETWORK = 0.02


def steps_of(run: Run) -> Array:
    """[S] the numbers of its training steps in order; rounds of its collectives where it marks none."""
    if rows(run.steps):
        return np.unique(run.steps["step"][run.steps["step"] >= 0])
    known = run.collectives["step"][run.collectives["step"] >= 0]
    return np.unique(known if len(known) else run.collectives["seq"])


def part(begin: float, end: float) -> Form:
    """The form with the steps between two shares of their number."""

    def form(run: Run, plain: list[Decision]) -> Run | None:
        if not rows(run.collectives) and not rows(run.steps):
            return None
        if end < 1 and any(one["kind"] in STOPS for one in plain):
            return None
        if end < 1 and (rows(run.in_flight) or run.job.exit_code not in (None, 0)):
            return None
        return between(run, begin, end)

    return form


def between(run: Run, begin: float, end: float) -> Run:
    """The part of a run between two shares of its steps, or of its time where it numbers none."""
    marks = steps_of(run)
    first, last = marks[int(begin * len(marks))], marks[min(int(end * len(marks)), len(marks)) - 1]
    table = run.collectives
    numbered = rows(run.steps) > 0
    if numbered:
        marked = (run.steps["step"] >= first) & (run.steps["step"] <= last)
        starts, took = run.steps["start_ns"][marked], np.maximum(run.steps["duration_ns"][marked], 0)
        since, until = (starts.min(), (starts + took).max()) if marked.any() else (0, 0)
    else:
        start = table["start_ns"]
        since, until = (start.min() + share * np.ptp(start) for share in (begin, end))
    calls = _in_steps(table, first, last) if (table["step"] >= 0).mean() > 0.5 else _in_time(run, since, until)
    tables = {
        "steps": {name: column[marked] for name, column in run.steps.items()} if numbered else run.steps,
        "collectives": {name: column[calls] for name, column in table.items()},
        "intervals": _during(run.intervals, "start_ns", since, until),
        "metrics": _during(run.metrics, "time_ns", since - AROUND_NS, until + AROUND_NS),
    }
    job = run.job
    if end < 1:
        tables |= {"in_flight": empty(IN_FLIGHT), "stacks": empty(STACKS)}
        states = dict(run.rank_states)
        for name in ("time_ns", "ended_ns"):
            states[name] = np.minimum(states[name], int(until))
        tables["rank_states"] = states
        job = replace(job, ended_ns=int(until) if job.ended_ns is not None else None)
    return replace(run, job=job, **tables)


def _in_steps(table: Table, first: int, last: int) -> Array:
    return np.asarray((table["step"] >= first) & (table["step"] <= last))


def _in_time(run: Run, since: float, until: float) -> Array:
    """[N] whether a call belongs to those that any rank began in this time; of each communicator, by number."""
    table = run.collectives
    start, chosen = table["start_ns"], np.zeros(rows(table), bool)
    inside = (start >= since) & (start <= until)
    for comm in np.unique(table["comm"]):
        of_comm = table["comm"] == comm
        numbers = table["seq"][of_comm & inside]
        if len(numbers):
            chosen |= of_comm & (table["seq"] >= numbers.min()) & (table["seq"] <= numbers.max())
    return chosen


def _during(table: Table, name: str, since: float, until: float) -> Table:
    inside = (table[name] >= since) & (table[name] <= until)
    return {column: values[inside] for column, values in table.items()}


def from_onset(run: Run, plain: list[Decision]) -> Run | None:
    """The form without the steps before the first fault, where that lasts for most of the rest."""
    faults = [one for one in plain if one["ranks"] and one["kind"] == "straggler"]
    if len(faults) != 1 or not faults[0]["since"] or faults[0]["until"] is not None or not rows(run.steps):
        return None
    marks = steps_of(run)
    at = int(np.searchsorted(marks, faults[0]["since"])) + 1
    return between(run, at / len(marks), 1) if at > FEWEST and len(marks) - at > 2 * FEWEST else None


def twice(run: Run, plain: list[Decision]) -> Run | None:
    """The form with every step a second time, but the first tenth, in which it started."""
    if any(one["kind"] in STOPS for one in plain) or rows(run.in_flight) or rows(run.operations):
        return None
    if not (rows(run.steps) or rows(run.collectives)) or run.job.exit_code not in (None, 0):
        return None
    second = _whole_steps(run, between(run, 0.1, 1.0))
    name = "steps" if rows(run.steps) else "collectives"
    whole, again = (getattr(one, name)["start_ns"] for one in (run, second))
    span = int(whole.max() - again.min() + np.ptp(whole) / max(len(steps_of(run)) - 1, 1))
    tables = {name: _again(name, table, second.tables()[name], span, run) for name, table in run.tables().items()}
    job = run.job
    return replace(run, job=replace(job, ended_ns=job.ended_ns + span if job.ended_ns is not None else None), **tables)


def _whole_steps(run: Run, second: Run) -> Run:
    """The last steps of a run as ``second`` has them, with all of their collectives.

    Those of a GPU run after their marks. Where they have no numbers, each step has as many of each communicator.
    """
    table, steps = run.collectives, len(steps_of(run))
    if not rows(run.steps) or (table["step"] >= 0).any():
        return second
    last, chosen = len(steps_of(second)), np.zeros(rows(table), bool)
    for comm in np.unique(table["comm"]):
        of_comm = table["comm"] == comm
        numbers = np.unique(table["seq"][of_comm])
        each = round(len(numbers) / steps)
        chosen |= of_comm & np.isin(table["seq"], numbers[len(numbers) - each * last :])
    return replace(second, collectives={name: column[chosen] for name, column in table.items()})


def _again(name: str, table: Table, again: Table, span: int, run: Run) -> Table:
    """The rows of a table, and after them those of ``again`` so much later."""
    if name in ("ranks", "communicators", "stacks", "operations", "in_flight") or not rows(table):
        return table
    later = {
        column: np.where(values >= 0, values + span, values) if column in MOMENTS else values
        for column, values in again.items()
    }
    if name == "rank_states":
        return later
    if "step" in table and (table["step"] >= 0).any():
        marks, first = steps_of(run), again["step"][again["step"] >= 0].min(initial=np.iinfo(np.int64).max)
        later["step"] = np.where(again["step"] >= 0, again["step"] + int(marks[-1] - first) + 1, again["step"])
    if name == "collectives":
        later["seq"] = again["seq"].copy()
        for comm in np.unique(again["comm"]):
            of_comm = again["comm"] == comm
            later["seq"][of_comm] += table["seq"][table["comm"] == comm].max() - again["seq"][of_comm].min() + 1
    if name == "metrics":
        later["value"] = again["value"] + _grown(table, again)
    return {column: np.concatenate([values, later[column]]) for column, values in table.items()}


def _grown(table: Table, again: Table) -> Array:
    """[N] by how much the counter of each sample of ``again`` must grow to go on where it ended."""

    def samples(one: Table) -> list[tuple[str, int, float]]:
        series = [" ".join(key) for key in zip(one["node"], one["name"], one["labels"], strict=True)]
        return list(zip(series, one["time_ns"].tolist(), one["value"].tolist(), strict=True))

    ends = {series: value for series, _, value in sorted(samples(table))}
    begins = {series: value for series, _, value in sorted(samples(again), reverse=True)}
    counters = np.char.endswith(again["name"].astype(str), "_total")
    grown = np.array([ends[series] - begins[series] for series, _, _ in samples(again)])
    return np.where(counters, grown, 0.0)


def longer(run: Run, _: list[Decision]) -> Run:
    """The form in which everything takes longer by one factor."""
    starts = [one["start_ns"][one["start_ns"] >= 0] for one in (run.steps, run.collectives) if rows(one)]
    base = int(min((one.min() for one in starts if len(one)), default=0))

    def moments(values: Array) -> Array:
        return np.where(values >= 0, (values - base) * LONGER + base, values).astype(values.dtype)

    def table(one: Table) -> Table:
        scaled = {
            name: moments(values)
            if name in MOMENTS
            else np.where(values > 0, values * LONGER, values).astype(values.dtype)
            if name.endswith("_ns")
            else values
            for name, values in one.items()
        }
        if "value" in one and rows(one):
            seconds = np.char.find(one["name"].astype(str), "seconds") >= 0
            scaled["value"] = np.where(seconds, one["value"] * LONGER, one["value"])
        return scaled

    job, times = run.job, {}
    for name in ("started_ns", "ended_ns"):
        value = getattr(job, name)
        times[name] = None if value is None else int((value - base) * LONGER + base)
    for name in ("pace_ns", "skipped_ns"):
        value = getattr(job, name)
        times[name] = None if value is None else value * LONGER
    return replace(run, job=replace(job, **times), **{name: table(one) for name, one in run.tables().items()})


def shifted(run: Run, _: list[Decision]) -> Run:
    """The form of which every clock shows a later time."""
    job = run.job
    times = {name: value + SHIFT_NS for name in ("started_ns", "ended_ns") if (value := getattr(job, name)) is not None}
    tables = {name: _moved(table, np.ones(rows(table), bool), SHIFT_NS) for name, table in run.tables().items()}
    return replace(run, job=replace(job, **times), **tables)


def one_clock(run: Run, _: list[Decision]) -> Run:
    """The form in which the clock of the last rank is ahead."""
    last = run.ranks["rank"].max() if rows(run.ranks) else -1
    names = ("steps", "collectives", "intervals", "in_flight")
    return replace(run, **{name: _moved(one := getattr(run, name), one["rank"] == last, CLOCK_NS) for name in names})


def _moved(table: Table, moved: Array, by: int) -> Table:
    return {
        name: np.where(moved & (values >= 0), values + by, values) if name in MOMENTS else values
        for name, values in table.items()
    }


def renumbered(run: Run, _: list[Decision]) -> Run | None:
    """The form with its ranks in reverse order."""
    if run.unrecorded is not None or run.witnesses is not None or rows(run.operations) or not rows(run.ranks):
        return None
    members = set(run.communicators["rank"].tolist())
    if (run.collectives["peer"] >= 0).any() and not members:
        return None  # peers are numbered in the job
    most = int(run.ranks["rank"].max())
    tables = {}
    for name, table in run.tables().items():
        if "rank" in table:
            tables[name] = table | {"rank": np.asarray(most - table["rank"], table["rank"].dtype)}
        if name == "metrics" and rows(table):
            of_rank = partial(re.sub, r'("rank": ?")(\d+)"', lambda at: f'{at[1]}{most - int(at[2])}"')
            tables[name] = table | {"labels": np.array([of_rank(one) for one in table["labels"].tolist()])}
    return replace(run, **tables)


def slow_network(run: Run, _: list[Decision]) -> Run | None:
    """The form in which each collective takes all its members a random time longer, and all else waits meanwhile."""
    table = run.collectives
    if rows(run.steps) or not rows(table) or (table["flags"] & GPU_TIME).any() or (table["peer"] >= 0).any():
        return None
    ends = table["start_ns"] + np.maximum(table["duration_ns"], 0)
    keys = np.stack([table["comm"].astype(np.int64), table["seq"]], axis=1)
    _, first, call = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    latest = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(latest, call.ravel(), table["start_ns"])
    order = np.argsort(latest)
    step = np.ptp(table["start_ns"]) / max(len(steps_of(run)), 1)
    more = np.random.default_rng(1).exponential(NETWORK * step, len(first))
    at, total = latest[order], np.append(0.0, np.cumsum(more[order]))

    def later(times: Array) -> Array:
        return np.where(times >= 0, times + total[np.searchsorted(at, times, side="left")], times).astype(np.int64)

    tables = {
        name: {key: later(values) if key in MOMENTS and name != "metrics" else values for key, values in one.items()}
        for name, one in run.tables().items()
        if name in ("intervals", "in_flight", "rank_states")
    }
    start = later(table["start_ns"])
    took = np.where(table["duration_ns"] >= 0, later(ends) - start, table["duration_ns"])
    job = run.job
    ended = int(later(np.array([job.ended_ns]))[0]) if job.ended_ns is not None else None
    return replace(
        run, job=replace(job, ended_ns=ended), collectives=table | {"start_ns": start, "duration_ns": took}, **tables
    )


FORMS: dict[str, Form] = {
    "until90": part(0.0, 0.9),
    "until70": part(0.0, 0.7),
    "from10": part(0.1, 1.0),
    "from30": part(0.3, 1.0),
    "onset": from_onset,
    "twice": twice,
    "longer": longer,
    "shifted": shifted,
    "clock": one_clock,
    "renumbered": renumbered,
    "network": slow_network,
}


def expected(form: str, plain: list[Decision], run: Run, most: int) -> tuple[list[Decision], list[Decision]]:
    """The verdicts that a form must have, and those that it may have."""
    if form == "renumbered":
        plain = [one | {"ranks": sorted(most - rank for rank in one["ranks"])} for one in plain]
    if not form.startswith(("until", "from")):
        return plain, plain
    marks = steps_of(run)
    if not len(marks):
        return [], plain
    first, last = int(marks[0]), int(marks[-1]) + 1
    must = []
    for one in plain:
        since = first if one["since"] is None else max(one["since"], first)
        until = last if one["until"] is None else min(one["until"], last)
        left = until - since
        if left >= FEWEST and left >= MOST_OF_IT * (last - first) and one["kind"] != "intermittent":
            must.append(one)
    return must, plain


def flip(must: list[Decision], may: list[Decision], now: list[Decision]) -> str:
    """What differs: ``ranks`` that are named, ``kinds`` of verdicts, or a ``cause``; empty for nothing."""

    def ranks(decisions: list[Decision]) -> set[int]:
        return {rank for one in decisions for rank in one["ranks"]}

    def kinds(decisions: list[Decision], *more: str) -> set[Any]:
        of_use = (one for one in decisions if one["kind"] not in QUIET)
        return {(one["kind"], *one["ranks"], *(one.get(name) for name in more)) for one in of_use}

    if not ranks(must) <= ranks(now) or not ranks(now) <= ranks(may):
        return "ranks"
    if not kinds(must) <= kinds(now) or not kinds(now) <= kinds(may):
        return "kinds"
    if not kinds(must, "cause") <= kinds(now, "cause") or not kinds(now, "cause") <= kinds(may, "cause"):
        return "cause"
    return ""


def compared(item: tuple[str, Path], forms: list[str]) -> list[dict[str, Any]]:
    """The flips of one recording: form, what differs, and the decisions before and after."""
    name, path = item
    run = load(path)
    most = int(run.ranks["rank"].max()) if rows(run.ranks) else 0
    plain = [as_decision(one) for one in judge(run).verdicts]
    flips = []
    for form in forms:
        made = FORMS[form](run, plain)
        if made is None:
            continue
        now = [as_decision(one) for one in judge(made).verdicts]
        must, may = expected(form, plain, made, most)
        flips.append({"name": name, "form": form, "flip": flip(must, may, now), "before": plain, "after": now})
    return flips


def shown(decisions: list[Decision]) -> str:
    """The decisions in one line."""
    words = []
    for one in decisions:
        since, until = one["since"], one["until"]
        steps = "" if since is None else f" {since}-{'' if until is None else until}"
        cost = "" if one["cost_ms"] is None else f" {one['cost_ms']:.2f} ms"
        words.append(f"{one['kind']}{one['ranks'] or ''} {one['cause'] or ''}{steps}{cost}")
    return "; ".join(words)


def main() -> int:
    """Judge all forms, print the table and each difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, action="append", default=[], help="a further folder of recordings")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="names such as 'mpi-*'")
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="store every comparison as JSON lines")
    args = parser.parse_args()
    paths = recordings([OURS, *args.corpus])
    chosen = [one for one in paths.items() if not args.only or any(fnmatch(one[0], each) for each in args.only)]
    if not chosen:
        parser.error(f"no recording matches {args.only}")
    comparisons: list[dict[str, Any]] = []
    with Pool(args.jobs) as pool:
        for of_one in pool.imap(partial(compared, forms=args.forms), chosen):
            comparisons += of_one
    if args.out:
        args.out.write_text("".join(json.dumps(one) + "\n" for one in comparisons))
    print(table(comparisons, args.forms))
    for one in comparisons:
        if one["flip"]:
            print(f"{one['name']} {one['form']}: {one['flip']}\n    {shown(one['before'])}\n    {shown(one['after'])}")
    return int(any(one["flip"] == "ranks" for one in comparisons))


def table(comparisons: list[dict[str, Any]], forms: list[str]) -> str:
    """How many recordings have each form, and how many of them differ in what."""
    lines = ["| form | recordings | other ranks | other kinds | other cause |", "| --- | --- | --- | --- | --- |"]
    for form in [*forms, "all"]:
        flips = Counter(one["flip"] for one in comparisons if form in (one["form"], "all"))
        counts = (flips.total(), *(flips[what] for what in ("ranks", "kinds", "cause")))
        lines.append(f"| {form} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
