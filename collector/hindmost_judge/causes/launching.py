"""When hosts launched what their GPUs ran: which GPU is launch-bound, and which never runs out of work.

If a recording has the time at which a collective was enqueued, it shows how long its kernel waited on the GPU. A wait
near zero means that the GPU had caught up with its host: events around forward then time the launching, not the
computing.

Without enqueue times, the phases of the host show the same for every step. A GPU is launch-bound if it had finished the
step before when its host had the next batch. It is also launch-bound if it runs a step's first collective as soon as
its host has launched forward. A GPU that had not finished the step before when all of forward was launched had work
throughout. The time from that step's last collective to the next step's first is then all its own: forward and what
surrounds it, on its own clock, also in steps where no event timed forward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.stats.robust import average, median, with_peers

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats

#: A GPU has caught up with its host if a kernel waits at most this share of a step longer than the shortest wait.
_CAUGHT_UP = 0.05
#: GPU clocks were 0.5 to 3 ms off their host's: a kernel that seems to wait longer than this (ns) did wait.
CLOCKS_NS = 4e6
#: Share of the marks that may be off; and a kernel that began later than this share of a step did not begin at once.
_OFF, _AT_ONCE = 0.05, 0.125
#: Other traffic on a link makes copies longer by less than this factor.
_NO_COPY = 10.0
#: Ranks compared with: enough for a typical value, whatever the size of the job.
_SAMPLE = 512


def hand_to_mouth(blocks: Blocks, settings: Settings, rows: slice = slice(None)) -> Array | None:
    """[R, S] in which steps a GPU of these ranks ran its forward as its host launched it; ``None``: nothing tells."""
    grid, gpu = blocks.joined, blocks.parts.get("gpu_forward")
    if grid is None or not grid.gpu_time or gpu is None or blocks.ended is None or blocks.took is None:
        return None
    enqueue, start = grid.enqueue[rows], grid.start[rows]
    if np.isnan(start).all():
        return None
    if np.isnan(enqueue).all():
        marks = _marks(blocks, rows)
        if marks is None:
            return None
        optimizer = blocks.parts.get("gpu_optimizer", np.zeros_like(gpu))[rows]
        fed = _followed(marks.lag, blocks) | (marks.done + optimizer < marks.ready)
        return np.asarray(fed & (blocks.parts["forward"][rows] >= settings.host_bound_in_step * gpu[rows]))
    enqueue, start = enqueue[:, blocks.starts], start[:, blocks.starts]
    began = blocks.ended[rows] - blocks.took[rows]
    if "input" in blocks.parts:
        began = began + np.nan_to_num(blocks.parts["input"][rows])
    host = enqueue - began
    known = caught_up(start - enqueue, blocks)  # the GPU's clock less the host's included
    return np.asarray(known & (host >= settings.host_bound_in_step * gpu[rows]))


def caught_up(waited: Floats, blocks: Blocks) -> Array:
    """[R, K] where what waited [R, K] ns on its GPU, its clock less the host's included, ran as it was launched."""
    beyond = waited - np.fmin.reduce(waited, axis=1)[:, None]
    return np.asarray((beyond <= _CAUGHT_UP * blocks.step_ns) & (waited <= CLOCKS_NS))


def _followed(lag: Floats, blocks: Blocks) -> Array:
    """[R, S] the same by marks, of which a few are off: in how long hosts take to launch their GPUs caught up."""
    shortest = np.sort(lag, axis=1)[:, int(_OFF * lag.shape[1])][:, None]
    most = min(CLOCKS_NS, _AT_ONCE * blocks.step_ns)
    return np.asarray((lag - shortest <= _CAUGHT_UP * blocks.step_ns) & (lag <= most))


class _Marks(NamedTuple):
    """[R, S] ns of a step's marks on GPU and host.

    When the GPU was ``done`` with the step before (its last collective); when the host was ``ready`` to launch
    forward; how long after all of that was launched the step's first collective began (``lag``); and how long that
    was after the step before (``span``). Host work in no phase may be before forward or after the optimizer:
    ``unnamed`` is by how much later the host may have been ready, and have launched.
    """

    done: Floats
    ready: Floats
    forward: Floats
    lag: Floats
    span: Floats
    unnamed: Floats


def _marks(blocks: Blocks, rows: slice | Array) -> _Marks | None:
    """How far hosts and GPUs of these ranks had come; ``None`` if forward is unmarked or collectives are untimed."""
    grid, forward = blocks.joined, blocks.parts.get("forward")
    if grid is None or forward is None or blocks.ended is None or blocks.took is None or len(blocks.steps) < 2:
        return None
    start, stop = grid.start[rows], (grid.start[rows] + grid.duration[rows])
    first, last = start[:, blocks.starts], stop[:, np.append(blocks.starts[1:], grid.columns) - 1]
    done = np.full(first.shape, np.nan)
    done[:, 1:] = np.where(np.diff(blocks.steps) == 1, last[:, :-1], np.nan)
    ready = blocks.ended[rows] - blocks.took[rows]
    for name in ("input", "h2d"):
        if name in blocks.parts:
            ready = ready + np.nan_to_num(blocks.parts[name][rows])
    lag = first - ready - forward[rows]
    after = sum(np.nan_to_num(blocks.parts[name][rows]) for name in ("backward", "optimizer") if name in blocks.parts)
    unnamed = np.maximum(blocks.ended[rows] - after - forward[rows] - ready, 0.0)
    return _Marks(done, ready, forward[rows], lag, first - done, unnamed)


def timed(blocks: Blocks, row: int, columns: Array) -> Blocks:
    """The blocks with the GPU's forward times filled in for those of the steps ``columns`` (indices) without any event.

    Only where none was timed on this rank and its GPU had work throughout. Besides forward, the time between two
    steps' collectives holds what surrounds it: as much as in other steps of the rank. Its growth counts as forward,
    but for copies. Where these were not timed either, it is forward if copies would have to be many times as long as
    ever; more copies would be more to compute.
    """
    gpu = blocks.parts.get("gpu_forward")
    if gpu is None or not np.isnan(gpu[row, columns]).all():
        return blocks
    rows, marks = with_peers(row, len(blocks.ranks), _SAMPLE), _beside(blocks, row)
    if marks is None:
        return blocks
    own, copies = np.where(_busy(marks), marks.span, np.nan), blocks.parts.get("h2d")
    if copies is not None:
        copied = copies[rows]
        own = own - np.nan_to_num(np.where(np.isnan(copied), median(copied, axis=1)[:, None], copied))
    forward = (own - median(own - gpu[rows], axis=1)[:, None])[:, columns]
    unknown = copies is not None and bool(np.isnan(copies[row, columns]).any())
    if unknown and not average(_beyond_peers(forward)) > _NO_COPY * float(np.nanmax(copied, initial=0.0)):
        return blocks
    filled = gpu.copy()
    where = np.ix_(rows, columns)
    filled[where] = np.where(np.isnan(gpu[where]), forward, gpu[where])
    return replace(blocks, parts=blocks.parts | {"gpu_forward": filled})


#: Phases on the GPU that hold what it idled.
_TIMED = ("gpu_forward", "gpu_backward", "gpu_optimizer")


def apart(blocks: Blocks, row: int, columns: Array, settings: Settings) -> tuple[float, Blocks | None]:
    """Ns a step, over the steps ``columns`` (indices), by which a rank's GPU takes longer as its host launches,
    and the blocks without that: ``None`` where that is most of the steps that were timed.
    """
    forward = blocks.parts.get("gpu_forward")
    known = columns[~np.isnan(forward[row, columns])] if forward is not None else columns
    if not len(known):
        return idled(blocks, row, columns), blocks
    told = hand_to_mouth(blocks, settings, slice(row, row + 1))
    if forward is None or told is None or not told[0, columns].any():
        return 0.0, blocks
    fed = columns[told[0, columns]]
    others = np.delete(np.arange(len(blocks.ranks)), row)
    longer = float(np.nansum(forward[row, fed] - median(forward[np.ix_(others, fed)], axis=0))) / len(known)
    if 2 * len(fed) > len(known):
        return max(longer, idled(blocks, row, columns)), None
    parts = dict(blocks.parts)
    for name in (name for name in _TIMED if name in parts):
        parts[name] = parts[name].copy()
        parts[name][row, fed] = median(parts[name][np.ix_(others, fed)], axis=0)
    return longer, replace(blocks, parts=parts)


def idled(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step, over the steps ``columns`` (indices), for which a rank's GPU idled before the first collective beyond
    its typical peer's; 0 where nothing tells.

    Where it had caught up with its host by then, it idled for all that it came later by: what it had to do was done.
    Elsewhere it idled at least from the end of the step before until its host could launch more, but for the optimizer.
    """
    marks = _beside(blocks, row)
    if marks is None:
        return 0.0
    caught_up = _followed(marks.lag[:1], blocks)[0, columns]
    later = _beyond_peers(marks.span[:, columns])
    waited = _beyond_peers(np.maximum(marks.ready - marks.done, 0.0)[:, columns])
    return float(np.mean(np.nan_to_num(np.where(caught_up, np.fmax(later, waited), waited))))


def _beyond_peers(times: Floats) -> Floats:
    return np.asarray(times[0] - median(times[1:], axis=0))


def _beside(blocks: Blocks, row: int) -> _Marks | None:
    """The marks of a rank, first, and of its peers, of many a sample."""
    if blocks.joined is None or not blocks.joined.gpu_time:
        return None
    return _marks(blocks, with_peers(row, len(blocks.ranks), _SAMPLE))


def _busy(marks: _Marks) -> Array:
    """[R, S] in which steps a GPU surely had work from the last collective of the step before to the first of this one.

    It was still busy when its host could launch more, and when that launch was complete. If its queue was full and its
    host had to wait, it had more work left by then than a usual step has; a GPU that had run out has less.
    """
    launched = marks.ready + marks.unnamed + marks.forward
    left = marks.lag - marks.unnamed > float(median(marks.span)) + CLOCKS_NS
    more = marks.done > launched + CLOCKS_NS
    return np.asarray((marks.done > marks.ready + marks.unnamed + CLOCKS_NS) & (more | left))
