"""Several ranks that stall now and then, most of the steps or most of their peers among them.

Each is either late or on time, and hardly ever between, many times apart; those who are neither are the calm ones that
it is set against. Where half of its peers or more stall, that these are calm and not ahead shows in what grows then:
the steps, or a part of the rank's own work.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.detect import stall_noise_test
from hindmost_judge.stats.robust import MAD_TO_SIGMA, median, or_zero
from hindmost_judge.timeline import small_cohorts

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats

#: In a job of more ranks the median is the baseline: a few stalling ranks do not move it. With more stalling ranks than
#: the second number no set is looked for.
_CROWD, _MOST = 256, 64
#: Share of `stall_effect` that is enough: a GPU's stall shows half or less of itself as delay where collectives overlap
#: with backward.
SMALL = 0.3
#: A rank's late and on-time steps must be apart by this many times the scatter of either.
_SIGMAS = 6.0
#: Most steps that a stall, or the time between two, lasts on average; with more, it is a slow segment.
_LASTS = 8
#: Stalls are capped at this many typical ones, before late steps are separated from the others.
_LONGEST = 2.0
#: Divisor of a cohort's size: at least that many ranks must be calm, more than those ahead by chance that the baseline
#: leaves out.
_CALM = 4
#: In stalls, steps or a part of the rank's self time must be longer by this share of its delay.
_GROWS = 0.5
#: Steps with and without a stall needed to test that.
_ENOUGH = 10


def find(blocks: Blocks, settings: Settings) -> dict[int, Array]:
    """Row to [S] in which steps it stalls, of all that do; empty where there is any doubt who does."""
    least = SMALL * settings.stall_effect * blocks.step_ns
    late = or_zero(blocks.excess)
    late = small_cohorts.behind(late, blocks.role) if len(late) <= _CROWD else late
    rows = np.flatnonzero(np.count_nonzero(late >= least, axis=1) >= settings.min_stalls)
    if len(rows) > _MOST:
        return {}
    splits = {row: _split(late[row]) for row in rows.tolist()}
    found = {row: held for row, (held, size) in splits.items() if _stalls(late[row], held, size, least, settings)}
    if not found or not _leave_calm(blocks, found):
        return {}
    if not _owned(late, found, min(splits[row][1] for row in found), settings):
        return {}
    sizes = {row: splits[row][1] for row in found}
    return found if all(_grows(blocks, row, found, sizes) for row in most_of_peers(blocks, list(found))) else {}


#: If this share of a cohort stalls, a further sign must show that these are late, and not the others ahead.
_HALF = 0.5


def most_of_peers(blocks: Blocks, rows: list[int], share: float = _HALF) -> list[int]:
    """The rows whose cohort has at least that share of its ranks among them."""
    stall = np.isin(np.arange(len(blocks.role)), rows)
    return [row for row in rows if np.mean(stall[blocks.role == blocks.role[row]]) >= share]


def _split(late: Floats) -> tuple[Array, float]:
    """[S] which steps are the late ones, where a rank has two kinds, and by how much: Otsu's split."""
    values = np.minimum(late, _LONGEST * np.percentile(late, 90))
    ordered = np.sort(values)
    count = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    low, high = sums[:-1] / count, (sums[-1] - sums[:-1]) / (len(ordered) - count)
    best = int(np.argmax(count * (len(ordered) - count) * (high - low) ** 2))
    held = values > (ordered[best] + ordered[best + 1]) / 2
    if not held.any() or held.all():
        return np.zeros(len(late), bool), 0.0
    return held, float(median(late[held]) - median(late[~held]))


def _stalls(late: Floats, held: Array, size: float, least: float, settings: Settings) -> bool:
    """Whether a rank's steps [S] are of two kinds, often in turn."""
    fewer = min(int(held.sum()), int((~held).sum()))
    if size < least or fewer < settings.min_stalls:
        return False
    on_time = float(median(late[~held]))
    scatter = max(MAD_TO_SIGMA * float(median(np.abs(late[one] - median(late[one])))) for one in (held, ~held))
    times = stall_noise_test.episodes(held[None])[0]
    often = times >= settings.min_stalls and times * _LASTS >= fewer
    return bool(often and size >= _SIGMAS * scatter and stall_noise_test.apart(late - on_time, size, fewer))


def _leave_calm(blocks: Blocks, found: dict[int, Array]) -> bool:
    """Whether each cohort with such ranks keeps enough calm ones, and at least one of all ranks is left."""
    stall = np.isin(np.arange(len(blocks.role)), list(found))
    for role in np.unique(blocks.role[stall]):
        of_role = blocks.role == role
        if np.sum(of_role & ~stall) < 1 + (of_role.sum() - 1) // _CALM:
            return False
    return True


def _owned(late: Floats, found: dict[int, Array], size: float, settings: Settings) -> bool:
    """Whether these have nearly all stalls of the job, each by far more than the rest, as chance would not have it."""
    rest = np.setdiff1d(np.arange(len(late)), list(found))
    usual = np.percentile(late[rest], 25, axis=1, keepdims=True)  # who is late throughout stalls no more than others
    others = stall_noise_test.episodes(late[rest] - usual >= size / 2)
    own = np.array([stall_noise_test.episodes(held[None])[0] for held in found.values()])
    total, count = int(own.sum() + others.sum()), len(found)
    alone = own.sum() >= settings.min_stall_share * total
    return alone and not stall_noise_test.by_chance(int(own.sum()), total, count / len(late), comb(len(late), count))


def _grows(blocks: Blocks, row: int, found: dict[int, Array], sizes: dict[int, float]) -> bool:
    """Whether steps in which a rank stalls are longer than steps without any stall, or a part of its own work is."""
    held, least = found[row], _GROWS * sizes[row]
    calm = ~np.logical_or.reduce(list(found.values()))
    if _longer(blocks.period, held, calm) >= least:
        return True
    return any(_longer(part[row], held, ~held) >= least for part in blocks.parts.values())


def _longer(values: Floats, inside: Array, outside: Array) -> float:
    """By how much what is measured inside is longer; nothing where that is too little."""
    during, else_ = (values[held][~np.isnan(values[held])] for held in (inside, outside))
    if min(len(during), len(else_)) < _ENOUGH:
        return 0.0
    return float(median(during) - median(else_))
