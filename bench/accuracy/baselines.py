"""Three simpler rules on the same recordings, as other tools apply them. Each names a set of ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hindmost_judge.model import Run

#: How far above the typical rank the longest has to be, to be named.
MARGIN = 0.01
#: nvidia-resiliency-ext: a rank below this score is a straggler.
NVRX_SCORE = 0.75
#: Sections that a user would mark, and the GPU kernels that it would time.
SECTIONS = ("input_ns", "h2d_ns", "forward_ns", "gc_ns")
KERNELS = ("gpu_forward_ns", "gpu_optimizer_ns")


def _medians(run: Run, table: str, column: str) -> np.ndarray[Any, Any]:
    """[R] median of a column per rank, NaN where unmeasured; the first steps left out."""
    rows = run.tables()[table]
    kept = (rows["step"] >= 5) & (rows[column] >= 0)
    rank, value = rows["rank"][kept], rows[column][kept].astype(float)
    order = np.lexsort((value, rank))
    rank, value = rank[order], value[order]
    found, first, count = np.unique(rank, return_index=True, return_counts=True)
    out = np.full(len(run.ranks["rank"]), np.nan)
    out[found] = value[first + count // 2]
    return out


def longest_step(run: Run) -> set[int]:
    """The rank with the longest typical step."""
    return _longest(_medians(run, "steps", "duration_ns"))


def longest_collective(run: Run) -> set[int]:
    """The rank with the longest typical collective: the rule of tools that equate long with slow."""
    return _longest(_medians(run, "collectives", "duration_ns"))


def _longest(values: np.ndarray[Any, Any]) -> set[int]:
    top = int(np.nanargmax(values))
    return {top} if values[top] > (1 + MARGIN) * np.nanmedian(values) else set()


def nvrx(run: Run) -> set[int]:
    """Ranks that score below 0.75: the best rank's typical time over their own, of a section or of all kernels."""
    named: set[int] = set()
    for column in SECTIONS:
        values = _medians(run, "steps", column)
        if np.isfinite(values).any() and np.nanmin(values) > 0:
            named |= set(np.flatnonzero(np.nanmin(values) / values < NVRX_SCORE).tolist())
    kernels = np.stack([_medians(run, "steps", column) for column in KERNELS])
    score = (kernels.min(axis=1, keepdims=True) / kernels * kernels).sum(axis=0) / kernels.sum(axis=0)
    return named | set(np.flatnonzero(score < NVRX_SCORE).tolist())


BASELINES: dict[str, Callable[[Run], set[int]]] = {
    "longest step": longest_step,
    "longest collective": longest_collective,
    "NVRx rule (score < 0.75)": nvrx,
}
