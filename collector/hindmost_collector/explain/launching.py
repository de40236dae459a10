"""When hosts launched what their GPUs ran: whose GPU is fed from hand to mouth.

A recording that has when a collective was enqueued tells how long its kernel waited on the GPU. Where that is next to
nothing the GPU had caught up with its host: events around forward then time the launching, not the computing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats
    from hindmost_collector.settings import Settings
    from hindmost_collector.timeline.blocks import Blocks

#: A GPU has caught up with its host where a kernel waits for no longer than this share of a step beyond the shortest.
_CAUGHT_UP = 0.05
#: GPUs' clocks were 0.5 to 3 ms off their host's: a kernel that seems to wait for longer than that did wait.
_CLOCKS_NS = 4e6


def hand_to_mouth(blocks: Blocks, settings: Settings, rows: slice = slice(None)) -> Array | None:
    """[R, S] in which steps a GPU of these ranks ran its forward as its host launched it; ``None``: nothing tells."""
    grid, gpu = blocks.joined, blocks.parts.get("gpu_forward")
    if grid is None or not grid.gpu_time or gpu is None or blocks.ended is None or blocks.took is None:
        return None
    enqueue, start = grid.enqueue[rows], grid.start[rows]
    if np.isnan(enqueue).all() or np.isnan(start).all():
        return None
    enqueue, start = enqueue[:, blocks.starts], start[:, blocks.starts]
    waited = start - enqueue  # the GPU's clock less the host's included
    began = blocks.ended[rows] - blocks.took[rows]
    if "input" in blocks.parts:
        began = began + np.nan_to_num(blocks.parts["input"][rows])
    host = enqueue - began
    caught_up = (_beyond(waited) <= _CAUGHT_UP * blocks.step_ns) & (waited <= _CLOCKS_NS)
    return np.asarray(caught_up & (host >= settings.host_bound_in_step * gpu[rows]))


def _beyond(waited: Floats) -> Floats:
    return np.asarray(waited - np.fmin.reduce(waited, axis=1)[:, None])
