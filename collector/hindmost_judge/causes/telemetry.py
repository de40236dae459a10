"""Node and process metrics by rank: the join that a metric's labels and the rank table allow."""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.dictionary_encoding import codes
from hindmost_judge.model import Run, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_judge.types import Array, Floats, Ints

#: NVML's reason for the clocks of a GPU at its power cap.
POWER_CAP = 0x4
#: Bits of NVML's clocks-event reasons that slow a GPU down: power caps, thermal slow-downs, power brake, sync boost.
SLOWING_REASONS = {
    POWER_CAP: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass(frozen=True)
class Series:
    """One metric's samples in time order, and whose they are."""

    labels: dict[str, str]
    node: str
    times: Array
    values: Floats


class Samples(NamedTuple):
    """One metric's samples, series after series and each in time order: ``first`` [K + 1] is where each begins.

    ``label`` and ``node`` [K] are the series' own, as numbers of ``Metrics.labels`` and ``Metrics.nodes``.
    """

    time: Array
    value: Floats
    first: Ints
    label: Ints
    node: Ints


#: Codes in place of a rank: a series of no rank, of all ranks of its node, of several ranks of one GPU.
NOBODY, OF_NODE, SEVERAL = -1, -2, -3
#: Up to this many names are numbered in 16 bits: numpy radix-sorts int16, and merges wider integers, which takes
#: longer.
_SHORT = 1 << 15
#: Most digits of a rank; a longer number is not a rank.
_DIGITS = 9


class Metrics:
    """The metrics of a run, looked up by name; names and labels are read once, whatever is asked."""

    def __init__(self, run: Run) -> None:
        self._table, self._ranks = run.metrics, run.ranks
        nothing: tuple[Ints, list[str]] = (np.empty(0, np.int64), [])
        name, self._names = codes(run.metrics["name"]) if rows(run.metrics) else nothing
        self._label, self.labels = codes(run.metrics["labels"]) if rows(run.metrics) else nothing
        self._node, self.nodes = codes(run.metrics["node"]) if rows(run.metrics) else nothing
        self._order = np.argsort(name.astype(np.int16) if len(self._names) <= _SHORT else name, kind="stable")
        self._first = np.searchsorted(name[self._order], np.arange(len(self._names) + 1))

    @classmethod
    def of(cls, run: Run) -> Metrics:
        """Those of a run, read once for all who ask while it is there."""
        known = _READ.get(id(run))
        if known is None:
            known = _READ[id(run)] = cls(run)
            weakref.finalize(run, _READ.pop, id(run), None)
        return known

    def samples(self, name: str) -> Samples | None:
        """All samples of this name; ``None`` where there is none."""
        if name not in self._names:
            return None
        one = self._names.index(name)
        held = self._order[self._first[one] : self._first[one + 1]]
        key, time = self._label[held] * len(self.nodes) + self._node[held], self._table["time_ns"][held]
        order = np.lexsort((time, key))
        key, held = key[order], held[order]
        begin = np.flatnonzero(np.diff(key, prepend=-1))
        label, node = np.divmod(key[begin], len(self.nodes))
        value = self._table["value"][held].astype(np.float64)
        return Samples(time[order], value, np.append(begin, len(key)), label, node)

    def series(self, name: str) -> Iterator[Series]:
        """Every series of this name."""
        found = self.samples(name)
        if found is None:
            return
        bounds = zip(found.first[:-1].tolist(), found.first[1:].tolist(), strict=True)
        whose = zip(found.label.tolist(), found.node.tolist(), strict=True)
        for (begin, end), (label, node) in zip(bounds, whose, strict=True):
            yield Series(_labels(self.labels[label]), self.nodes[node], found.time[begin:end], found.value[begin:end])

    def owners(self, found: Samples) -> tuple[Ints, Ints]:
        """Number of a series and a rank that it is of, for each such pair, [P] and [P].

        A series is of its process' rank, of its GPU's ranks, else of all ranks of its node.
        """
        owner = self._owner[found.label]
        several = np.flatnonzero(owner <= OF_NODE)
        series, rank = list[int](), list[int]()
        columns = (column[several].tolist() for column in (owner, found.node, found.label))
        for number, kind, node, label in zip(several.tolist(), *columns, strict=True):
            of_node = self._of_node.get(self.nodes[node], [])
            ranks = of_node if kind == OF_NODE else self._of_gpu[str(_owner(self.labels[label]))]
            series += [number] * len(ranks)
            rank += ranks
        single = np.flatnonzero(owner >= 0)
        return np.append(single, series).astype(np.int64), np.append(owner[single], rank).astype(np.int64)

    @cached_property
    def _of_node(self) -> dict[str, list[int]]:
        return self._ranks_by("node")

    @cached_property
    def _of_gpu(self) -> dict[str, list[int]]:
        return self._ranks_by("gpu_uuid")

    def _ranks_by(self, column: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for rank, one in zip(self._ranks["rank"].tolist(), self._ranks[column].tolist(), strict=True):
            found.setdefault(one, []).append(rank)
        return found

    @cached_property
    def _owner(self) -> Ints:
        """[L] the rank that series of these labels are of, or what stands for one."""
        of_gpu = {gpu: ranks[0] if len(ranks) == 1 else SEVERAL for gpu, ranks in self._of_gpu.items()}
        whose = map(_owner, self.labels)
        return np.array([of_gpu.get(one, NOBODY) if isinstance(one, str) else one for one in whose], np.int64)


#: Metrics that were read, by their run's id for as long as that lives: a run of arrays has no hash.
_READ: dict[int, Metrics] = {}

#: Label texts cached between judgements: of a rank's process, its GPU and its process on that.
_REMEMBERED = 1 << 16


@lru_cache(_REMEMBERED)
def _owner(text: str) -> int | str:
    """What a series is of, by its labels: a rank, by its number; a GPU, by its name; else its node."""
    labels = _labels(text)
    if "rank" in labels:
        name = labels["rank"]
        return int(name) if name.isdigit() and len(name) <= _DIGITS else NOBODY
    return labels.get("gpu_uuid", OF_NODE)


@lru_cache(_REMEMBERED)
def has(text: str, wanted: tuple[tuple[str, str], ...]) -> bool:
    """Whether labels have all of these values."""
    labels = _labels(text)
    return all(labels.get(key) == value for key, value in wanted)


def _labels(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in parsed.items()} if isinstance(parsed, dict) else {}


def with_gpus(run: Run) -> Run:
    """The same run, ranks that did not say which GPU is theirs with the one on which their node saw them compute."""
    unknown = run.ranks["gpu_uuid"] == ""
    if not unknown.any() or not rows(run.metrics):
        return run
    info = run.metrics["name"] == "hindmost_gpu_rank_info"
    said = [_labels(text) for text in np.unique(run.metrics["labels"][info]).tolist()]
    seen = {one["rank"]: one["gpu_uuid"] for one in said if one.get("job") == run.job.id and "gpu_uuid" in one}
    names, said_so = run.ranks["rank"].tolist(), run.ranks["gpu_uuid"].tolist()
    found = [uuid or seen.get(str(rank), "") for rank, uuid in zip(names, said_so, strict=True)]
    return replace(run, ranks={**run.ranks, "gpu_uuid": np.array(found, dtype=np.str_)})


def typical(series: list[Series]) -> float:
    """Median of a gauge's samples; NaN where there is none."""
    known = np.concatenate([one.values for one in series]) if series else np.empty(0)
    known = known[~np.isnan(known)]
    return float(np.median(known)) if len(known) else float("nan")
