"""What a job's recorded steps looked like, as people are shown it: delays, and where each rank's step went.

A step is two lanes, a host's and a GPU's, each exactly one step long. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes.telemetry import Samples
from hindmost_judge.model import OTHER, PHASES
from hindmost_judge.stats.robust import median, or_zero
from hindmost_judge.types import Array, Floats, Ints

#: What a host does in a step that is marked, in this order.
_MARKED = tuple("input h2d forward issue backward sync optimizer checkpoint device_wait device_copy".split())
#: What it does between two collectives, where steps are not marked.
_BETWEEN = ("self_cpu", "self_runqueue", "self_blocked")
_ON_GPU = ("gpu_forward", "gpu_backward", "gpu_optimizer")
#: Collectives of a host run inside these, in this order; of a GPU inside these.
_MEETS_IN, _GPU_MEETS_IN = ("sync", "backward", "forward", "issue"), ("backward", "forward")
#: What is kept of each rank and step.
PLANES = (*_MARKED, *_BETWEEN, *_ON_GPU)
#: Phases that are no part of a lane.
_NO_LANE = (*(name for name in PHASES if name not in (*PLANES, "cpu", "runqueue")), OTHER)
#: Ranks write a checkpoint in a step if that takes one of them this share of it.
_CHECKPOINT = 0.02


@dataclass(frozen=True)
class Overview:
    """R ranks in S steps. ns; NaN is not measured.

    ``period`` [S] is how long each step took, ``cohort`` [R] the cohort of each rank, ``planes`` name to [R, S]:
    ``delay`` against the cohort, ``self`` time between collectives, ``wait`` and ``transfer`` in these, ``caused`` wait
    of the others, ``last`` the share of collectives entered last, and the parts of :data:`PLANES`. ``on_gpu``:
    collectives are those of GPUs; ``gathers``: they run in forward as well as in backward. ``checkpoint`` [S]: some
    rank wrote one. ``work`` [S]: samples or tokens of all ranks together. ``overlapped``: computing may hide transfers.
    ``no_lane``: name to [R, S] of phases that lie inside others, or outside of all. ``queued`` [R]: the share of input
    that is a wait for a CPU. ``saves`` [R, S]: time in checkpoints, or in calls that write files.
    """

    ranks: Ints
    steps: Ints
    period: Floats
    cohort: Ints
    planes: Mapping[str, Floats]
    on_gpu: bool
    gathers: bool
    checkpoint: Array
    work: Floats | None = None
    samples: Samples | None = None
    overlapped: bool = False
    no_lane: Mapping[str, Floats] = field(default_factory=dict)
    queued: Floats | None = None
    saves: Floats | None = None

    @property
    def step(self) -> float:
        """ns of the mean step; NaN where none is known."""
        known = self.period[np.isfinite(self.period)]
        return float(known.mean()) if len(known) else float("nan")


def saves(parts: Mapping[str, Floats]) -> Floats | None:
    """[R, S] ns in checkpoints, or in calls that write files, which may be the same; ``None`` where none is known."""
    sums = [
        np.sum([or_zero(parts[name]) for name in names if name in parts], axis=0)
        for names in (("checkpoint",), ("file_write", "file_sync"))
        if any(name in parts for name in names)
    ]
    return np.max(sums, axis=0) if sums else None


def lengthened(saves: Floats, period: Floats) -> Floats:
    """[S] ns by which steps are longer for what a rank ``saves`` [R, S]: beyond the typical other step of ``period``
    [S]; NaN where ranks save in all.

    What is saved after the last collective of a step holds up the next.
    """
    due = saves.max(axis=0)
    usual = median(np.where(due > _CHECKPOINT * or_zero(period), np.nan, period), axis=0)
    beyond = or_zero(np.maximum(period - usual, 0.0)) if np.isfinite(usual) else np.full(len(period), np.nan)
    now = np.minimum(beyond, due)
    return np.asarray(now + np.minimum(beyond - now, np.pad((due - now)[:-1], (1, 0))))


def of(blocks: Blocks, delay: Floats, queued: Floats | None = None) -> Overview:
    """The same arrays, not copied, with the ``delay`` [R, S] by which ranks are judged."""
    planes = {name: blocks.parts[name] for name in PLANES if name in blocks.parts}
    planes |= {name: getattr(blocks, name) for name in ("wait", "transfer", "caused", "last")}
    planes["self"] = blocks.self_time
    planes["delay"] = delay if delay.shape == blocks.delay.shape else blocks.delay
    saved = blocks.parts.get("checkpoint")
    longest = np.zeros(len(blocks.steps)) if saved is None else np.max(or_zero(saved), axis=0, initial=0.0)
    joined = blocks.joined
    return Overview(
        ranks=blocks.ranks,
        steps=blocks.steps,
        period=blocks.period,
        cohort=blocks.cohort,
        planes=planes,
        on_gpu=joined is not None and joined.gpu_time,
        gathers=blocks.pipeline is not None or (joined is not None and bool(joined.gathers.any())),
        checkpoint=longest > _CHECKPOINT * or_zero(blocks.period),
        work=None if blocks.work is None else np.nansum(blocks.work, axis=0),
        samples=blocks.samples,
        overlapped=blocks.overlapped,
        no_lane={name: blocks.parts[name] for name in _NO_LANE if name in blocks.parts},
        saves=saves(blocks.parts),
        queued=queued,
    )


def together(parts: Sequence[Overview]) -> Overview:
    """Several groups of ranks that never meet as one, in the steps that all of them have."""
    if len(parts) == 1:
        return parts[0]
    steps = reduce(np.intersect1d, [one.steps for one in parts])
    places = [np.searchsorted(overview.steps, steps) for overview in parts]
    names = dict.fromkeys(name for overview in parts for name in overview.planes)

    def plane(one: Overview, name: str, columns: Ints) -> Floats:
        found = one.planes.get(name)
        return np.full((len(one.ranks), len(steps)), np.nan) if found is None else found[:, columns]

    blocks = {
        name: np.concatenate([plane(one, name, at) for one, at in zip(parts, places, strict=True)]) for name in names
    }
    ranks = np.concatenate([overview.ranks for overview in parts])
    queued = [np.zeros(len(one.ranks)) if one.queued is None else one.queued for one in parts]
    order = np.argsort(ranks)
    roles = [one.cohort + 1000 * number for number, one in enumerate(parts)]
    return Overview(
        ranks=ranks[order],
        steps=steps,
        period=np.max([one.period[at] for one, at in zip(parts, places, strict=True)], axis=0),
        cohort=np.concatenate(roles)[order],
        planes={name: block[order] for name, block in blocks.items()},
        on_gpu=parts[0].on_gpu,
        gathers=any(overview.gathers for overview in parts),
        checkpoint=np.any([one.checkpoint[at] for one, at in zip(parts, places, strict=True)], axis=0),
        overlapped=any(overview.overlapped for overview in parts),
        queued=np.concatenate(queued)[order],
    )


@dataclass(frozen=True)
class Lane:
    """Parts of a step by name, which add up to it: [...] of ns each, NaN for a rank without this lane."""

    parts: dict[str, Floats]
    measured: Floats  # [...] what was measured, before it was made to fit the step


def lanes(means: Mapping[str, Floats], step: Floats, *, on_gpu: bool, gathers: bool) -> dict[str, Lane]:
    """The lanes, ``host`` and ``gpu``, of ranks whose parts of a ``step`` [...] ns have these ``means`` [...] ns.

    What a lane has no name for is ``other`` on a host and ``idle`` on a GPU. A lane that was not recorded is left out.
    """
    found = {"host": _host(means, step, on_gpu=on_gpu), "gpu": _gpu(means, step, on_gpu=on_gpu, gathers=gathers)}
    return {name: lane for name, lane in found.items() if lane is not None}


def _host(means: Mapping[str, Floats], step: Floats, *, on_gpu: bool) -> Lane | None:
    parts = {name: means[name] for name in _MARKED if name in means}
    if "forward" in parts:
        parts.pop("issue", None)
    if "h2d" in parts and "gpu_forward" in means and "forward" in parts:  # timed on the GPU, inside forward
        parts["h2d"] = np.where(np.isnan(means["gpu_forward"]), parts["h2d"], np.nan)
    if not parts.keys() - {"checkpoint"}:
        if on_gpu:
            return None
        parts = {name: means[name] for name in _BETWEEN if name in means} or {"self": means["self"]}
    inside = {} if on_gpu else _in_collectives(means)
    return _lane(parts, inside, _MEETS_IN, step, OTHER)


def _gpu(means: Mapping[str, Floats], step: Floats, *, on_gpu: bool, gathers: bool) -> Lane | None:
    parts = {name.removeprefix("gpu_"): means[name] for name in _ON_GPU if name in means}
    if not on_gpu and not parts:
        return None
    if not parts:
        return _lane({"self": means["self"]}, _in_collectives(means), (), step, "idle")
    inside = _in_collectives(means)
    if gathers and inside:
        both = or_zero(parts.get("forward", step * 0)) + or_zero(parts.get("backward", step * 0))
        share = np.divide(or_zero(parts.get("forward", step * 0)), both, out=np.zeros_like(both), where=both > 0)
        taken = np.minimum(sum(map(or_zero, inside.values()), np.zeros_like(step)), both)
        parts = {
            name: part - taken * {"forward": share, "backward": 1 - share}.get(name, 0.0)
            for name, part in parts.items()
        }
        return _lane(parts, inside, (), step, "idle")
    return _lane(parts, inside, _GPU_MEETS_IN, step, "idle")


def _in_collectives(means: Mapping[str, Floats]) -> dict[str, Floats]:
    return {name: means[name] for name in ("wait", "transfer") if name in means and not np.isnan(means[name]).all()}


def _lane(
    parts: dict[str, Floats], inside: dict[str, Floats], meets_in: Iterable[str], step: Floats, rest: str
) -> Lane | None:
    """Time ``inside`` collectives is taken out of the phases that they run in; the ``rest`` fills up the step."""
    known = ~np.all([np.isnan(part) for part in (*parts.values(), *inside.values())], axis=0)
    if not known.any():
        return None
    found = {name: np.maximum(or_zero(part), 0.0) for name, part in parts.items()}
    left = sum(map(or_zero, inside.values()), np.zeros_like(step))
    for name in meets_in:
        if name in found:
            taken = np.minimum(left, found[name])
            found[name], left = found[name] - taken, left - taken
    found |= {name: np.maximum(or_zero(part), 0.0) for name, part in inside.items()}
    measured = sum(found.values(), np.zeros_like(step))
    fits = np.divide(step, measured, out=np.ones_like(step), where=measured > step)
    found = {name: part * fits for name, part in found.items()}
    found[rest] = np.maximum(step - sum(found.values(), np.zeros_like(step)), 0.0)
    return Lane(
        {name: np.where(known, part, np.nan) for name, part in found.items()}, np.where(known, measured, np.nan)
    )
