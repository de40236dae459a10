"""Blocks of a pipeline: its own time and excess stretch by stretch, between sends, receives and collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.costs import bubbles
from hindmost_collector.timeline import roles

if TYPE_CHECKING:
    from hindmost_collector.align import Floats, Grid
    from hindmost_collector.costs.bubbles import Bubbles
    from hindmost_collector.timeline.blocks import Blocks
    from hindmost_collector.timeline.schedule import Schedule


def left(before: Grid) -> Floats:
    """[R] when each rank's last collective of these ended; NaN where there was none."""
    if before.columns == 0:
        return np.full(len(before.ranks), np.nan)
    return np.asarray(np.fmax.reduce(before.start + before.duration, axis=1))


def of(found: Blocks, order: Schedule | None) -> Blocks:
    """With each stretch between two operations on its own, where ranks keep one order of them; else as it was."""
    built = bubbles.build(order, found.role, len(found.steps)) if order is not None else None
    if built is None:
        return found
    own = built.own(len(found.ranks))
    return by(replace(found, own=own, excess=roles.beyond_peers(own, found.role)), built)


def by(found: Blocks, built: Bubbles) -> Blocks:
    """With stretches and what GPUs compute as these dependencies have them."""
    segments, segment_step = built.segments(len(found.ranks))
    on_gpu = found.joined is not None and found.joined.gpu_time
    return replace(
        found,
        segments=segments,
        segment_step=segment_step,
        pipeline=built,
        computing=built.computing(len(found.ranks)) if on_gpu else None,
    )
