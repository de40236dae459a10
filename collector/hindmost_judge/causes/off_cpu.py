"""How long a main thread was off the CPU without queueing for one: it slept, or something else blocked it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, peers_median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array, Floats

#: Share of its delay for which a main thread must have been off the CPU: at most a quarter is left for other causes.
MOST = 0.75


def between_collectives(blocks: Blocks) -> bool:
    """Whether main threads were looked at between their collectives, not in whole steps."""
    return "self_blocked" in blocks.parts


def busy(blocks: Blocks) -> Floats:
    """[R, S] ns of CPU that main threads used, where they were looked at."""
    return blocks.parts["self_cpu" if between_collectives(blocks) else "cpu"]


def of_step(blocks: Blocks, row: int, columns: Array) -> Floats:
    """[N] ns of each step that a main thread was off the CPU, without queueing, beyond its peers.

    NaN where unmeasured. If only whole steps were measured, it may have been off the CPU while it waited for the
    others: for as large a part of that wait as the peers, who do little else.
    """
    parts = blocks.parts
    if between_collectives(blocks):
        own = parts["self_blocked"][:, columns]
        return np.asarray(own[row] - median(np.delete(own, row, axis=0), axis=0))
    found = _in_steps(blocks, columns)
    if found is None:
        return np.full(len(columns), np.nan)
    off, inside, share = found
    shared = np.clip(median(np.delete(share, row)), 0.0, 1.0)  # NaN stays: then nothing is known
    return np.asarray(off[row] - shared * inside[row])


def of_whole_steps(blocks: Blocks) -> Floats:
    """[R, S] the same as ``of_step`` for every rank, where only whole steps were measured.

    Computed for all at once: one rank costs as much work as all of them."""
    found = _in_steps(blocks, np.arange(len(blocks.steps)))
    if found is None:
        return np.full((len(blocks.ranks), len(blocks.steps)), np.nan)
    off, inside, share = found
    return np.asarray(off - np.clip(peers_median(share[:, None]), 0.0, 1.0) * inside)


def _in_steps(blocks: Blocks, columns: Array) -> tuple[Floats, Floats, Floats] | None:
    """[R, N] ns off the CPU and [R, N] ns inside collectives, and [R] the one as a share of the other."""
    parts = blocks.parts
    if "runqueue" not in parts or "cpu" not in parts or blocks.took is None or "gpu_forward" in parts:
        return None
    off = (blocks.took - parts["cpu"] - parts["runqueue"])[:, columns]
    inside = (blocks.wait + blocks.transfer)[:, columns]
    return off, inside, np.asarray(median(off, axis=1) / median(inside, axis=1))


def computed(blocks: Blocks, row: int, columns: Array) -> Floats:
    """[N] ns of CPU that a process used in each step beyond its peers, but for what it spends on waiting as they do.

    NaN where unmeasured.
    """
    if "cpu" not in blocks.parts:
        return np.full(len(columns), np.nan)
    cpu, inside = blocks.parts["cpu"][:, columns], (blocks.wait + blocks.transfer)[:, columns]
    worked = blocks.own[:, columns] - np.nan_to_num(blocks.parts.get("input", np.zeros_like(blocks.own)))[:, columns]
    others = np.arange(len(cpu)) != row
    spent = median(median((cpu - worked)[others], axis=1) / median(inside[others], axis=1))
    used = cpu - np.clip(spent, 0.0, 1.0) * inside
    return np.asarray(used[row] - median(used[others], axis=0))
