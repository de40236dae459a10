"""Metrics of nodes, processes, GPUs and agents, as their agents name them, with the node as a label."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_collector.exposition import Family, labelled

if TYPE_CHECKING:
    from hindmost_collector.decode import MetricRows
    from hindmost_collector.definitions import Definitions

Array = np.ndarray[Any, Any]


class NodeMetrics:
    """The newest value of every series: one vector, into which each block writes its places at once."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._families: dict[str, tuple[Family, list[int]]] = {}
        self._values: Array = np.full(1024, np.nan)
        self._times: dict[tuple[str, int], int] = {}
        self._places: dict[tuple[str, int], Array] = {}
        self._series: dict[tuple[str, str, str], int] = {}
        self._used = 0

    def add(self, block: MetricRows) -> None:
        """Take the newest row of a block."""
        key = (block.node, block.schema)
        newest = int(block.times[-1])
        if newest < self._times.get(key, newest):
            return  # replayed from a spool
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = self._place(block.node, block.schema)
        self._times[key] = newest
        self._values[places] = block.values[-1]

    def _place(self, node: str, schema: int) -> Array:
        places = []
        for series in self._definitions.schemas[schema].series:
            identity = (node, series.name, series.labels)
            place = self._series.get(identity)
            if place is None:
                place = self._series[identity] = self._used
                self._used += 1
                kind = "counter" if series.counter else "gauge"
                family, members = self._families.setdefault(
                    series.name, (Family(series.name, kind, series.help or "As reported by the agent."), [])
                )
                family.prefixes.append(labelled(series.name, {"node": node, **json.loads(series.labels)}))
                members.append(place)
            places.append(place)
        while self._used > len(self._values):
            self._values = np.concatenate([self._values, np.full(len(self._values), np.nan)])
        return np.array(places, dtype=np.int64)

    def expire(self, older_than_ns: int) -> None:
        """Drop the values of blocks last seen before job time ``older_than_ns``: an agent that is gone has no value."""
        for key in [key for key, seen in self._times.items() if seen < older_than_ns]:
            self._values[self._places[key]] = np.nan
            del self._times[key]

    def text(self) -> str:
        """All families."""
        values = self._values
        return "".join(family.lines(values[members].tolist()) for family, members in list(self._families.values()))
