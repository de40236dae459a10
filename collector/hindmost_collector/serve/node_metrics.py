"""Metrics of nodes, processes, GPUs and agents, as their agents name them, with the node as a label."""

from __future__ import annotations

import json
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from hindmost_proto.exposition import escaped

from hindmost_collector.serve.exposition import Family, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hindmost_collector.ingest.columns import MetricRows, Origin
    from hindmost_collector.ingest.definitions import Definitions, Schema

Array = np.ndarray[Any, Any]

_ORIGIN = attrgetter("origin")


class _Newest(NamedTuple):
    """The newest row of one schema of one node."""

    time_ns: int
    schema: Schema
    values: Array


class NodeMetrics:
    """The newest value of every series. Adding a block costs next to nothing; text is made only for a scrape."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._newest: dict[Origin, MetricRows] = {}

    def add(self, blocks: Sequence[MetricRows], *, in_order: bool = False) -> None:
        """Take blocks, but those that were replayed from a spool; ``in_order``: there are none of those."""
        newest = self._newest
        if in_order:
            newest.update(zip(map(_ORIGIN, blocks), blocks, strict=True))
            return
        for block in blocks:
            before = newest.get(block.origin)
            if before is None or block.last_ns >= before.last_ns:
                newest[block.origin] = block

    def schemas(self) -> set[int]:
        """The schemas of which there is a value."""
        return {origin.schema for origin in self._newest}

    def expire(self, older_than_ns: int) -> None:
        """Drop what was last seen before job time ``older_than_ns``: an agent that is gone has no value."""
        for key in [key for key, newest in self._newest.items() if newest.last_ns < older_than_ns]:
            del self._newest[key]

    def _held(self) -> dict[str, dict[int, _Newest]]:
        """Node and schema to the newest row."""
        nodes: dict[str, dict[int, _Newest]] = defaultdict(dict)
        for one, block in list(self._newest.items()):
            schema = self._definitions.schemas.get(one.schema)
            if schema is not None:
                nodes[one.node][one.schema] = _Newest(block.last_ns, schema, block.values[-1])
        return nodes

    def text(self) -> str:
        """All families; a series that two schemas of a node have is shown once, as it was last."""
        nodes = self._held()
        alike: dict[frozenset[int], list[str]] = defaultdict(list)
        for node, held in nodes.items():
            alike[frozenset(held)].append(node)
        families: dict[str, tuple[str, list[str]]] = {}
        for refs, members in alike.items():
            shared = _shared({ref: nodes[members[0]][ref].schema for ref in refs})
            for ref in refs:
                held_here = [nodes[node][ref] for node in members]
                values = np.stack([one.values for one in held_here])
                for other, mine in shared.get(ref, {}).items():
                    newer = [nodes[node][other].time_ns > nodes[node][ref].time_ns for node in members]
                    values[np.ix_(newer, mine)] = np.nan
                for name, head, lines in _lines(held_here[0].schema, members, values):
                    families.setdefault(name, (head, []))[1].extend(lines)
        return "".join(head + "".join(lines) for head, lines in families.values() if lines)


def _shared(schemas: dict[int, Schema]) -> dict[int, dict[int, list[int]]]:
    """For each schema and each other one: its places of the series that both have."""
    places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for ref, schema in schemas.items():
        for index, series in enumerate(schema.series):
            places[series.name, series.labels].append((ref, index))
    found: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for several in places.values():
        for ref, index in several if len(several) > 1 else ():
            for other, _ in several:
                if other != ref:
                    found[ref].setdefault(other, []).append(index)
    return found


def _lines(schema: Schema, nodes: list[str], values: Array) -> Iterator[tuple[str, str, list[str]]]:
    """``(name, head of the family, lines)`` of each series of a schema, for all nodes that have it."""
    starts = [escaped(node) for node in nodes]
    for index, series in enumerate(schema.series):
        kind = "counter" if series.counter else "gauge"
        family = Family(series.name, kind, series.help or "As reported by the agent.")
        labels = "".join(f',{key}="{escaped(value)}"' for key, value in json.loads(series.labels).items())
        yield (
            series.name,
            family.head,
            [
                f'{series.name}{{node="{node}"{labels}}} {number(value)}\n'
                for node, value in zip(starts, values[:, index].tolist(), strict=True)
                if value == value  # noqa: PLR0124 - false for NaN only, and far cheaper than isnan
            ],
        )
