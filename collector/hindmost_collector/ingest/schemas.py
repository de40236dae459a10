"""What the values of a metric block are of: a thousand nodes define a million series, so they are kept small."""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from google.protobuf.message import DecodeError

from hindmost_collector.ingest.columns import Malformed
from hindmost_collector.ingest.packed import Label

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Array = np.ndarray[Any, Any]


class Series(NamedTuple):
    """One metric series; ``labels`` is canonical JSON without the node."""

    name: str
    counter: bool
    help: str
    labels: str


class Head:
    """What schemas that differ in their labels alone have in common: a node's GPUs have names of their own.

    ``word`` (S,) says which of a schema's words each series has as its labels; ``order`` (S,) are the places of the
    series sorted by name and labels.
    """

    __slots__ = ("__weakref__", "counters", "helps", "names", "order", "width", "word")

    def __init__(
        self, names: tuple[str, ...], counters: tuple[bool, ...], helps: tuple[str, ...], word: Array, order: Array
    ) -> None:
        self.names, self.counters, self.helps, self.word, self.order = names, counters, helps, word, order
        self.width = len(names)


_heads: WeakValueDictionary[Any, Head] = WeakValueDictionary()


class Schema:
    """The series of a metric block, in the order of its values. ``words`` are their different labels."""

    __slots__ = ("head", "width", "words")

    def __init__(self, series: Iterable[Series]) -> None:
        given = list(series)
        names, counters, helps, labels = zip(*given, strict=True) if given else ((), (), (), ())
        places: dict[str, int] = {}
        word = np.array([places.setdefault(one, len(places)) for one in labels], np.int32)
        ordered = sorted(zip(names, labels, range(len(names)), strict=True))
        order = np.array([place for _, _, place in ordered], np.int32)
        key = names, counters, helps, word.tobytes(), order.tobytes()
        head = _heads.get(key)
        if head is None:
            head = _heads[key] = Head(names, counters, helps, word, order)
        self.head, self.width, self.words = head, len(names), tuple(places)

    def labels(self, place: int) -> str:
        """The labels of one series."""
        return self.words[int(self.head.word[place])]

    @property
    def series(self) -> Iterator[Series]:
        """All of them."""
        head = self.head
        labels = (self.words[one] for one in head.word.tolist())
        return map(Series, head.names, head.counters, head.helps, labels)


def learned(sent: Any) -> Schema:
    """The schema that an agent defines, as :mod:`hindmost_collector.ingest.packed` has it. Raises Malformed."""
    helps: dict[str, str] = {}
    for one in sent.series:  # help travels once for each name
        if one.help:
            helps.setdefault(one.name, one.help)
    return Schema(
        Series(one.name, bool(one.kind), helps.get(one.name, ""), _labels(tuple(one.labels))) for one in sent.series
    )


@lru_cache(maxsize=4096)
def _labels(entries: tuple[bytes, ...]) -> str:
    try:
        pairs = {one.key: one.value for one in map(Label.FromString, entries)}
    except DecodeError as error:
        raise Malformed(f"a label that is none: {error}") from error
    return sys.intern(json.dumps(pairs, sort_keys=True, separators=(",", ":")))
