"""Transfers that take longer than they did, in all groups alike: the shared network is slow, and no rank is late.

``slow_link`` finds the slow one of several groups by its sisters. For a single group only its own past can show it: the
same messages took less before or, if the slowdown began with the run, take less since. A message is compared with
messages of its own kind and size, so that growing sizes and another mix of collectives are no change. The verdict
counts only what the steps became longer by: transfers that overlap with computing may take longer without delay, and
take longer where computing does.

A running job is judged by its last minutes, and its beginning leaves that window. What was found then is kept, and
today's transfers are compared with what they took before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks, SlowNetwork
from hindmost_judge.causes import cpu_wait
from hindmost_judge.detect import Case
from hindmost_judge.detect.nested_segments import lowest_level, main_segment, only_inside
from hindmost_judge.detect.slow_link import lengthened, others
from hindmost_judge.model import Past, Run
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import block_medians, median, or_zero
from hindmost_judge.timeline.matching import shortest
from hindmost_judge.types import Floats, Ints
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.slow_ranks import of_network
from hindmost_judge.whatif import savings

#: Difference in operations per step; a step is cut off at the ends, and a larger one is other work (of a step's
#: operations).
_NETWORK_SAME_OPERATIONS = 0.1
#: Share of the transfer time in message sizes seen often enough to know their usual time (of the transfers' time).
_NETWORK_COMPARED = 0.5


def verdicts(case: Case) -> list[Verdict]:
    """The verdict on the network that became slow for all, in steps in which no verdict on ranks begins or ends."""
    if case.has("slow_link") or case.shared is not None or case.has("desync"):
        return []  # what else makes waits differ does so to transfers
    blocks, slow = case.blocks, case.slow
    found = find(case.run, replace(blocks, period=savings.residual_period(blocks, slow)), case.settings, case.named)
    if found is None or not savings.began_apart(blocks, slow, found.first, found.stop):
        return []
    return of_network(found, blocks, slow)


def find(run: Run, blocks: Blocks, settings: Settings, named: Collection[int] = ()) -> SlowNetwork | None:
    """A segment of steps with slow transfers that is not all of the run; ``None`` where there is none.

    Ranks that are ``named`` as late are known to be, and their cost is no longer in any step's ``period``.
    """
    if blocks.joined is None or len(blocks.steps) < 2 * settings.min_steps:
        return None
    still = _goes_on(run, blocks, run.past, settings) if run.past is not None else None
    found = still or _began(run, blocks, settings)
    if found is None or rank_is_late(blocks, found, named):
        return None
    everywhere, longer = np.arange(len(blocks.ranks)), found.took - found.usual
    return None if cpu_wait.explains_transfers(blocks, everywhere, found.first, found.stop, longer) else found


#: If one rank's delay is this share of the cost of slow transfers, something besides the network is involved.
_LATE = 0.5


def rank_is_late(blocks: Blocks, found: SlowNetwork, named: Collection[int]) -> bool:
    """Whether some rank is late in these steps by so much that it, or what makes it late, may be what holds all up.

    Too unsure for a name as it may be: CPUs that others use make ranks late and transfers slow alike.
    """
    unnamed = ~np.isin(blocks.ranks, list(named))
    late = median(blocks.delay[unnamed, found.first : found.stop], axis=1)
    return bool(np.nanmax(late, initial=0.0) >= _LATE * found.cost)


def _goes_on(run: Run, blocks: Blocks, past: Past, settings: Settings) -> SlowNetwork | None:
    """What began in a window that is over, as far as it lasts: half as slow as it was is slow, as everywhere."""
    actual, _ = _compared(blocks, settings)
    beyond = actual / past.usual - 1
    first, stop = main_segment(beyond, settings.network_longer - 1, settings)
    level = float(np.median(beyond[first:stop]))
    (operations,) = _operations(run, blocks, (first, stop))
    if stop - first < settings.min_steps or level < max(settings.network_longer - 1, past.longer / 2):
        return None
    if abs(operations - past.operations) > _NETWORK_SAME_OPERATIONS * past.operations:
        return None
    took = past.usual * (1 + level)
    cost = min(float(median(blocks.period[first:stop])) - past.period, took - past.usual)
    if cost < settings.min_effect * blocks.step_ns:
        return None
    return SlowNetwork(first, stop, took, past.usual, cost, past)


def _began(run: Run, blocks: Blocks, settings: Settings) -> SlowNetwork | None:
    if not _may_differ(blocks, settings):
        return None
    actual, ratio = _compared(blocks, settings)
    found = _slow_segment(ratio, settings)
    if found is None:
        return None
    first, stop, level = found
    early = first < settings.min_steps
    inside, outside = _operations(run, blocks, (first, stop), (stop, len(blocks.steps)) if early else (0, first))
    if abs(inside - outside) > _NETWORK_SAME_OPERATIONS * outside:  # others than those compared hold these up
        return None
    took = float(median(actual[first:stop]))
    delay = took * level / (1 + level)
    cost = lengthened(blocks, first, stop, delay, settings)
    if cost < settings.min_effect * blocks.step_ns:
        return None
    usual = float(median(blocks.period[others(first, stop, len(blocks.steps), settings)]))
    past = Past(int(blocks.steps[first]), took - delay, usual, level, outside)
    return SlowNetwork(first, stop, took, took - delay, cost, past, early)


def _may_differ(blocks: Blocks, settings: Settings) -> bool:
    """Whether a rank's transfers differ from time to time by enough to look closer, which costs more."""
    if np.isnan(blocks.period).mean() > 1 - settings.min_consistency:
        return False
    levels = block_medians(blocks.transfer[:1])[0]
    return bool(levels.max() - levels.min() >= settings.min_effect * blocks.step_ns)


def _compared(blocks: Blocks, settings: Settings) -> tuple[Floats, Floats]:
    """[S] ns of transfers that can be compared, and their ratio to what such messages take over the run; NaN where too
    few of a step can be."""
    joined = blocks.joined
    assert joined is not None  # noqa: S101 - find() has looked
    took = _transfers(blocks)
    _, kind = np.unique(2 * joined.token + joined.gathers, return_inverse=True)
    seen, usual = _levels(took, kind)
    often = (seen >= settings.min_steps)[kind]
    actual = np.add.reduceat(np.where(often, took, 0.0), blocks.starts)
    expected = np.add.reduceat(np.where(often, usual[kind], 0.0), blocks.starts)
    tells = (expected > 0) & (actual >= _NETWORK_COMPARED * np.add.reduceat(took, blocks.starts))
    return actual, np.where(tells, actual / np.where(tells, expected, 1.0), np.nan)


def _transfers(blocks: Blocks) -> Floats:
    """[K] ns that each collective took in the typical group."""
    assert blocks.joined is not None  # noqa: S101 - find() has looked
    ends = [np.unique(column, return_index=True)[1] for column in blocks.group.T]
    least = shortest(blocks.joined)[np.unique(np.concatenate(ends))]
    return or_zero(median(least, axis=0))


def _levels(took: Floats, kind: Ints) -> tuple[Ints, Floats]:
    """The number of messages of each kind, and their median."""
    ordered = took[np.lexsort((took, kind))]
    count = np.bincount(kind)
    first = np.cumsum(count) - count
    return count, (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2


def _slow_segment(ratio: Floats, settings: Settings) -> tuple[int, int, float] | None:
    """[first, stop) in which transfers take persistently longer than in all steps before, and by what share.

    Compared with the steps after it where few come before."""
    if np.isnan(ratio).any():
        return None
    usual = lowest_level(ratio, settings.network_longer - 1, settings)
    if usual is None:
        return None
    beyond = ratio / usual - 1
    first, stop = main_segment(beyond, settings.network_longer - 1, settings)
    outside, part = beyond[others(first, stop, len(beyond), settings)], beyond[first:stop]
    needed = settings.min_steps if first >= settings.min_steps else settings.recovered_steps  # a start is slow, too
    if len(outside) < settings.min_steps or len(part) < needed:
        return None
    longer = only_inside(part, outside, settings.network_longer - 1, settings)
    return (first, stop, float(np.median(part))) if longer else None


def _operations(run: Run, blocks: Blocks, *spans: tuple[int, int]) -> list[float]:
    """How many operations of any kind a step has in each of these segments of steps [first, stop) by index."""
    assert blocks.joined is not None  # noqa: S101 - find() has looked
    edges = np.array(spans)
    columns = np.append(blocks.starts, -1)[edges]
    start = np.sort(run.collectives["start_ns"][run.collectives["rank"] == blocks.ranks[0]])
    count = np.diff(np.searchsorted(start, blocks.joined.start[0, columns]), axis=1)[:, 0]
    return [float(one) for one in count / np.diff(edges, axis=1)[:, 0]]
