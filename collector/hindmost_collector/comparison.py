"""Comparison of two runs: what takes longer or shorter, how surely, and which verdicts came or went.

And of several with different ranks: how far more ranks make the job faster, and where the rest of the time goes.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge import efficiency
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import average, median, standard_error, time_blocks

from hindmost_collector.live.incremental import QUIET
from hindmost_collector.live.verdicts import identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats

SCHEMA, SCALING = "hindmost.compare/1", "hindmost.scaling/1"
#: Two standard errors: the interval that holds the true change in 19 of 20 cases.
_SURE = 1.96
#: A change below this share of the step is negligible, however sure it is.
_SMALL = 0.005


@dataclass(frozen=True)
class Measure:
    """One duration of the typical rank in both runs, ms a step; ``None`` is unmeasured.

    ``low`` and ``high`` bound the change with 95 % confidence, from the scatter of each run's steps over time;
    ``changed`` says that the interval leaves zero out, by an amount that matters.
    """

    name: str
    a_ms: float | None
    b_ms: float | None
    change_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    changed: bool | None = None


def compare(a: Run, b: Run, settings: Settings = DEFAULT) -> dict[str, Any]:
    """``hindmost.compare/1``: both jobs, the measures, the settings that changed, and verdicts ``gone``, ``new`` and
    ``kept`` (as each has it).
    """
    judged = [judge(run, settings) for run in (a, b)]
    reports = [report.to_dict() for report in judged]
    series = [_series(report.overview) for report in judged]
    step = max(_typical(found.get("step")) for found in series)
    names = dict.fromkeys([*series[0], *series[1]])
    return {
        "schema": SCHEMA,
        "a": reports[0]["job"],
        "b": reports[1]["job"],
        "measures": [asdict(measured(name, series[0].get(name), series[1].get(name), step)) for name in names],
        "rates": _rates(judged[0].overview, judged[1].overview),
        "settings": settings_that_differ(a, b),
        "verdicts": _verdicts(*(report["verdicts"] for report in reports)),
        "notes": [
            *_notes(*(report["job"] for report in reports)),
            *_work_differs(judged[0].overview, judged[1].overview),
        ],
    }


@dataclass(frozen=True)
class Rate:
    """Steps, or samples or tokens, a second of the whole job, in both runs, as :class:`Measure`; changes are shares."""

    name: str
    a: float | None
    b: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    changed: bool | None = None


def _rates(a: Overview | None, b: Overview | None) -> list[dict[str, Any]]:
    """Both paces; runs with other batches or other numbers of ranks are comparable by their work."""
    found = [{} if seen is None else _paces(seen) for seen in (a, b)]
    return [asdict(_rate(name, found[0].get(name), found[1].get(name))) for name in ("steps_per_s", "work_per_s")]


def _paces(seen: Overview) -> dict[str, Floats]:
    """Name to [B] a second, in blocks of the run's time."""
    amounts = {"steps_per_s": np.ones(len(seen.steps))} | ({} if seen.work is None else {"work_per_s": seen.work})
    known = np.isfinite(seen.period) & (seen.period > 0)
    found = {}
    for name, amount in amounts.items():
        period, done = seen.period[known], amount[known]
        cuts = time_blocks(len(period))
        if len(period) and np.nansum(done) > 0:
            found[name] = np.array([np.nansum(done[cut]) / period[cut].sum() * 1e9 for cut in cuts])
    return found


def _rate(name: str, a: Floats | None, b: Floats | None) -> Rate:
    left, right = (None if values is None else float(values.mean()) for values in (a, b))
    if a is None or b is None or left is None or right is None:
        return Rate(name, left, right)
    change = right / left - 1
    error = _SURE * (1 + change) * math.hypot(_error_of_mean(a) / left, _error_of_mean(b) / right)
    if not math.isfinite(error):
        return Rate(name, left, right, change)
    return Rate(name, left, right, change, change - error, change + error, abs(change) > max(error, _SMALL))


def settings_that_differ(a: Run, b: Run) -> list[dict[str, str | None]]:
    """Name and value in both of what the jobs, or their recording, were started with; ``None``: not set.

    Of runs that did not record their environment it is not known, and none of it is listed.
    """
    told = [{**dict(run.job.settings), **_recorded_with(run)} for run in (a, b)]
    known = [name for name in dict.fromkeys([*told[0], *told[1]]) if all(run.job.settings for run in (a, b))]
    return [
        {"name": name, "a": told[0].get(name), "b": told[1].get(name)}
        for name in known
        if told[0].get(name) != told[1].get(name)
    ]


def _recorded_with(run: Run) -> dict[str, str]:
    """The thresholds that were set, and the frameworks that ranks are of."""
    frameworks = sorted({str(name) for name in run.ranks["framework"].tolist()} - {""})
    thresholds = {f"--set {name}": f"{value:g}" for name, value in run.job.thresholds}
    return {"framework": ", ".join(frameworks), **thresholds}


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
        changes = {one["name"]: (one["change"], one["changed"]) for one in found["rates"]}
        changes |= {
            one["name"]: (
                one["change_ms"] / one["a_ms"] if one["a_ms"] and one["change_ms"] is not None else None,
                one["changed"],
            )
            for one in found["measures"]
        }
        change, sure = changes.get(self.name, (None, None))
        if change is None or sure is None:
            known = sorted(name for name, (value, told) in changes.items() if value is not None and told is not None)
            raise UsageError(
                f"--fail-if {self.text}: not measured in both runs; measured are {', '.join(known) or 'none'}"
            )
        return bool(sure) and bool(change < self.share if self.below else change > self.share)


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
    rows_ = [_row(run, settings) for run in runs]
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
    paces = {} if seen is None else {name: float(values.mean()) for name, values in _paces(seen).items()}
    step_ms = None if seen is None or np.isnan(seen.step) else seen.step / 1e6
    parts = {"self": "own", "wait": "wait", "transfer": "transfer", "input": "input"}
    shares = {name: None if seen is None else _share(seen, plane) for name, plane in parts.items()}
    ideal = report.what_if.ideal_step_ms
    lanes = efficiency.of(seen, ideal and ideal * 1e6) if seen is not None else []
    parallel = next((lane for lane in lanes if lane.load_balance is not None), None)
    return {
        "id": job.id,
        "ranks": job.world_size,
        "nodes": job.nodes,
        "step_ms": step_ms or None,
        "steps_per_s": paces.get("steps_per_s"),
        "work_per_s": paces.get("work_per_s"),
        "shares": shares,
        "load_balance": parallel.load_balance if parallel else None,
        "communication": parallel.communication if parallel else None,
        "verdict": report.verdicts[0].kind,
    }


#: Planes of an overview that are no durations of one rank.
_NO_DURATIONS = frozenset({"own", "caused", "last", "delay"})


def _series(seen: Overview | None) -> dict[str, Floats]:
    """Name to [S] ns a step of the typical rank; empty without recognised steps."""
    if seen is None:
        return {}
    blocks = {name: block for name, block in {**seen.planes, **seen.no_lane}.items() if name not in _NO_DURATIONS}
    found = {name: median(block, axis=0) for name, block in blocks.items() if not np.isnan(block).all()}
    if found and not seen.overlapped:  # of bare steps, all of the step is self time
        found["self"] = median(seen.planes["own"], axis=0)
    found = {"step": seen.period, "mean_step": _block_means(seen.period), **found}
    return {name: values for name, values in found.items() if not np.isnan(values).all()}


def _block_means(series: Floats) -> Floats:
    """[B] means of the run's blocks of time: what acts in a part of the steps only leaves medians as they are."""
    return np.array([average(series[cut]) for cut in time_blocks(len(series))])


def _typical(values: Floats | None) -> float:
    return float(median(values)) if values is not None else 0.0


def measured(name: str, a: Floats | None, b: Floats | None, step: float) -> Measure:
    """A measure of both, in ms, with the interval of its change."""
    level, error_of = (average, _error_of_mean) if name == "mean_step" else (median, standard_error)
    left, right = (None if values is None else float(level(values)) / 1e6 for values in (a, b))
    if a is None or b is None or left is None or right is None:
        return Measure(name, left, right)
    change = right - left
    error = _SURE * math.hypot(error_of(a), error_of(b)) / 1e6
    if not math.isfinite(error):
        return Measure(name, left, right, change)
    changed = abs(change) > max(error, _SMALL * step / 1e6)
    return Measure(name, left, right, change, change - error, change + error, changed)


def _error_of_mean(blocks: Floats) -> float:
    """Standard error of the mean of block means."""
    known = blocks[~np.isnan(blocks)]
    return float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else float("inf")


def _verdicts(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Which trouble is in one run only; alike is the same kind and the same ranks."""
    before, after = ({identity(one): one for one in said if one["kind"] not in QUIET} for said in (a, b))
    return {
        "gone": [one for key, one in before.items() if key not in after],
        "new": [one for key, one in after.items() if key not in before],
        "kept": [{"a": one, "b": after[key]} for key, one in before.items() if key in after],
    }


def _notes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """In what else the two differ, so that a change need not be the one that was meant."""
    told = {"world_size": "number of ranks", "nodes": "number of nodes"}
    unlike = [
        f"{what} differs: {a[name]} and {b[name]}"
        for name, what in told.items()
        if a.get(name) != b.get(name) and None not in (a.get(name), b.get(name))
    ]
    if a.get("command") and b.get("command") and a["command"] != b["command"]:
        unlike.append(f"the command differs: {_unlike(a['command'].split(), b['command'].split())}")
    failed = [(label, job) for label, job in (("A", a), ("B", b)) if job.get("ended") and not job.get("interrupted_by")]
    how = {label: "failed" if job.get("exit_code") else "ended" for label, job in failed}
    return unlike + [f"{label} {how[label]}: {job['ended']}" for label, job in failed]


def _share(seen: Overview, plane: str) -> float | None:
    """What the typical rank spends in a part of the mean step, as a share of it; ``None`` where that is not known."""
    block = seen.planes.get(plane)
    if block is None or np.isnan(block).all() or np.isnan(seen.step) or (plane == "own" and seen.overlapped):
        return None
    return float(np.nanmedian(np.nanmean(block, axis=1))) / seen.step


def _work_differs(a: Overview | None, b: Overview | None) -> list[str]:
    """That a step of one run is more work, so that steps cannot be compared."""
    work = [None if seen is None or seen.work is None else float(np.nanmean(seen.work)) for seen in (a, b)]
    left, right = work
    if not left or not right or abs(right / left - 1) < _OTHER_WORK:
        return []
    return [f"a step has {left:,.0f} samples or tokens in A and {right:,.0f} in B: compare by PACE"]


#: Steps whose work differs by less are alike.
_OTHER_WORK = 0.01


def _unlike(a: list[str], b: list[str]) -> str:
    """The words that only one of two command lines has."""
    only: dict[str, list[str]] = {"A": [], "B": []}
    for _, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if a[i:j] != b[k:m]:
            only["A"] += a[i:j]
            only["B"] += b[k:m]
    return "; ".join(f"only {label} has `{' '.join(words)}`" for label, words in only.items() if words)
