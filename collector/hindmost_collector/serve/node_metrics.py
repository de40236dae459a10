"""Metrics of nodes, processes and GPUs, as their agents name them: the newest value of each series."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from hindmost_proto.exposition import JOB_LABEL, escaped, head

from hindmost_collector.ingest.definitions import Definitions, Schema
from hindmost_collector.ingest.row_builder import MetricRows, Origin
from hindmost_collector.options import LEVELS
from hindmost_collector.serve.exposition import CORE, level_of, number

Array = np.ndarray[Any, Any]

_ORIGIN = attrgetter("origin")
#: What is sent so rarely has its value for so many of its periods.
_PERIODS = 2.5


class _Newest(NamedTuple):
    """The newest row of one schema of one node."""

    time_ns: int
    schema: Schema
    values: Array


class _Line(NamedTuple):
    """One series of a schema as it is written: its place there, what stands before and after the node's name."""

    place: int
    name: str
    head: str
    labels: str
    job: str | None


class NodeMetrics:
    """The newest value of every series. Adding a block costs next to nothing; text is made only for a scrape."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._newest: dict[Origin, MetricRows] = {}
        #: When each was last seen to be new, and how long after the time before.
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        self._lines: dict[int, tuple[_Line, ...]] = {}  # those up to this level
        self._level = CORE
        self._counts: dict[int, tuple[int, ...]] = {}
        self._doubled: dict[frozenset[int], dict[int, dict[int, list[int]]]] = {}

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
        return {origin.schema for origin in self._newest}

    def newest(self) -> Mapping[Origin, MetricRows]:
        """The newest block of each schema of each node, at this moment."""
        return dict(self._newest)

    def expire(self, older_than_ns: int, now_ns: int | None = None) -> None:
        """Drop what was last seen before job time ``older_than_ns``: an agent that is gone has no value.

        At ``now_ns`` what comes less often than that stays for some of its periods.
        """
        for key, newest in list(self._newest.items()):
            last, gap = self._seen.get(key.key, (newest.last_ns, 0))
            if newest.last_ns > last:
                last, gap = newest.last_ns, newest.last_ns - last
            self._seen[key.key] = last, gap
            if newest.last_ns < older_than_ns and (now_ns is None or newest.last_ns < now_ns - _PERIODS * gap):
                del self._newest[key]
        shown, known = self.schemas(), self._definitions.schemas
        for made in (self._lines, self._counts):
            for ref in made.keys() - shown:  # of a process that has ended, which no scrape shows again
                made.pop(ref, None)
        for seen in [seen for seen in self._seen if seen[1] not in known]:
            del self._seen[seen]

    def counts(self) -> tuple[int, ...]:
        """How many series there are of each level."""
        counts = np.zeros(len(LEVELS), np.int64)
        for origin in list(self._newest):
            if origin.schema in self._definitions.schemas:
                counts += self._count(origin.schema)
        return tuple(counts.tolist())

    def _count(self, ref: int) -> tuple[int, ...]:
        known = self._counts.get(ref)
        if known is None:
            schema = self._definitions.schemas[ref]
            levels = np.array([_parsed_word(word)[0] for word in schema.words], np.int64)
            counts = np.bincount(levels[schema.head.word], minlength=len(LEVELS))
            known = self._counts[ref] = tuple(counts.tolist())
        return known

    def _newest_rows(self, gone: Collection[str]) -> dict[str, dict[int, _Newest]]:
        """Node and schema to the newest row."""
        nodes: dict[str, dict[int, _Newest]] = defaultdict(dict)
        for one, block in list(self._newest.items()):
            schema = self._definitions.schemas.get(one.schema)
            if schema is not None and one.node not in gone:
                nodes[one.node][one.schema] = _Newest(block.last_ns, schema, block.values[-1])
        return nodes

    def text(self, level: int = CORE, gone: Collection[str] = (), over: Collection[str] = ()) -> str:
        """All families up to a level, but for nodes that are ``gone`` and jobs that are ``over``.

        A series that two schemas of a node have is shown once, as it was last.
        """
        nodes = self._newest_rows(gone)
        if level != self._level:
            self._lines, self._level = {}, level
        alike: dict[frozenset[int], list[str]] = defaultdict(list)
        for node, metrics in nodes.items():
            alike[frozenset(metrics)].append(node)
        known = self._doubled
        self._doubled = {
            refs: known.get(refs) or _shared({ref: nodes[members[0]][ref].schema for ref in refs})
            for refs, members in alike.items()
        }
        families: dict[str, tuple[str, list[str]]] = {}
        for refs, members in alike.items():
            shared = self._doubled[refs]
            starts = [f'{{node="{escaped(node)}"' for node in members]
            for ref in refs:
                values = np.stack([nodes[node][ref].values for node in members])
                for other, mine in shared.get(ref, {}).items():
                    newer = [nodes[node][other].time_ns > nodes[node][ref].time_ns for node in members]
                    values[np.ix_(newer, mine)] = np.nan
                for line in self._written(ref):
                    if line.job not in over:
                        name, labels, column = line.name, line.labels, values[:, line.place].tolist()
                        families.setdefault(name, (line.head, []))[1].extend(
                            f"{name}{start}{labels} {number(value)}\n"
                            for start, value in zip(starts, column, strict=True)
                            if value == value  # noqa: PLR0124 - false for NaN only, and far cheaper than isnan
                        )
        return "".join(head + "".join(lines) for head, lines in families.values() if lines)

    def _written(self, ref: int) -> tuple[_Line, ...]:
        known = self._lines.get(ref)
        if known is None:
            known = self._lines[ref] = tuple(_written(self._definitions.schemas[ref], self._level))
        return known


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


def _written(schema: Schema, level: int) -> Iterator[_Line]:
    parsed = [_parsed_word(word) for word in schema.words]
    for place, (series, word) in enumerate(zip(schema.series, schema.head.word.tolist(), strict=True)):
        its_level, labels, job = parsed[word]
        if its_level <= level:
            yield _Line(place, series.name, _head(series.name, series.help, counts_up=series.counter), labels, job)


def _parsed_word(word: str) -> tuple[int, str, str | None]:
    """The level of series with these labels, the labels as they are written, and the job among them."""
    labels = json.loads(word)
    written = "".join(f',{JOB_LABEL if key == "job" else key}="{escaped(value)}"' for key, value in labels.items())
    return level_of(labels), f"{written}}}", labels.get("job")


@lru_cache(maxsize=4096)
def _head(name: str, text: str, *, counts_up: bool) -> str:
    """The same text for all nodes' series of a name."""
    return head(name, "counter" if counts_up else "gauge", text or "As reported by the agent.")
