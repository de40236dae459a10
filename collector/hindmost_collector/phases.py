"""The steps table as blocks of [rank x step]: marks, phases, work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.model import PHASES, Table, rows

if TYPE_CHECKING:
    from hindmost_collector.align import Floats, Ints

#: Phases in which a rank may sit waiting for others without saying so: no sign of its own slowness.
_MAY_WAIT = {"backward", "sync", "gpu_backward"}
#: Phases that are not a share of the step's time but a property of it.
_NOT_TIME = {"cpu", "runqueue"}


def training(table: Table) -> Table:
    """Steps that train: evaluation is a phase of its own and nobody's stall."""
    if rows(table) == 0:
        return table
    mask = (table["kind"] != "eval") & (table["duration_ns"] > 0)
    return {name: column[mask] for name, column in table.items()}


def pivot(table: Table, ranks: Ints, numbers: Ints, name: str) -> Floats | None:
    """[R, S] of one column of the steps; ``None`` where no rank measured it."""
    if rows(table) == 0 or name not in table:
        return None
    row = np.searchsorted(ranks, table["rank"])
    column = np.searchsorted(numbers, table["step"])
    row, column = np.minimum(row, len(ranks) - 1), np.minimum(column, len(numbers) - 1)
    held = (ranks[row] == table["rank"]) & (numbers[column] == table["step"]) & (table[name] >= 0)
    if not held.any():
        return None
    block = np.full((len(ranks), len(numbers)), np.nan)
    block[row[held], column[held]] = table[name][held]
    return block


def phase_blocks(table: Table, ranks: Ints, numbers: Ints) -> dict[str, Floats]:
    """Every measured phase as [R, S]."""
    blocks = {name: pivot(table, ranks, numbers, f"{name}_ns") for name in PHASES}
    return {name: block for name, block in blocks.items() if block is not None}


def work(table: Table, ranks: Ints, numbers: Ints) -> Floats | None:
    """[R, S] samples or tokens; a step that counted none has not been counted."""
    found = pivot(table, ranks, numbers, "work")
    return None if found is None or not (found > 0).any() else np.where(found > 0, found, np.nan)


def busy(parts: dict[str, Floats], duration: Floats) -> Floats:
    """[R, S] ns of a step in which a rank surely did not wait for others.

    Where the GPU was timed its phases and its idle time count, and the host's do not: what the host does late while the
    GPU still has work queued delays nobody.
    """
    on_gpu = [block for name, block in parts.items() if name.startswith("gpu_")]
    if on_gpu:
        idle = np.maximum(duration - np.sum([np.nan_to_num(block) for block in on_gpu], axis=0), 0.0)
        busy = [block for name, block in parts.items() if name.startswith("gpu_") and name not in _MAY_WAIT]
        return np.asarray(np.sum([np.nan_to_num(block) for block in busy], axis=0) + idle)
    busy = [block for name, block in parts.items() if name not in _MAY_WAIT | _NOT_TIME]
    return (
        np.asarray(np.sum([np.nan_to_num(block) for block in busy], axis=0)) if busy else np.full_like(duration, np.nan)
    )
