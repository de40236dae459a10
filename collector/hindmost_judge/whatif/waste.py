"""Where the time goes that ranks lose to each other, and what of it the script planned.

Waste is reported by rank, node, cause and phase, on one base: how much longer ``what_if`` finds a step than with all
ranks at their typical peer's pace. What verdicts cost is a part of it, spread over all steps of the run; of the rest an
unnamed rank has its share of all waiting. Checkpoints, evaluations and pauses that a few ranks make for all are planned
by the script: they are removed from the delays, and their cost is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hindmost_judge import overview
from hindmost_judge.blocks import Blocks, Stalls
from hindmost_judge.encoding import is_constant
from hindmost_judge.model import AMOUNTS, OTHER, PHASES, Run, Table, rows
from hindmost_judge.settings import Settings
from hindmost_judge.stats.recurring_events import begins, pace, tail
from hindmost_judge.stats.robust import average, lower_median, median, or_zero
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.schema import Verdict, Waste, WasteRow, WhatIf
from hindmost_judge.verdict.wording import names, percent
from hindmost_judge.whatif import savings
from hindmost_judge.whatif.savings import stall_saving

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
    unlike = [
        verdict
        for verdict in named
        if verdict.kind in savings.UNLIKE and (verdict.kind != "slow_link" or verdict.ranks)
    ]
    costs = [(one, _of_all_steps(one, one.cost_ms_per_step, blocks)) for one in unlike if one.cost_ms_per_step]
    charged = sum(ms for _, ms in costs)
    # On shared CPUs a cost is of what ranks need, and this base of how late they come.
    costs = [(one, ms * min(lost / charged, 1.0)) for one, ms in costs] if charged > 0 else []
    charged = sum(ms for _, ms in costs)
    known_by = [
        (planned, planned.cause, min(planned.ms_per_step, max(lost - charged, 0.0)))
        for planned in aside
        if planned.cause
    ]
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
        by_rank=waste_rows({str(rank): ms for rank, ms in by_rank.items()}, what_if.step_ms),
        by_node=waste_rows(by_node(run, by_rank), what_if.step_ms),
        by_cause=waste_rows(causes, what_if.step_ms),
        by_phase=waste_rows(phases, what_if.step_ms),
    )


def waste_rows(found: Mapping[str, float], step_ms: float) -> tuple[WasteRow, ...]:
    """The largest first; what is too small to matter is left out."""
    order = sorted(found, key=lambda name: -found[name])
    return tuple(
        WasteRow(name, found[name], found[name] / step_ms) for name in order if found[name] >= _LEAST * step_ms
    )


def beyond(found: Sequence[Verdict], blocks: Blocks) -> float:
    """Ms of the mean step of the run that verdicts cost beyond the visible delay; below 0 where that is more."""
    known = [(one, one.shown_ms) for one in found if one.shown_ms is not None]
    return sum(_of_all_steps(one, (one.cost_ms_per_step or 0.0) - shown, blocks) for one, shown in known)


def _of_all_steps(one: Verdict, ms: float, blocks: Blocks) -> float:
    """So many ms of each step that a verdict is about as ms of the mean step of the run."""
    first, stop = savings.span_of(one, blocks)
    return ms * (stop - first) / len(blocks.steps)


def _by_rank(blocks: Blocks, costs: Sequence[tuple[Verdict | Planned, float]], lost: float) -> dict[int, float]:
    """Ms a step of each rank: its part of the verdicts that name it; of one that none names, at most what it caused."""
    caused = or_zero(blocks.caused).mean(axis=1) / 1e6
    found: dict[int, float] = {}
    for one, ms in costs:
        named = np.isin(blocks.ranks, one.ranks)
        weights = caused[named] if caused[named].sum() > 0 else np.ones(int(named.sum()))
        for rank, part in zip(blocks.ranks[named].tolist(), (weights / weights.sum()).tolist(), strict=True):
            found[rank] = found.get(rank, 0.0) + ms * part
    more = np.maximum(caused - np.array([found.get(rank, 0.0) for rank in blocks.ranks.tolist()]), 0.0)
    rest = lost - sum(ms for one, ms in costs if one.ranks)
    part = min(rest / more.sum(), 1.0) if more.any() else 0.0
    return {rank: found.get(rank, ms * part) for rank, ms in zip(blocks.ranks.tolist(), more.tolist(), strict=True)}


def by_node(run: Run, by_rank: Mapping[int, float]) -> dict[str, float]:
    """What ranks are given each, for each node that ranks are on."""
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
    columns, named = np.arange(*savings.span_of(one, blocks)), np.isin(blocks.ranks, one.ranks)
    if named.all():  # no peers to be longer than
        return {}
    on_gpu = one.cause in _ON_GPU and "gpu_forward" in blocks.parts
    wanted = [name for name in (_OF_GPU if on_gpu else _OF_HOST) if name in blocks.parts]
    if not wanted or not named.any() or not len(columns):
        return {}
    ours, others = (np.flatnonzero(each)[:: max(int(each.sum()) // _SEEN, 1)] for each in (named, ~named))
    levels = {name: [_level(blocks.parts[name], of, columns) for of in (ours, others)] for name in wanted}
    longer = {name: max(mine - usual, 0.0) for name, (mine, usual) in levels.items()}
    late = _level(blocks.delay, ours, columns)
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


#: With fewer ranks writing at once, the usual time of a write is unknown.
_CROWD = 4
#: Least cohort size for counting: of two ranks, one writes for both if the other does not.
_THIRD = 3
#: A checkpoint that ends one step and delays the next is in two steps; more steps in a row are a persistent slowdown.
_ON_END = 2.0


#: This many pauses at equal distances in steps are planned by the script: disturbances do not count steps.
_COUNTED = 4
#: Pauses that cost more of the job's time than this are not planned: a garbage collector counts steps, too.
_MOST_PLANNED = 0.25


class _Words(NamedTuple):
    """What one rank does, what several do, how the others would wait less for it, and the cause that waste has then;
    whether it was ``seen``, or only looks like that."""

    one: str
    several: str
    remedy: str
    cause: str | None = None
    seen: bool = True


class Planned(NamedTuple):
    """What the others wait for these ranks by the script's doing, ms of the mean step; ``cause`` is also its phase,
    ``note`` the sentence on it, ``steps`` the indices of those that it makes longer; ``seen`` is as of its words."""

    ranks: tuple[int, ...]
    ms_per_step: float
    cause: str | None
    note: str
    steps: Ints
    seen: bool


_WRITES = _Words("writes checkpoints", "write checkpoints", wording.SAVING, "checkpoint")
_EVALUATES = _Words(
    "evaluates longer than its peers", "evaluate longer than their peers", "spread over all ranks, or less often"
)

_PAUSES = _Words(
    f"pauses ({wording.REGULARLY})",
    f"pause ({wording.REGULARLY})",
    wording.SAVING,
    seen=False,
)


def aside(blocks: Blocks, steps: Table, settings: Settings) -> tuple[Blocks, list[Planned]]:
    """The same without delays due to a rank's work for the others, and what these wait for it."""
    if len(blocks.ranks) < 2:
        return blocks, []
    found: list[Planned | None] = []
    least = settings.stall_effect * blocks.step_ns
    took, evaluated = blocks.parts.get("checkpoint"), _evaluated(blocks, steps)
    issued, lasted = blocks.parts.get("issue"), blocks.took
    if took is not None:
        due = _written(or_zero(took))
        blocks, planned = _without(blocks, due, _WRITES, settings)
        found.append(planned)
        blocks = replace(blocks, parts=blocks.parts | {"checkpoint": took - due}) if due.any() else blocks
    if evaluated is not None:
        blocks, planned = _without(blocks, _longer(evaluated, least), _EVALUATES, settings)
        found.append(planned)
    if issued is not None and lasted is not None:  # from the last operation that a step issued to the next step
        outside = np.nan_to_num(np.maximum(lasted - issued - np.nan_to_num(blocks.parts.get("input", 0.0)), 0.0))
        due = _counted_out(_longer(outside, least), blocks.steps)
        on_time, planned = _without(blocks, due, _PAUSES, settings)
        if _may_be_planned(planned, blocks):
            blocks = on_time
            found.append(planned)
    return blocks, [planned for planned in found if planned is not None]


def _may_be_planned(one: Planned | None, blocks: Blocks) -> bool:
    """Whether it was seen what ranks do for all, or costs little enough to be that."""
    return one is None or one.seen or one.ms_per_step * 1e6 <= _MOST_PLANNED * average(blocks.period)


def _without(blocks: Blocks, due: Floats, words: _Words, settings: Settings) -> tuple[Blocks, Planned | None]:
    """The same without the delays ``due`` [R, S], and what the others wait for them."""
    indices = np.flatnonzero(due.any(axis=1))
    if not len(indices):
        return blocks, None
    late = _planned_delay(blocks, indices, due[indices])
    planned = _planned(blocks, indices, np.flatnonzero(late.any(axis=0)), due, words, settings)
    delay = blocks.delay.copy()
    delay[indices] -= late
    return replace(blocks, delay=delay), planned


def _planned(
    blocks: Blocks, indices: Ints, steps: Ints, due: Array, words: _Words, settings: Settings
) -> Planned | None:
    """What the others wait for these rows in these steps (indices), for what is ``due``; ``None`` if that is little."""
    saved = float(stall_saving(blocks, indices.tolist(), steps).mean())
    if saved < settings.min_cost * blocks.step_ns:
        return None
    note, written = _note(blocks, indices, saved, due, words), overview.saves(blocks.parts)
    seen = words.seen or (
        written is not None and or_zero(written[np.ix_(indices, steps)]).sum() >= saved * len(blocks.steps) / 2
    )
    return Planned(tuple(blocks.ranks[indices].tolist()), saved / 1e6, words.cause, note, steps, seen)


def without_planned(blocks: Blocks, planned: Sequence[Planned]) -> Blocks:
    """The same without what ranks wait for what is planned."""
    for one in planned:
        its = np.flatnonzero(np.isin(blocks.ranks, one.ranks))
        caused, late = blocks.caused.copy(), np.ix_(its, one.steps)
        caused[late] = np.minimum(caused[late], median(caused[its], axis=1)[:, None])
        wait = blocks.wait.copy()
        wait[:, one.steps] = np.minimum(wait[:, one.steps], median(wait, axis=1)[:, None])
        intervals = savings.without_stalls(blocks, its.tolist(), one.steps)
        blocks = replace(blocks, caused=caused, wait=wait, intervals=intervals)
    return blocks


def _planned_delay(blocks: Blocks, indices: Ints, due: Floats) -> Floats:
    """[N, S] ns that these are late by for what is ``due`` [N, S].

    A checkpoint that is written after a step's collectives is in that step, and holds up the next.
    """
    usual = median(blocks.delay[indices], axis=1)[:, None]
    beyond = np.maximum(or_zero(blocks.delay[indices] - usual), 0.0)
    now = np.minimum(beyond, due)
    left = np.where(now < due / 2, due - now, 0.0)
    return np.asarray(now + np.minimum(beyond - now, np.pad(left[:, :-1], ((0, 0), (1, 0)))))


def _written(took: Floats) -> Floats:
    """[R, S] of the time in checkpoints, that which is no more than others' who write then; 0 where most do, though it
    be a step later.

    Most ranks are compared with each other as in all else. In steps on end, or in most, a checkpoint is no plan but
    what makes a rank slow.
    """
    writes = (took > 0) & _now_and_then(took > 0)
    writing = _around(writes).sum(axis=0)
    by_few = writes & (2 * writing < max(len(took), _THIRD))
    due: Floats = np.where(by_few, took, 0.0)
    crowd = np.flatnonzero(by_few.any(axis=0) & (writing >= _CROWD))
    if len(crowd):
        usual = median(np.where(writes, took, np.nan)[:, crowd], axis=0)
        due[:, crowd] = np.minimum(due[:, crowd], usual)
    return due


def _evaluated(blocks: Blocks, steps: Table) -> Floats | None:
    """[R, S] ns that each rank evaluated before or in each step; ``None`` if none did, or the times are unknown."""
    if rows(steps) == 0 or blocks.ended is None or blocks.took is None:
        return None
    kind = steps["kind"]
    if is_constant(kind) and kind[0] != "eval":
        return None
    indices = np.flatnonzero((kind == "eval") & (steps["duration_ns"] > 0) & (steps["start_ns"] >= 0))
    if not len(indices):
        return None
    found = np.zeros_like(blocks.delay)
    rank, start, lasted = (steps[name][indices] for name in ("rank", "start_ns", "duration_ns"))
    for row in np.flatnonzero(np.isin(blocks.ranks, rank)).tolist():
        known = np.flatnonzero(~np.isnan(blocks.ended[row]))
        if not len(known):
            continue
        begins = blocks.ended[row, known[0]] - blocks.took[row, known[0]]
        mine = np.flatnonzero((rank == blocks.ranks[row]) & (start >= begins))
        at = np.searchsorted(blocks.ended[row, known], start[mine], side="right")
        inside = at < len(known)
        np.add.at(found[row], known[at[inside]], lasted[mine[inside]].astype(np.float64))
    return found


def _counted_out(pauses: Floats, steps: Ints) -> Floats:
    """[R, S] of each rank's pauses the long ones, where all of these are as many steps apart; else 0."""
    due: Floats = np.where(pauses > pauses.max(axis=1, initial=0.0)[:, None] / 2, pauses, 0.0)
    for row in due:
        at = steps[row > 0]
        if len(at) < _COUNTED or len(np.unique(np.diff(at))) > 1:
            row[:] = 0.0
    return due


#: Causes of stalls that work for the others may have: nothing that holds a rank up itself. Who computes for them, as
#: who compresses what it saves, does so regularly, or now and then: regular computing alone may be a fault.
_OF_WORK, _OF_FEW = ("unknown", "io", "checkpoint"), "compute"
#: Stalls that are the script's are most of a rank's, and would be so regular by chance in this share of jobs.
_MOST, _CHANCE = 0.8, 0.01


def served(
    stalls: list[Stalls], causes: list[str], blocks: Blocks, settings: Settings
) -> tuple[list[Stalls], list[Planned]]:
    """The stalls that are no work of the first rank for the others, as saving is, and what is; nor of the last rank.

    The script plans such work by the step, or by the clock, and marks it rarely. Of few it is not known: they are in
    neither. What costs too much, and was not seen to be such work, is left.
    """
    left, planned = [], list[Planned]()
    for one, cause in zip(stalls, causes, strict=True):
        at = begins(one.stalled)
        regular = _counted(blocks.steps[at]) or pace(blocks.period, one.stalled) is not None
        first_or_last = one.rows in ((0,), (len(blocks.ranks) - 1,))
        may_serve = first_or_last and cause in _OF_WORK
        if may_serve and one.rows == (0,) and regular:
            due = np.isin(np.arange(len(blocks.steps)), one.stalled)[None]
            words = _writing(blocks, one.stalled) or _PAUSES
            found = _planned(blocks, np.array(one.rows), one.stalled, due, words, settings)
            if not _may_be_planned(found, blocks):
                left.append(one)
            elif found is not None:
                planned.append(found)
        elif not (may_serve or (first_or_last and cause == _OF_FEW)) or len(at) > _COUNTED:  # a pace needs one more
            left.append(one)
    return left, planned


#: Who pauses to save writes this many bytes each time, and so many times what any other writes.
_SAVED, _MORE = 1 << 20, 10


def _writing(blocks: Blocks, stalled: Ints) -> _Words | None:
    """What the first rank does in the steps in which it ``stalled``, where its process wrote much then, and only then.

    No other's did. Where each sample is partly of such a step, when it wrote is not known.
    """
    rate, stalls = blocks.gauge("written"), np.isin(np.arange(len(blocks.steps)), stalled).astype(np.float64)
    found = blocks.samples.per_sample("written", 0, stalls) if blocks.samples is not None else None
    if found is None or rate is None or np.isnan(rate).any() or rate[0] < _MORE * rate[1:].max():
        return None
    seconds, wrote, part = found
    then = part > 0
    if not then.any() or then.all():
        return None
    usual = float(wrote[~then].sum() / seconds[~then].sum())
    beyond = float(wrote[then].sum() - usual * seconds[then].sum())
    each = beyond / max(len(begins(stalled)), 1)
    does = f"writes {each / 1e6:,.0f} MB each time, at regular intervals,"
    much = each >= _SAVED and beyond >= (_MORE - 1) * usual * seconds[then].sum()
    return _Words(does, does, wording.SAVING, _WRITES.cause) if much else None


def _counted(at: Ints) -> bool:
    """Whether most of the steps ``at`` which something begins are multiples of one number apart, or of two."""
    left = at
    for _ in range(2):
        best, members = _CHANCE, left[:0]
        most = int(left[-1] - left[0]) // (_COUNTED - 1) if len(left) >= _COUNTED else 0
        for apart in range(2, most + 1):
            place = left % apart
            same = left[place == np.bincount(place).argmax()]
            chance = len(left) * most * tail(len(same) - 1, len(left) - 1, 1 / apart)
            if len(same) >= _COUNTED and chance < best:
                best, members = chance, same
        left = np.setdiff1d(left, members)
    return bool(len(left) <= (1 - _MOST) * len(at))


def _longer(took: Floats, least: float) -> Floats:
    """[R, S] ns that a rank evaluates, or pauses, longer than the typical one, now and then, where that is a stall.

    Of two ranks the typical one is the rank that evaluates less: half of the other's work for both would be left as
    its own fault. What begins at the very end of a step may be in that step on some ranks, and in the next on
    others.
    """
    longer = np.maximum(took - lower_median(_around(took), axis=0), 0.0)
    longer[longer < least] = 0.0
    return np.asarray(np.where(_now_and_then(longer > 0), longer, 0.0))


def _around(block: Array) -> Array:
    """[R, S] the most of each step, the one before and the one after."""
    wide = np.pad(block, ((0, 0), (1, 1)))
    return np.asarray(np.maximum(np.maximum(wide[:, :-2], wide[:, 2:]), block))


def _now_and_then(does: Array) -> Array:
    """[R, 1] whether a rank does something in a few steps apart in time."""
    steps = np.count_nonzero(does, axis=1)
    apart = np.count_nonzero(does[:, 1:] & ~does[:, :-1], axis=1) + does[:, 0]
    return np.asarray((2 * steps < does.shape[1]) & (steps <= _ON_END * apart))[:, None]


def _note(blocks: Blocks, indices: Ints, saved: float, due: Floats, words: _Words) -> str:
    """The note on what the others wait for these, ``saved`` ns a step."""
    steps = int(np.count_nonzero(due.any(axis=0)))
    who = names([int(blocks.ranks[row]) for row in indices])
    does = words.one if len(indices) == 1 else words.several
    waited = f"{who} {does} in {steps} of {len(blocks.steps)} steps"
    each_ms, share = saved * len(blocks.steps) / steps, saved / average(blocks.period)
    cost = f"others wait {wording.ms(each_ms)} each time ({percent(share)})"
    return f"{waited}: {cost}. It costs less {words.remedy}"
