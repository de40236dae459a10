"""When hosts launched what their GPUs ran: whose GPU is fed from hand to mouth.

A recording that has when a collective was enqueued tells how long its kernel waited on the GPU. Where that is next to
nothing the GPU had caught up with its host: events around forward then time the launching, not the computing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings

#: A GPU has caught up with its host where a kernel waits for no longer than this share of a step beyond the shortest.
_CAUGHT_UP = 0.05
#: GPUs' clocks were 0.5 to 3 ms off their host's: a kernel that seems to wait for longer than that did wait.
_CLOCKS_NS = 4e6


def queued(blocks: Blocks) -> Floats | None:
    """[R, S] ns that a step's first collective waited on the GPU after its launch, GPU's clock less host's included."""
    grid = blocks.joined
    if grid is None or np.isnan(grid.enqueue).all() or not grid.gpu_time or np.isnan(grid.start).all():
        return None
    return np.asarray((grid.start - grid.enqueue)[:, blocks.starts])


def hand_to_mouth(blocks: Blocks, settings: Settings) -> Array | None:
    """[R, S] in which steps a GPU ran its forward as its host launched it; ``None`` where nothing tells."""
    waited, gpu = queued(blocks), blocks.parts.get("gpu_forward")
    if waited is None or gpu is None or blocks.ended is None or blocks.took is None or blocks.joined is None:
        return None
    began = blocks.ended - blocks.took + np.nan_to_num(blocks.parts.get("input", 0.0))
    host = blocks.joined.enqueue[:, blocks.starts] - began
    caught_up = (_beyond(waited) <= _CAUGHT_UP * blocks.step_ns) & (waited <= _CLOCKS_NS)
    return np.asarray(caught_up & (host >= settings.host_bound_in_step * gpu))


def _beyond(waited: Floats) -> Floats:
    return np.asarray(waited - np.fmin.reduce(waited, axis=1)[:, None])
