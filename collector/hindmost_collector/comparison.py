"""Comparison of two runs: what takes longer or shorter, how surely, and which verdicts came or went."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.judge import judge
from hindmost_judge.model import Run, rows
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import average, median, standard_error, time_blocks
from hindmost_judge.timeline import build_blocks

from hindmost_collector.live.incremental import QUIET
from hindmost_collector.live.verdicts import identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats

SCHEMA = "hindmost.compare/1"
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
    """``hindmost.compare/1``: both jobs, the measures, and verdicts ``gone``, ``new`` and ``kept`` (as each has it)."""
    reports = [judge(run, settings).to_dict() for run in (a, b)]
    series = [_series(run, settings) for run in (a, b)]
    step = max(_typical(found.get("step")) for found in series)
    names = dict.fromkeys([*series[0], *series[1]])
    return {
        "schema": SCHEMA,
        "a": reports[0]["job"],
        "b": reports[1]["job"],
        "measures": [asdict(_measure(name, series[0].get(name), series[1].get(name), step)) for name in names],
        "verdicts": _verdicts(*(report["verdicts"] for report in reports)),
        "notes": _notes(*(report["job"] for report in reports)),
    }


def _series(run: Run, settings: Settings) -> dict[str, Floats]:
    """Name to [S] ns a step of the typical rank; empty without recognised steps."""
    blocks = build_blocks.build(run, settings) if not rows(run.operations) else None
    if blocks is None:
        return {}
    found = {"step": blocks.period, "mean_step": _block_means(blocks.period)}
    found |= {name: median(block, axis=0) for name, block in blocks.parts.items() if name not in ("cpu", "runqueue")}
    found |= _of_collectives(blocks)
    return {name: values for name, values in found.items() if not np.isnan(values).all()}


def _block_means(series: Floats) -> Floats:
    """[B] means of the run's blocks of time: what acts in a part of the steps only leaves medians as they are."""
    return np.array([average(series[cut]) for cut in time_blocks(len(series))])


def _of_collectives(blocks: Blocks) -> dict[str, Floats]:
    own = {} if blocks.overlapped or blocks.evidence == build_blocks.BARE else {"self": median(blocks.own, axis=0)}
    return own | {"wait": median(blocks.wait, axis=0), "transfer": median(blocks.transfer, axis=0)}


def _typical(values: Floats | None) -> float:
    return float(median(values)) if values is not None else 0.0


def _measure(name: str, a: Floats | None, b: Floats | None, step: float) -> Measure:
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
    return unlike + [f"{label} failed: {job['ended']}" for label, job in failed]


def _unlike(a: list[str], b: list[str]) -> str:
    """The words that only one of two command lines has."""
    only: dict[str, list[str]] = {"A": [], "B": []}
    for _, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if a[i:j] != b[k:m]:
            only["A"] += a[i:j]
            only["B"] += b[k:m]
    return "; ".join(f"only {label} has `{' '.join(words)}`" for label, words in only.items() if words)
