"""Where the time goes that ranks lose to each other: by rank, node, cause and phase, on one base.

The base is how much longer ``what_if`` finds a step than with all ranks at their typical peer's pace. What verdicts
cost is a part of it, spread over all steps of the run. The rest is not persistent. An unnamed rank's part of the rest
is its share of all waiting beyond the verdicts. What fixing the named ranks would not save belongs to no rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import AMOUNTS, OTHER, PHASES
from hindmost_judge.stats.robust import median
from hindmost_judge.verdict.schema import Waste, WasteRow
from hindmost_judge.whatif import residual

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.types import Array, Floats, Ints
    from hindmost_judge.verdict.schema import Verdict, WhatIf
    from hindmost_judge.whatif.planned import Planned

#: Verdicts on ranks that are not alike, or groups that are not; what holds all ranks back alike is no part of this.
_KINDS = ("straggler", "intermittent", "uneven_workload", "slow_link")
#: Causes that lengthen what the GPU does, where that was timed.
_ON_GPU = ("compute", "gpu_throttle", "gpu_contention", "workload")
_OF_GPU = ("gpu_forward", "gpu_backward", "gpu_optimizer")
_OF_HOST = (*(name for name in PHASES if name not in AMOUNTS and name not in _OF_GPU), OTHER)
#: Ranks of a verdict, and of their peers, compared by phase: more would add nothing.
_SEEN = 64
#: Rows below this share of the step are left out.
_LEAST = 0.001


def find(
    run: Run, blocks: Blocks | None, what_if: WhatIf, named: Sequence[Verdict], aside: Sequence[Planned] = ()
) -> Waste | None:
    """The table; ``None`` where it is not known how long a step would be with all ranks alike.

    What the script has ranks do for all, and is put ``aside``, has a cause and no verdict.
    """
    if blocks is None or what_if.step_ms is None or what_if.ideal_step_ms is None:
        return None
    lost = what_if.step_ms - what_if.ideal_step_ms
    known = [(one, one.cost_ms_per_step) for one in named if _unlike(one) and one.cost_ms_per_step]
    costs = [(one, _of_all_steps(one, ms, blocks)) for one, ms in known]
    told = sum(ms for _, ms in costs)
    # On shared CPUs a cost is of what ranks need, and this base of how late they come.
    costs = [(one, ms * min(lost / told, 1.0)) for one, ms in costs] if told > 0 else []
    told = sum(ms for _, ms in costs)
    known_by = [(one, one.cause, min(one.ms_per_step, max(lost - told, 0.0))) for one in aside if one.cause]
    by_rank = _by_rank(blocks, [*costs, *((one, ms) for one, _, ms in known_by)], lost)
    causes = {cause: ms for _, cause, ms in known_by}
    phases = dict(causes)
    for one, ms in costs:
        causes[one.cause or "unknown"] = causes.get(one.cause or "unknown", 0.0) + ms
        for name, part in _by_phase(one, ms, blocks).items():
            phases[name] = phases.get(name, 0.0) + part
    return Waste(
        lost_ms=lost,
        rest_ms=lost - sum(causes.values()),
        by_rank=rows({str(rank): ms for rank, ms in by_rank.items()}, what_if.step_ms),
        by_node=rows(_by_node(run, by_rank), what_if.step_ms),
        by_cause=rows(causes, what_if.step_ms),
        by_phase=rows(phases, what_if.step_ms),
    )


def _unlike(one: Verdict) -> bool:
    """Whether what a verdict is about is a part of the job, unlike the rest of it."""
    return one.kind in _KINDS and (one.kind != "slow_link" or bool(one.ranks))


def rows(found: Mapping[str, float], step_ms: float) -> tuple[WasteRow, ...]:
    """The largest first; what is too small to matter is left out."""
    order = sorted(found, key=lambda name: -found[name])
    return tuple(
        WasteRow(name, found[name], found[name] / step_ms) for name in order if found[name] >= _LEAST * step_ms
    )


def beyond(found: Sequence[Verdict], blocks: Blocks) -> float:
    """Ms of the mean step of the run that verdicts cost beyond the visible delay; below 0 where that is more."""
    more = [(one, (one.cost_ms_per_step or 0.0) - one.shown_ms) for one in found if one.shown_ms is not None]
    return sum(_of_all_steps(one, ms, blocks) for one, ms in more)


def _of_all_steps(one: Verdict, ms: float, blocks: Blocks) -> float:
    """So many ms of each step that a verdict is about as ms of the mean step of the run."""
    first, stop = residual.span(one, blocks)
    return ms * (stop - first) / len(blocks.steps)


def _by_rank(blocks: Blocks, costs: Sequence[tuple[Verdict | Planned, float]], lost: float) -> dict[int, float]:
    """Ms a step of each rank: its part of the verdicts that name it; of one that none names, at most what it caused."""
    caused = np.nan_to_num(blocks.caused).mean(axis=1) / 1e6
    found: dict[int, float] = {}
    for one, ms in costs:
        held = np.flatnonzero(np.isin(blocks.ranks, one.ranks))
        _share(found, blocks.ranks[held], caused[held], ms)
    more = np.maximum(caused - np.array([found.get(rank, 0.0) for rank in blocks.ranks.tolist()]), 0.0)
    rest = lost - sum(ms for one, ms in costs if one.ranks)
    part = min(rest / more.sum(), 1.0) if more.any() else 0.0
    return {rank: found.get(rank, ms * part) for rank, ms in zip(blocks.ranks.tolist(), more.tolist(), strict=True)}


def _share(found: dict[int, float], ranks: Ints, weights: Array, ms: float) -> None:
    """Give each of these ranks its part of so many ms; alike parts where nothing tells them apart."""
    if not len(ranks):
        return
    parts = weights / weights.sum() if weights.sum() > 0 else np.full(len(ranks), 1 / len(ranks))
    for rank, part in zip(ranks.tolist(), (ms * parts).tolist(), strict=True):
        found[rank] = found.get(rank, 0.0) + part


def _by_node(run: Run, by_rank: Mapping[int, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank, node in zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True):
        if node and rank in by_rank:
            found[node] = found.get(node, 0.0) + by_rank[rank]
    return found


def _by_phase(one: Verdict, ms: float, blocks: Blocks) -> dict[str, float]:
    """Ms a step of a verdict in each phase in which its ranks take longer than their peers; the rest in no phase.

    Empty where no phase was measured, and of transfers, which are in none.
    """
    if one.cause == "network":
        return {}
    columns, named = np.arange(*residual.span(one, blocks)), np.isin(blocks.ranks, one.ranks)
    if named.all():  # no peers to be longer than
        return {}
    on_gpu = one.cause in _ON_GPU and "gpu_forward" in blocks.parts
    wanted = [name for name in (_OF_GPU if on_gpu else _OF_HOST) if name in blocks.parts]
    if not wanted or not named.any() or not len(columns):
        return {}
    ours, others = (np.flatnonzero(each)[:: max(int(each.sum()) // _SEEN, 1)] for each in (named, ~named))
    levels = {name: [_level(blocks.parts[name], some, columns) for some in (ours, others)] for name in wanted}
    longer = {name: max(mine - usual, 0.0) for name, (mine, usual) in levels.items()}
    late = _level(blocks.excess, ours, columns)
    whole = max(late, (one.cost_ms_per_step or 0.0) * 1e6)  # a cost counts the delay that backward hides
    if "gpu_backward" in longer:
        longer["gpu_backward"] = max(longer["gpu_backward"], _of_backward(levels, longer, whole))
    if not on_gpu:
        longer[OTHER] = max(longer.get(OTHER, 0.0), late - sum(longer.values()))
    whole = max(whole, sum(longer.values()))
    return {name: ms * ns / whole for name, ns in longer.items() if ns > 0}


def _of_backward(levels: Mapping[str, Sequence[float]], longer: Mapping[str, float], whole: float) -> float:
    """Ns by which the GPU's backward is longer; its length does not show it, since early ranks wait in it.

    Estimated in the ratio of forward, limited to what measured phases leave of the ``whole`` delay of these ranks.
    """
    usual = levels["gpu_forward"][1]
    mine = levels["gpu_forward"][0]
    alike = longer["gpu_forward"] / mine * levels["gpu_backward"][0] if usual > 0 and mine > 0 else 0.0
    left = whole - sum(ns for name, ns in longer.items() if name != "gpu_backward")
    return max(min(alike, left), 0.0)


def _level(block: Floats, of: Ints, columns: Array) -> float:
    """Ns of the typical of these ranks in the mean of these steps; 0 where unmeasured."""
    chosen = block[np.ix_(of, columns)]
    known = ~np.isnan(chosen)
    means = np.where(known, chosen, 0.0).sum(axis=1)[known.any(axis=1)] / known.sum(axis=1)[known.any(axis=1)]
    return float(median(means)) if len(means) else 0.0
