"""Whether a GPU's queue is empty when its host ends a step: what a host has launched, and what of that still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats


def feeds(blocks: Blocks, row: int, settings: Settings) -> bool:
    """Whether a rank's GPU waits for its host to launch work, as far as is known: nothing is queued at a step's end."""
    if blocks.ended is None or blocks.joined is None or not blocks.step_ns > 0:
        return False
    queued, launching = float(median(queued_share(blocks)[row])), float(median(launching_share(blocks)[row]))
    return queued <= settings.host_bound_queued and launching >= settings.host_bound_launching


def queued_share(blocks: Blocks) -> Floats:
    """[R, S] share of the step for which a GPU still ran the step's collectives when its host had ended the step."""
    assert blocks.joined is not None  # noqa: S101 - find() has looked
    assert blocks.ended is not None  # noqa: S101
    stop = blocks.joined.start + blocks.joined.duration
    last = np.append(blocks.starts[1:], blocks.joined.columns) - 1
    return np.asarray((stop[:, last] - blocks.ended) / blocks.step_ns)


def launching_share(blocks: Blocks) -> Floats:
    """[R, S] share of the step that a host spent in it and not in its input; of its own where that took longer than
    the job's, for hosts are steps ahead of their GPUs."""
    assert blocks.took is not None  # noqa: S101 - it comes with ``ended``
    launching = blocks.took - np.nan_to_num(blocks.parts.get("input", 0.0))
    return np.asarray(launching / np.fmax(blocks.period, blocks.took))
