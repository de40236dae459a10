"""What each format makes its tables with: missing columns become *not measured*, never zero; one name an operation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from hindmost_judge.model import TABLES, UNMEASURED, Run, Table, empty, rows
from hindmost_judge.types import Array

#: What stands for "not measured" where -1 would be a value or does not fit.
_MISSING: dict[str, Any] = {"comm": 0, "flags": 0, "kind": "", "world_size": UNMEASURED}


def table(name: str, /, **columns: Any) -> Table:
    """A table of the model from equally long columns; a scalar fills its column, a missing one is not measured.

    Columns that the model does not have are kept for :mod:`combine`, which drops them when it has used them.
    """
    schema = TABLES[name]
    extra = {column: np.asarray(value) for column, value in columns.items() if column not in schema}
    length = max((len(value) for value in columns.values() if np.ndim(value) == 1), default=1)
    return {column: _column(column, dtype, columns.get(column), length) for column, dtype in schema.items()} | extra


def _column(name: str, dtype: Any, value: Any, length: int) -> Array:
    if value is None:
        value = _MISSING.get(name, "" if dtype is np.str_ else np.nan if dtype is np.float64 else UNMEASURED)
    if np.ndim(value) == 1:
        return np.asarray(value, dtype=dtype)
    return np.full(length, value, dtype=None if dtype is np.str_ else dtype)


def concatenate(name: str, tables: Iterable[Table]) -> Table:
    """One table of all rows, in order; the empty table of that name where there are none."""
    filled = [part for part in tables if rows(part)]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return empty(TABLES[name])
    return {column: np.concatenate([part[column] for part in filled]) for column in filled[0]}


def select(part: Table, index: Array) -> Table:
    """The rows that ``index`` (a mask or positions) names, in its order."""
    return {column: values[index] for column, values in part.items()}


def bounds(rank: Array, values: Array) -> tuple[Array, Array, Array]:
    """Ranks, and the least and the greatest value of each."""
    ranks, row = np.unique(rank, return_inverse=True)
    least = np.full(len(ranks), np.iinfo(np.int64).max)
    most = np.full(len(ranks), np.iinfo(np.int64).min)
    np.minimum.at(least, row, values)
    np.maximum.at(most, row, values)
    return ranks, least, most


def has_rows(run: Run, name: str) -> bool:
    """Whether a run says anything in the table of that name."""
    return rows(run.tables()[name]) > 0


_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|[\s-]+")
#: ``nccl:send 0->1`` and ``nccl:recv 1<-0`` have the two ranks in their name, too.
_BETWEEN = re.compile(r"\s+\d+\s*(->|<-)\s*\d+$")
_SAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "bcast": "broadcast",
    "sendrecv": "send_recv",
}


@lru_cache(maxsize=4096)
def operation(name: str) -> str:
    """``AllReduce``, ``nccl:all_reduce``, ``ALLREDUCE`` -> ``all_reduce``; an unknown name in the same spelling."""
    name = name.removeprefix("nccl:").removeprefix("gloo:").removeprefix("mpi:")
    name = _BETWEEN.sub("", name)
    name = name if name.isupper() else _WORD.sub("_", name)
    name = name.lower().strip("_ ").split(" ", 1)[0]
    return _SAME.get(name, name)


#: No operation and no step takes longer, no run lasts longer, and no job is larger: numbers beyond it are nonsense.
LONGEST_NS, FAR_NS, MOST_RANKS = 24 * 3600 * 10**9, 366 * 24 * 3600 * 10**9, 1 << 20
#: A whole number of 63 bits.
WHOLE = r"^(\d{1,18}|[1-8]\d{18})$"


def together(times: Array) -> Array:
    """Which times can be of the run that most of them are of."""
    return np.asarray(np.abs(times - int(np.median(times))) <= FAR_NS) if len(times) else np.zeros(0, bool)


def incomplete(count: int, file: str = "", of: str = "") -> list[str]:
    """The note on lines that are no whole ones; none where there are none."""
    return [f"{file}{count:,} incomplete line{'s' * (count > 1)}{of} left out."] if count else []
