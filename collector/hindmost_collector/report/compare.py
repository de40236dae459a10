"""Comparison of two runs: what takes longer or shorter, how surely, which verdicts came or went; as data and as text.

And of several with different ranks: how far more ranks make the job faster, and where the rest of the time goes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge import efficiency, wall_clock
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import average, median, standard_error, time_blocks
from hindmost_judge.verdict.schema import QUIET, STOPS, identity, unsure
from hindmost_judge.verdict.wording import UNMEASURED, duration
from rich.table import Table
from rich.text import Text

from hindmost_collector.report import columns, cpu_change, sections
from hindmost_collector.report.columns import number, ratio, title_of
from hindmost_collector.report.cpu_change import SMALL, SURE, error_of_mean
from hindmost_collector.report.text import console, labelled, paragraph, parts, table_of, written
from hindmost_collector.report.verdict_lines import doing, of_verdict, rendered, stalled

if TYPE_CHECKING:
    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats
    from rich.console import RenderableType

SCHEMA, SCALING = "hindmost.compare/1", "hindmost.scaling/1"


def compare(a: Run, b: Run, settings: Settings = DEFAULT) -> dict[str, Any]:
    """``hindmost.compare/1``: both jobs, the measures, the settings that changed, and verdicts ``gone``, ``new``,
    ``kept`` (as each has it), ``only_a`` and ``only_b``.
    """
    judged = [judge(run, settings) for run in (a, b)]
    reports = [report.to_dict() for report in judged]
    series = [_series(report.overview) for report in judged]
    step = max(float(median(found["step"])) if "step" in found else 0.0 for found in series)
    names = dict.fromkeys([*series[0], *series[1]])
    paces = [_paces(run, report.overview) for run, report in zip((a, b), judged, strict=True)]
    return {
        "schema": SCHEMA,
        "a": reports[0]["job"],
        "b": reports[1]["job"],
        "measures": [measured(name, series[0].get(name), series[1].get(name), step) for name in names],
        "rates": [_rate(name, *(found.get(name) for found in paces)) for name in ("steps_per_s", "work_per_s")],
        "by_cpu_wait": cpu_change.find((a, b), judged),
        "settings": settings_that_differ(a, b),
        "verdicts": _verdicts(reports[0], reports[1], settings.min_steps),
        "work_per_step": [_work(report.overview) for report in judged],
        "notes": _notes(*(report["job"] for report in reports)),
    }


def _paces(run: Run, seen: Overview | None) -> dict[str, tuple[float, float]]:
    """Name to what the report has a second, and the standard error of that as a share, from the run's time in blocks.

    Runs with other batches or other numbers of ranks are comparable by their work.
    """
    done = None if seen is None else wall_clock.throughput(run, seen)
    if seen is None or done is None:
        return {}
    known = np.isfinite(seen.period) & (seen.period > 0)
    period, found = seen.period[known], {}
    amounts = {
        "steps_per_s": (done.steps_per_s, np.ones(len(seen.steps))),
        "work_per_s": (done.work_per_s, np.zeros(len(seen.steps)) if seen.work is None else seen.work),
    }
    for name, (pace, amount) in amounts.items():
        counted, cuts = amount[known], time_blocks(len(period))
        blocks = np.array([np.nansum(counted[cut]) / period[cut].sum() for cut in cuts])
        if pace is not None:
            found[name] = pace, error_of_mean(blocks) / blocks.mean() if blocks.any() else math.nan
    return found


def _rate(name: str, a: tuple[float, float] | None, b: tuple[float, float] | None) -> dict[str, Any]:
    """Steps, or samples or tokens, a second of the whole job in both runs; the change is a share."""
    (before, error_a), (after, error_b) = (one or (None, math.nan) for one in (a, b))
    change = after / before - 1 if before is not None and after is not None else None
    return _both(name, "", before, after, change, (1 + (change or 0.0)) * math.hypot(error_a, error_b), SMALL)


def _both(
    name: str, unit: str, a: float | None, b: float | None, change: float | None, error: float, least: float
) -> dict[str, Any]:
    """What both runs have, and within what the change is with 95 % confidence, by its standard ``error``.

    ``changed``: whether it surely is one of ``least``, by an amount that matters. ``None`` is not known.
    """
    known = change is not None and math.isfinite(error)
    low, high = (change - SURE * error, change + SURE * error) if change is not None and known else (None, None)
    values = {"a": a, "b": b, "change": change, "low": low, "high": high}
    changed = abs(change) > max(SURE * error, least) if change is not None and known else None
    return {"name": name, **{f"{key}{unit}": value for key, value in values.items()}, "changed": changed}


def settings_that_differ(a: Run, b: Run) -> list[dict[str, str | None]]:
    """Name and value in both of what the jobs, or their recording, were started with; ``None``: not set.

    Of runs that did not record their environment it is not known, and none of it is listed. Frameworks and versions of
    libraries are listed where both runs recorded them.
    """
    runs = (a, b)
    first, second = ({**dict(run.job.settings), **_thresholds(run)} for run in runs)
    versions = tuple(map(_versions, runs))
    names = [*first, *second] if all(run.job.settings for run in runs) else []
    listed = [(name, first.get(name), second.get(name)) for name in dict.fromkeys(names)]
    listed += [(name, versions[0][name], versions[1][name]) for name in versions[0] if name in versions[1]]
    return [{"name": name, "a": left, "b": right} for name, left, right in listed if left != right]


def _thresholds(run: Run) -> dict[str, str]:
    return {f"--set {name}": f"{value:g}" for name, value in run.job.thresholds}


def _versions(run: Run) -> dict[str, str]:
    """Library to the version that its ranks recorded, to several where ranks differ; and the frameworks of these."""
    frameworks = sorted({str(name) for name in run.ranks["framework"].tolist()} - {""})
    versions: dict[str, list[str]] = {}
    for mark in np.unique(run.intervals["name"]).tolist():
        kind, library, version = [*str(mark).split(" ", 2), "", ""][:3]
        if kind == "version" and version:
            versions.setdefault(library, []).append(version)
    named = {"framework": frameworks} if frameworks else {}
    return {name: ", ".join(several) for name, several in {**named, **versions}.items()}


_CONDITION = re.compile(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Condition:
    """What makes a comparison fail: a measure or a rate that changed by more (or, ``below``, by less) than a share."""

    text: str
    name: str
    below: bool
    share: float

    def holds(self, found: Mapping[str, Any]) -> bool:
        """Whether a comparison surely changed so. Raises UsageError where it has no such measure in both runs."""
        changes = {one["name"]: one["change"] for one in found["rates"]}
        changes |= {one["name"]: _relative(one["a_ms"], one["change_ms"]) for one in found["measures"]}
        sure = {one["name"]: one["changed"] for one in (*found["rates"], *found["measures"])}
        known = [name for name, change in changes.items() if change is not None and sure[name] is not None]
        if self.name not in known:
            raise UsageError(
                f"--fail-if {self.text}: not measured in both runs; measured are {', '.join(sorted(known)) or 'none'}"
            )
        change = changes[self.name]
        return bool(sure[self.name] and (change < self.share if self.below else change > self.share))


def _relative(a: float | None, change: float | None) -> float | None:
    """A change as a share of what A has; of nothing any increase is infinite. ``None``: not measured in both runs."""
    if not a or change is None:
        return change and math.copysign(math.inf, change)
    return change / a


def condition(text: str) -> Condition:
    """``step>3%``, ``work_per_s<-5%`` as a condition. Raises UsageError."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(f"--fail-if {text}: expected MEASURE>N% or MEASURE<-N%, like step>3% or work_per_s<-5%")
    return Condition(text.strip(), found[1], found[2] == "<", float(found[3]) / 100)


def scaling(runs: Sequence[Run], settings: Settings = DEFAULT) -> dict[str, Any]:
    """``hindmost.scaling/1``: a row a run, by its ranks, against the one with the fewest.

    Speed-up is by samples or tokens a second where all runs counted them, else by steps a second: then a step has to be
    the same work in all. Efficiency is speed-up over the ratio of ranks.
    """
    labels = [*ascii_uppercase, *map(str, range(len(ascii_uppercase), len(runs)))]
    rows_ = [_row(run, settings) | {"label": label} for label, run in zip(labels, runs, strict=False)]
    by = "work_per_s" if all(row["work_per_s"] for row in rows_) else "steps_per_s"
    rows_.sort(key=lambda row: row["ranks"] or 0)
    first = rows_[0]
    for row in rows_:
        known = row[by] and first[by] and row["ranks"] and first["ranks"]
        row["speed_up"] = row[by] / first[by] if known else None
        row["efficiency"] = row["speed_up"] / (row["ranks"] / first["ranks"]) if known else None
    return {"schema": SCALING, "by": by, "runs": rows_}


def _row(run: Run, settings: Settings) -> dict[str, Any]:
    """A run of a scaling study: its paces, and where the step of the typical rank goes, as shares of it."""
    report = judge(run, settings)
    seen, job = report.overview, report.job
    paces = {name: pace for name, (pace, _) in _paces(run, seen).items()}
    step_ms = None if seen is None or np.isnan(seen.step) else seen.step / 1e6
    shares = {name: None if seen is None else _share_of_step(seen, name) for name in _SHARES}
    ideal = report.what_if.ideal_step_ms
    lanes = efficiency.of(seen, ideal and ideal * 1e6) if seen is not None else []
    parallel = next((lane for lane in lanes if lane.load_balance is not None), None)
    return {
        "id": job.id,
        "title": columns.title({"job": report.to_dict()["job"]}),
        "ranks": job.world_size,
        "nodes": job.nodes,
        "step_ms": step_ms or None,
        "steps_per_s": paces.get("steps_per_s"),
        "work_per_s": paces.get("work_per_s"),
        "shares": shares,
        "load_balance": parallel.load_balance if parallel else None,
        "communication": parallel.communication if parallel else None,
        "verdict": report.verdicts[0].kind,
        "head": rendered(report.to_dict())[0].head,
    }


#: Planes of an overview that are no durations of one rank.
_NO_DURATIONS = frozenset({"self", "caused", "last", "delay"})


def _series(seen: Overview | None) -> dict[str, Floats]:
    """Name to [S] ns a step of the typical rank; empty without recognised steps."""
    if seen is None:
        return {}
    blocks = {name: block for name, block in {**seen.planes, **seen.no_lane}.items() if name not in _NO_DURATIONS}
    found = {name: _of_typical_rank(block) for name, block in blocks.items() if not np.isnan(block).all()}
    if found and not seen.overlapped:  # of bare steps, all of the step is self time
        found["self"] = _of_typical_rank(seen.planes["self"])
    # What acts in a part of the steps only leaves medians as they are: means of the run's blocks of time show it.
    means = np.array([average(seen.period[cut]) for cut in time_blocks(len(seen.period))])
    means += average(seen.period) - average(means)  # blocks differ in length: their mean is that of all steps
    found = {"step": seen.period, "mean_step": means, **found}
    return {name: values for name, values in found.items() if not np.isnan(values).all()}


def _of_typical_rank(block: Floats) -> Floats:
    """[S] the median of the ranks in each step, at the level of reports: the median of what each rank takes."""
    found = median(block, axis=0)
    return np.asarray(found + (median(median(block, axis=1)) - median(found)))


def measured(name: str, a: Floats | None, b: Floats | None, step: float) -> dict[str, Any]:
    """One duration of the typical rank in both runs, ms a step, and its change by the scatter of each run's steps."""
    level, error_of = (average, error_of_mean) if name == "mean_step" else (median, standard_error)
    left, right = (None if values is None else float(level(values)) / 1e6 for values in (a, b))
    change = right - left if left is not None and right is not None else None
    error = math.nan if a is None or b is None else math.hypot(error_of(a), error_of(b)) / 1e6
    return _both(name, "_ms", left, right, change, error, SMALL * step / 1e6)


def _verdicts(a: Mapping[str, Any], b: Mapping[str, Any], least: int) -> dict[str, list[Any]]:
    """Which trouble is in one run only; alike is the same kind and the same ranks.

    It is ``gone`` or ``new`` where the other run shows that it has none: one that could not be judged, of fewer steps
    than the ``least``, shows nothing. There it is in ``only_a`` or ``only_b``; what stops a run shows itself.
    """
    before, after = ({identity(one): one for one in run["verdicts"] if one["kind"] not in QUIET} for run in (a, b))
    in_both = [{"a": one, "b": after[key]} for key, one in before.items() if key in after]
    found: dict[str, list[Any]] = {"gone": [], "new": [], "kept": in_both, "only_a": [], "only_b": []}
    for own, other, run, known, unknown in ((before, after, b, "gone", "only_a"), (after, before, a, "new", "only_b")):
        for key, one in own.items():
            if key not in other:
                found[known if _shows(run, one, least) else unknown].append(one)
    return found


def _shows(run: Mapping[str, Any], lacks: Mapping[str, Any], least: int) -> bool:
    """Whether a run that ``lacks`` a verdict shows that the trouble is not there."""
    if lacks["kind"] in STOPS:
        return True
    found = run["verdicts"]
    return bool(found) and not any(map(unsure, found)) and (run["job"].get("steps") or 0) >= least


def _notes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """In what else the two differ, so that a change need not be the one that was meant."""
    compared = {"world_size": "number of ranks", "nodes": "number of nodes"}
    unlike = [
        f"{what} differs: {a[name]} and {b[name]}"
        for name, what in compared.items()
        if a.get(name) != b.get(name) and None not in (a.get(name), b.get(name))
    ]
    if a.get("command") and b.get("command") and (words := _unlike(a["command"].split(), b["command"].split())):
        unlike.append(f"the command differs: {words}")
    return unlike


def _share_of_step(seen: Overview, plane: str) -> float | None:
    """What the typical rank spends in a part of the mean step, as a share of it; ``None`` where that is not known."""
    block = seen.planes.get(plane)
    if block is None or np.isnan(block).all() or np.isnan(seen.step) or (plane == "self" and seen.overlapped):
        return None
    return float(np.nanmedian(np.nanmean(block, axis=1))) / seen.step


def _work(seen: Overview | None) -> float | None:
    """Samples or tokens of all ranks in the mean step; ``None`` where they were not counted."""
    return None if seen is None or seen.work is None else float(np.nanmean(seen.work)) or None


#: Steps whose work differs by less are alike.
_OTHER_WORK = 0.01


def _unlike(a: list[str], b: list[str]) -> str:
    """The words in which two command lines differ, each option with its value.

    Among other options an option may stand anywhere. Past a program, a file or a ``:`` it may mean something else.
    """
    left: Counter[tuple[int, str]] = Counter()
    right: Counter[tuple[int, str]] = Counter()
    found_a, found_b, passed = _arguments(a), _arguments(b), 0
    of_a, of_b = _without_values(found_a, found_b), _without_values(found_b, found_a)
    for tag, i, j, k, m in SequenceMatcher(None, of_a, of_b, autojunk=False).get_opcodes():
        if tag == "equal":
            passed += sum(not one.startswith("-") for one in of_a[i:j])
            continue
        for side, words in ((left, of_a[i:j]), (right, of_b[k:m])):
            program = tag != "replace" and words and not words[0].startswith("-")  # one that starts the rest
            side.update((passed, one) for one in ([" ".join(words)] if program else words))
    alike = Counter({key: count for key, count in (left & right).items() if key[1].startswith("-")})
    only_a, only_b = (Counter(one for _, one in (side - alike).elements()) for side in (left, right))
    parts = {"only A has": only_a - only_b, "only B has": only_b - only_a, "in another place:": only_a & only_b}
    return "; ".join(
        f"{what} {', '.join(f'`{one}`' for one in shown.elements())}" for what, shown in parts.items() if shown
    )


def _without_values(arguments: list[str], other: list[str]) -> list[str]:
    """An option has no value where the ``other`` command has it, or the word after it, alone."""
    kept = ([one] if one in other or {*other}.isdisjoint(one.split()) else one.split() for one in arguments)
    return [*chain.from_iterable(kept)]


def _arguments(words: list[str]) -> list[str]:
    """The arguments of a command: an option takes the word after it."""
    found: list[str] = []
    for word in words:
        option = found[-1] if found else ""
        if option.startswith("-") and not {" ", "="} & {*option} and option != "--" and word[0] != "-" and word != ":":
            found[-1] = f"{option} {word}"
        else:
            found.append(word)
    return found


_WORSE, _BETTER = "red", "green"
UNSET = "not set"
#: Measures below this share of the step, in both runs, that did not change: not shown.
_TINY = 0.02


def render(found: Mapping[str, Any], width: int = 100, color: bool = False) -> str:
    """``hindmost.compare/1`` as text: what changed first, then every measure, then the verdicts."""
    return written(console(width, color), _lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    for label in "AB":
        yield _titled(label, columns.title({"job": found[label.lower()]}))
    pace = next((one for one in found["rates"] if one["name"] == "work_per_s" and one["change"] is not None), None)
    left, right = found["work_per_step"]
    unlike = pace is not None and left and right and abs(right / left - 1) >= _OTHER_WORK
    yield labelled("RESULT", *_result(found, _pace(pace) if pace and unlike else _of_steps(found)))
    for at, line in enumerate(cpu_change.evidence(found["by_cpu_wait"])):
        yield labelled("" if at else "WHY", line)
    if unlike:
        yield labelled("", f"a step has {left:,.0f} items in A and {right:,.0f} in B")
    elif pace:
        yield labelled("PACE", *_pace(pace))
    yield from (labelled(label, sentence, style) for label, style, sentence in _changes(found))
    yield from (labelled("SET", _setting(one)) for one in found.get("settings") or ())
    yield from (labelled("NOTE", note, "dim") for note in found["notes"])
    if shown := [measure for measure in found["measures"] if _matters(measure, found["measures"])]:
        yield _table(shown)
        yield paragraph("ms per step of the typical rank, medians; mean step: the mean", "dim")
        scatter = "from the scatter of each run's own steps; nodes and days can differ by more"
        yield paragraph(f"interval: 95 %, {scatter}", "dim")


def _titled(label: str, title: str) -> RenderableType:
    return labelled(label, title.removeprefix("hindmost · "), "bold")


def _setting(one: Mapping[str, Any]) -> str:
    """``OMP_NUM_THREADS: 1 in A, 4 in B``."""
    values = (f"{UNSET if one[key] is None else one[key]} in {key.upper()}" for key in ("a", "b"))
    return f"{one['name']}: {', '.join(values)}"


def _result(found: Mapping[str, Any], pace: tuple[str, str]) -> tuple[str, str]:
    """What happened to the job, then to its pace, and its style."""
    steps, style = pace
    steps += f", {by}" if (by := cpu_change.blame(found["by_cpu_wait"])) else ""
    ends = {label: end for label in "AB" if (end := _end(found, label))}
    if not ends:
        return steps, style
    failed = [label for label, (_, by_user) in ends.items() if not by_user]
    style = f"bold {_WORSE if 'B' in failed else _BETTER if failed else 'yellow'}"
    return f"{'; '.join(f'{label} {said}' for label, (said, _) in ends.items())}; until then {steps}", style


def _end(found: Mapping[str, Any], label: str) -> tuple[str, bool] | None:
    """How one of the two runs ended before its work was done, and whether its user ended it."""
    job = found[label.lower()]
    if stop := _stop(found["verdicts"], label):
        return f"did not finish: {stop}", False
    if job.get("interrupted_by"):
        return f"was interrupted by {job['interrupted_by']}", True
    return (f"{'failed' if job.get('exit_code') else 'ended'}: {job['ended']}", False) if job.get("ended") else None


def _pace(rate: Mapping[str, Any]) -> tuple[str, str]:
    """Items a second of both, which runs with other batches or ranks are to be compared by."""
    before, after = (sections.written(rate[name], "number") for name in "ab")
    both = f"{before} to {after} items/s"
    if rate["changed"] is None:
        return f"{both}; too few steps to call it a change", ""
    if not rate["changed"]:
        return f"{both}: no change beyond noise", ""
    low, high = _share(rate["low"]), _share(rate["high"])
    more, interval = rate["change"] > 0, f" ({low} to {high})" * (low != high)
    by = f"B does {ratio(abs(rate['change']))} {'more' if more else 'fewer'} items/s"
    return f"{by}: {before} to {after}{interval}", _BETTER if more else _WORSE


def _share(value: float) -> str:
    return ("+" if value > 0 else "") + ratio(value)


#: Blocks of the longest bar.
_BAR = 20
_SCALING = (
    ("label", "run", "text"),
    ("ranks", "ranks", "count"),
    ("nodes", "nodes", "count"),
    ("step_ms", "mean step", "ms"),
    ("steps_per_s", "steps/s", "number"),
    ("work_per_s", "items/s", "number"),
    ("speed_up", "speed-up", "number"),
    ("efficiency", "efficiency", "ratio"),
    ("load_balance", "load balance", "ratio"),
    ("communication", "communi- cation", "ratio"),
)
_SHARES = ("self", "self_runqueue", "input", "wait", "transfer")


def render_scaling(found: Mapping[str, Any], width: int = 100, color: bool = False) -> str:
    """``hindmost.scaling/1`` as text: a row a run, efficiency as bars, then where the typical rank's step goes."""
    return written(console(width, color), _lines_of_scaling(found, width))


def _lines_of_scaling(found: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    runs = found["runs"]
    yield from (_titled(run["label"], run["title"]) for run in runs)
    best = max((one for one in runs if one["efficiency"]), key=lambda one: one["ranks"], default=None)
    if best is None or best is runs[0]:
        why = "no comparison: the runs need recognised steps and different numbers of ranks"
        yield labelled("RESULT", why, "bold yellow")
    else:
        by = "items/s" if found["by"] == "work_per_s" else "steps/s (a step must be the same work in all)"
        text = f"{best['ranks']:,} ranks are {best['speed_up']:.2f} times as fast as {runs[0]['ranks']:,}"
        yield labelled("RESULT", f"{text} (efficiency {ratio(best['efficiency'])}), by {by}", "bold")
    shown = [one for one in _SCALING if any(run[one[0]] is not None for run in runs)]
    rows = ([sections.written(run[key], unit) for key, _, unit in shown] for run in runs)
    yield from parts([title for _, title, _ in shown], rows, ("run",), width)
    for run in runs:
        if run["efficiency"] is not None:
            bar = "█" * round(min(run["efficiency"], 1.0) * _BAR)
            ranks = f"{run['label']}  {columns.count(run['ranks'], 'rank'):>13}"
            yield Text(f"{ranks}  {bar:<{_BAR}}  {ratio(run['efficiency'])}")
    names = [name for name in _SHARES if any(run["shares"][name] is not None for run in runs)]
    rows = (
        [run["label"], sections.written(run["ranks"], "count"), *map(ratio, map(run["shares"].get, names)), run["head"]]
        for run in runs
    )
    titles = ["run", "ranks", *map(title_of, names), "first verdict"]
    yield from parts(titles, rows, ("run", "first verdict"), width)
    yield paragraph("share of the mean step, of the typical rank; a fault of one rank: report that run", "dim")


def _stop(verdicts: Mapping[str, Any], label: str) -> str | None:
    """That one of the two runs stopped for good, as its verdict says it."""
    own = verdicts["new" if label == "B" else "gone"]
    both = [one[label.lower()] for one in verdicts["kept"]]
    return next((of_verdict(one).sentence for one in [*own, *both] if one["kind"] in STOPS), None)


def _of_steps(found: Mapping[str, Any]) -> tuple[str, str]:
    """What happened to the step, and its style."""
    measures = {measure["name"]: measure for measure in found["measures"]}
    step = measures.get("step")
    if step is None or step["change_ms"] is None:
        return "no comparison: one run has no recognised steps", "bold yellow"
    both = f"{duration(step['a_ms'])} to {duration(step['b_ms'])} per step"
    if step["changed"] is None:
        return f"{both}; too few steps to call it a change", "bold yellow"
    mean = measures["mean_step"]
    if not step["changed"]:
        if not mean["changed"]:
            return f"no change beyond noise: {both}", "bold green"
        by, both, style = _by(mean)
        return f"B is {by} on the mean: {both}; some steps changed, the median did not", style
    low, high = sorted((abs(step["low_ms"]), abs(step["high_ms"])))
    by, both, style = _by(step)
    if mean["changed"] is False:  # the job as a whole takes as long
        return f"no sure change of the mean step, {_by(mean)[1]}; the median is {by}: {both}", "bold yellow"
    return f"B is {by}: {both} (by {number(low)} to {number(high)} ms)", style


def _by(step: Mapping[str, Any]) -> tuple[str, str, str]:
    """By how much steps changed, from what to what, and its style."""
    slower = step["change_ms"] > 0
    by = f"{'slower' if slower else 'faster'} by {ratio(abs(step['change_ms']) / step['a_ms'])}"
    both = f"{duration(step['a_ms'])} to {duration(step['b_ms'])} per step"
    return by, both, f"bold {_WORSE if slower else _BETTER}"


def _changes(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    verdicts = found["verdicts"]
    new = [("NEW", _WORSE, _sentence(one)) for one in verdicts["new"] if one["kind"] not in STOPS]  # RESULT has these
    gone = [
        ("GONE", _BETTER, _sentence(one))
        for one in verdicts["gone"]
        if not any(_covers(other, one) for other in verdicts["new"])
    ]
    in_both = [("STILL", "", f"{_sentence(one['b'])}{_in_a(one)}") for one in verdicts["kept"]]
    both = (("only_a", "ONLY A", "B"), ("only_b", "ONLY B", "A"))
    only = [
        (label, "yellow", f"{_sentence(one)}; {other} could not be judged, and may have it too")
        for name, label, other in both
        for one in verdicts.get(name) or ()
    ]
    return [*_of_stalls(found), *new, *gone, *in_both, *only]


#: Stalls of the same ranks that cost up to so many times as much in the other run are the same trouble.
_ALIKE_STALLS = 2.0


def _of_stalls(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Stops of a job that went on after them; still there where the same ranks stop for about the same part of it."""
    stalls = [found[run].get("stalls") or () for run in "ab"]
    who_a, who_b = ({rank for one in of_run for rank in one["ranks"]} for of_run in stalls)
    seconds = [sum(one["until_s"] - one["since_s"] for one in of_run) for of_run in stalls]
    least, most = sorted(lost / (found[run].get("duration_s") or 1.0) for lost, run in zip(seconds, "ab", strict=True))
    if all(stalls) and who_a == who_b and most <= _ALIKE_STALLS * least:
        return [("STILL", "", stalled(found["b"]))]
    both = (("NEW", _WORSE, "b"), ("GONE", _BETTER, "a"))
    return [(label, style, stalled(found[run])) for label, style, run in both if found[run].get("stalls")]


def _covers(new: Mapping[str, Any], gone: Mapping[str, Any]) -> bool:
    """Whether the trouble goes on, of fewer ranks: input of all of them, now of one."""
    fewer = not gone["ranks"] or {*new["ranks"]} <= {*gone["ranks"]}
    return bool(gone["cause"]) and gone["cause"] == new["cause"] and fewer


def _sentence(one: Mapping[str, Any]) -> str:
    shown = of_verdict(one)
    return f"{shown.sentence}; {shown.short_cost}" if shown.short_cost else shown.sentence


def _in_a(one: Mapping[str, Any]) -> str:
    """What differs in A of a verdict that both runs have."""
    cost = one["a"].get("cost_ms_per_step")
    differs = [f"{duration(cost)} per step"] if cost is not None else []
    if one["a"].get("cause") != one["b"].get("cause"):
        differs.append(doing(one["a"]))
    return f"; in A {', '.join(differs)}" if differs else ""


def _matters(one: Mapping[str, Any], measures: list[Mapping[str, Any]]) -> bool:
    step = max((measure[key] or 0.0) for measure in measures if measure["name"] == "step" for key in ("a_ms", "b_ms"))
    return bool(one["changed"]) or max(one["a_ms"] or 0.0, one["b_ms"] or 0.0) > _TINY * step


def _table(measures: list[Mapping[str, Any]]) -> Table:
    rows, styles = [], []
    for one in measures:
        interval = UNMEASURED if one["low_ms"] is None else f"{_signed(one['low_ms'])} to {_signed(one['high_ms'])}"
        values = number(one["a_ms"]), number(one["b_ms"]), _signed(one["change_ms"])
        rows.append([title_of(one["name"]), *values, interval])
        styles.append("" if not one["changed"] else _WORSE if one["change_ms"] > 0 else _BETTER)
    return table_of(["", "A", "B", "change", "interval"], rows, ("",), styles)


def _signed(value: float | None) -> str:
    return UNMEASURED if value is None else ("+" if value > 0 else "") + number(value)
