"""Samples as they arrive: there are thousands of blocks a second, and few are looked at, so each is little more than
the bytes that it came in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from hindmost_collector.ingest.packed import eights, first

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


class Origin:
    """One schema of one node. There is one object of each, so that blocks are compared without reading them."""

    __slots__ = ("__weakref__", "key", "node", "schema")

    def __init__(self, node: str, schema: int) -> None:
        """Use :func:`origin`."""
        self.node, self.schema, self.key = node, schema, (node, schema)


_origins: WeakValueDictionary[tuple[str, int], Origin] = WeakValueDictionary()


def origin(node: str, schema: int) -> Origin:
    """The one of that name."""
    found = _origins.get((node, schema))
    if found is None:
        found = _origins[node, schema] = Origin(node, schema)
    return found


class MetricRows:
    """Samples of one schema of one node, kept as they came.

    ``last_ns`` is the job time of the newest; ``offset`` is what makes job times of the node's; ``ticks`` and ``size``
    are how many rows and values there are.
    """

    __slots__ = ("last_ns", "node_times", "offset", "origin", "raw")

    def __init__(self, origin: Origin, node_times: bytes, offset: int, raw: bytes, last_ns: int) -> None:
        self.origin, self.node_times, self.offset, self.raw, self.last_ns = origin, node_times, offset, raw, last_ns

    @classmethod
    def of(cls, node: str, schema: int, times: Array, values: Array) -> MetricRows:
        """From arrays: ``times`` (T,) job clock ns, ``values`` (T, S)."""
        packed = times.astype(np.int64).tobytes()
        return cls(origin(node, schema), packed, 0, values.astype(np.float64).tobytes(), first(packed[-8:]))

    @property
    def node(self) -> str:
        """The node of these samples."""
        return self.origin.node

    @property
    def schema(self) -> int:
        """What they are of."""
        return self.origin.schema

    @property
    def ticks(self) -> int:
        """How many rows there are."""
        return len(self.node_times) // 8

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.raw) // 8

    @property
    def bytes(self) -> int:
        """Memory that its numbers take."""
        return len(self.node_times) + len(self.raw)

    @property
    def times(self) -> Array:
        """(T,) job clock ns."""
        return eights(self.node_times) + self.offset

    @property
    def values(self) -> Array:
        """(T, S), not to be written to."""
        return eights(self.raw, np.float64).reshape(self.ticks, self.size // self.ticks)
