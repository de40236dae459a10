"""How far a step changed between two runs because ranks waited for a CPU: other processes' doing, and no code's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hindmost_judge import usage
from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.stats.robust import average, or_zero, time_blocks
from hindmost_judge.verdict.schema import plain
from hindmost_judge.verdict.wording import OTHERS_USE, duration, percent, who_uses_cpus

if TYPE_CHECKING:
    from hindmost_judge.model import Run
    from hindmost_judge.types import Floats
    from hindmost_judge.verdict.schema import Report

#: ns, and its standard error; ``None``: not measured.
Level: TypeAlias = "tuple[float, float] | None"

#: From these shares of a change of the step on it is by waiting for a CPU, mostly or in part.
_MOSTLY, _PARTLY = 0.5, 0.1
#: Two standard errors, and the share of the step below which a change is negligible.
SURE, SMALL = 1.96, 0.005
#: The rank whose waits are compared.
_WHO = {"only": "the rank", "last": "the last rank to arrive", "longest": "the rank that takes longest"}


def find(runs: Sequence[Run], reports: Sequence[Report]) -> dict[str, Any]:
    """Who used the CPUs in A and B, how long tasks waited for one, and what that did to the step.

    ``wait_ms`` and ``cpu_ms`` are of one ``rank``: the ``last`` to arrive in a step, the ``longest`` where none arrives
    last, or the ``only`` one. They are its mean time in the run queue and on a CPU, between collectives or sampled.
    ``share`` and ``code_share`` are how much of the change of the mean step the wait makes, and the CPU time with the
    wait that more of it brings. ``None``: not measured, or the step did not surely change.
    """
    metrics = [Metrics.of(run) for run in runs]
    use = [usage.cpu_use(one) for one in metrics]
    nodes = [usage.used_by_others(one) for one in use]
    step = [_mean(report.overview.period) if report.overview is not None else None for report in reports]
    wait, cpu = (_of_last(reports, step, name) for name in ("runqueue", "cpu"))
    arrives = any(row.share_last for report in reports for row in report.ranks)
    alone = all(len(report.ranks) == 1 for report in reports)
    return {
        "rank": "only" if alone else "last" if arrives else "longest",
        "wait_ms": [one and one[0] / 1e6 for one in wait],
        "cpu_ms": [one and one[0] / 1e6 for one in cpu],
        **_shares(step, wait, cpu),
        "pressure": [max(usage.pressure(one, "cpu").values(), default=None) for one in metrics],
        "used": [node and who_uses_cpus(node, *one[node]) for node, one in zip(nodes, use, strict=True)],
    }


def _shares(step: Sequence[Level], wait: Sequence[Level], cpu: Sequence[Level]) -> dict[str, float | None]:
    """What makes the change of the step. Code that needs more of a shared CPU also waits longer for it."""
    (before, error_a), (after, error_b) = (one or (math.nan, math.nan) for one in step)
    (waited, unsure_a), (waits, unsure_b) = (one or (math.nan, math.nan) for one in wait)
    worked, works = (one[0] if one else math.nan for one in cpu)
    more = works / worked if worked > 0 else math.nan
    surely = abs(after - before) > max(SURE * math.hypot(error_a, error_b), SMALL * before)
    queued = waits - waited * (1.0 if math.isnan(more) else more)
    sure = abs(queued) > SURE * math.hypot(unsure_a, unsure_b)
    return {
        "share": plain(queued * sure / (after - before)) if surely else None,
        "code_share": plain((more - 1) * (worked + waited) / (after - before)) if surely else None,
    }


def _of_last(reports: Sequence[Report], steps: Sequence[Level], name: str) -> list[Level]:
    """ns a step of the rank that is late, of both runs by one measurement: of its steps, else by the agents' samples
    of the process."""
    seen = [{} if report.overview is None else report.overview.planes for report in reports]
    if not any(np.isnan(planes.get(f"self_{name}", np.nan)).all() for planes in seen):
        return [_mean(_weighted(_late(planes["last"], planes["self"]), planes[f"self_{name}"])) for planes in seen]
    found: list[Level] = []
    for report, step in zip(reports, steps, strict=True):
        rates = np.array(
            [[np.nan if (rate := getattr(row, f"{name}_ratio")) is None else rate] for row in report.ranks]
        )
        last, longest = (
            np.array([[getattr(row, key) or 0.0] for row in report.ranks]) for key in ("share_last", "self_ms")
        )
        rate = float(_weighted(_late(last, longest), rates)[0]) if len(rates) else math.nan
        found.append(None if step is None or math.isnan(rate) else (rate * step[0], rate * step[1]))
    return found


def _late(last: Floats, longest: Floats) -> Floats:
    """[R, S] how often each rank arrives last; where none does, who takes ``longest``."""
    last, longest = or_zero(last), or_zero(longest)
    return last if last.any() else np.asarray(longest == longest.max(axis=0, initial=0.0), dtype=float)


def _weighted(late: Floats, values: Floats) -> Floats:
    """[S] the mean of ranks [R, S], by how often each is late; of all alike where none is."""
    late = late + 1e-9
    total, weight = np.nansum(late * values, axis=0), np.sum(late * np.isfinite(values), axis=0)
    return np.asarray(np.divide(total, weight, out=np.full(len(weight), np.nan), where=weight > 0))


def _mean(values: Floats) -> tuple[float, float]:
    """The mean of steps [S], and its standard error."""
    return average(values), error_of_mean(np.array([average(values[cut]) for cut in time_blocks(len(values))]))


def error_of_mean(blocks: Floats) -> float:
    """Standard error of the mean of block means."""
    known = blocks[~np.isnan(blocks)]
    return float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else float("inf")


def blame(found: Mapping[str, Any]) -> str:
    """``by waiting for a CPU, not by code``, as far as that is what changed the step; empty where it is not.

    It is no code's doing where other processes use more of the CPUs than the ranks of the run that waits more, and
    ranks need as much CPU time in both.
    """
    share, code = found["share"] or 0.0, found["code_share"]
    if share < _PARTLY:
        return ""
    before, after = found["wait_ms"]
    how = f"by waiting {'less ' * (after < before)}for a CPU"
    if share < _MOSTLY or code is None or code >= _PARTLY:
        return f"{'partly' if share < _MOSTLY else 'mostly'} {how}"
    users = found["used"][after > before] or ""  # of the run that waits more
    return f"{how}{', not by code' * (OTHERS_USE in users)}"


def evidence(found: Mapping[str, Any]) -> list[str]:
    """What shows that; where ranks' waits were not measured, how the pressure on CPUs differs."""
    before, after = found["pressure"]
    if blame(found):
        lines = [_both(f"{_WHO[found['rank']]} waits for a CPU", found["wait_ms"], duration)]
        lines += [_both("its CPU time", found["cpu_ms"], duration)] * (None not in found["cpu_ms"])
    elif None in found["wait_ms"] and None not in (before, after) and abs(after - before) >= _PARTLY:
        lines = [
            f"{_both('CPU pressure', found['pressure'], percent)}: waiting for a CPU may be what changed, not code"
        ]
    else:
        return []
    return ["; ".join(lines), *(f"{label}: {who}" for label, who in zip("AB", found["used"], strict=True) if who)]


def _both(what: str, values: Sequence[Any], how: Any) -> str:
    return f"{what} {how(values[0])} in A, {how(values[1])} in B"
