"""How much work is in a batch: tokens where it has ``input_ids``, else samples."""

from __future__ import annotations

import math
from typing import Any

#: How deep a batch is searched for its first tensor.
DEPTH = 3
#: Batches that are not searched, after many that had none.
MOST_SKIPPED = 63


class Batches:
    """Remembers where in a loader's batches the tensor stands whose shape tells how much work they are."""

    def __init__(self) -> None:
        self._kind: type | None = None
        self._way: tuple[Any, ...] = ()
        self._skip = self._fruitless = 0

    def work(self, batch: Any) -> int:
        """Tokens or samples in a batch; 0 unknown."""
        if type(batch) is not self._kind and not self._search(batch):
            return 0
        try:
            found = batch
            for key in self._way:
                found = found[key]
            shape = found.shape
            return math.prod(shape) if "input_ids" in self._way else int(shape[0])
        except (AttributeError, IndexError, KeyError, TypeError):  # unlike the last: it is looked at anew
            self._kind = None
            return 0

    def _search(self, batch: Any) -> bool:
        """Whether a tensor was found. Where none was again and again, few batches are searched: that takes a while."""
        if self._skip:
            self._skip -= 1
            return False
        try:
            way = way_to_shape(batch)
        except (AttributeError, IndexError, KeyError, TypeError):
            way = None
        if way is None:
            self._skip, self._fruitless = self._fruitless, (2 * self._fruitless + 1) & MOST_SKIPPED
            return False
        self._kind, self._way = type(batch), way
        self._skip = self._fruitless = 0
        return True


def way_to_shape(batch: Any, depth: int = DEPTH) -> tuple[Any, ...] | None:
    """The keys and indices that lead to ``input_ids``, or else to the first tensor that has a dimension."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return () if len(shape) else None
    if depth == 0:
        return None
    keys: Any = ()
    if isinstance(batch, (list, tuple)):
        keys = range(min(len(batch), 16))
    elif hasattr(batch, "keys"):
        keys = ["input_ids"] if hasattr(batch.get("input_ids"), "shape") else list(batch.keys())[:16]
    ways = ((key, way_to_shape(batch[key], depth - 1)) for key in keys)
    return next(((key, *way) for key, way in ways if way is not None), None)
