"""Node and process metrics by rank: the join that a metric's labels and the rank table allow."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_collector.align import codes
from hindmost_collector.model import Run, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hindmost_collector.align import Array, Floats, Ints

#: Bits of NVML's clocks-event reasons that slow a GPU down: power caps, thermal slow-downs, power brake, sync boost.
SLOWING_REASONS = {
    0x4: "software power cap",
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

    ``labels`` and ``nodes`` [K] are the series' own, as text.
    """

    time: Array
    value: Floats
    first: Ints
    labels: list[str]
    nodes: list[str]


class Metrics:
    """The metrics of a run, looked up by name; names are read once, whatever is asked."""

    def __init__(self, run: Run) -> None:
        self._table, self._ranks = run.metrics, run.ranks
        name, self._names = codes(run.metrics["name"]) if rows(run.metrics) else (np.empty(0, np.int64), [])
        self._order = np.argsort(name, kind="stable")
        self._first = np.searchsorted(name[self._order], np.arange(len(self._names) + 1))
        self._rank_of: dict[tuple[str, str], list[int]] | None = None

    @classmethod
    def of(cls, run: Run) -> Metrics:
        """Those of a run, read once for all who ask."""
        known: Metrics | None = vars(run).get("_metrics")
        if known is None:
            known = vars(run)["_metrics"] = cls(run)
        return known

    def samples(self, name: str) -> Samples | None:
        """All samples of this name; ``None`` where there is none."""
        if name not in self._names:
            return None
        table, one = self._table, self._names.index(name)
        held = self._order[self._first[one] : self._first[one + 1]]
        label, texts = codes(table["labels"][held])
        node, nodes = codes(table["node"][held])
        key, time = label * len(nodes) + node, table["time_ns"][held]
        order = np.lexsort((time, key))
        key = key[order]
        begin = np.flatnonzero(np.diff(key, prepend=-1))
        of_series = key[begin]
        return Samples(
            time[order],
            table["value"][held[order]].astype(np.float64),
            np.append(begin, len(key)),
            [texts[at] for at in (of_series // len(nodes)).tolist()],
            [nodes[at] for at in (of_series % len(nodes)).tolist()],
        )

    def series(self, name: str) -> Iterator[Series]:
        """Every series of this name."""
        found = self.samples(name)
        if found is None:
            return
        bounds = zip(found.first[:-1].tolist(), found.first[1:].tolist(), strict=True)
        for (begin, end), text, node in zip(bounds, found.labels, found.nodes, strict=True):
            yield Series(_labels(text), node, found.time[begin:end], found.value[begin:end])

    def owners(self, text: str, node: str) -> list[int]:
        """The ranks that a series of these labels is of: of its process, of its GPU, else of its node."""
        kind, name = _owner(text)
        if kind == "rank":
            return [int(name)] if name.isdigit() else []
        if self._rank_of is None:
            self._rank_of = self._places()
        return self._rank_of.get(("", name) if kind == "gpu" else (node, ""), [])

    def _places(self) -> dict[tuple[str, str], list[int]]:
        """Ranks of each node and of each GPU."""
        found: dict[tuple[str, str], list[int]] = {}
        columns = (self._ranks[name].tolist() for name in ("rank", "node", "gpu_uuid"))
        for rank, node, gpu in zip(*columns, strict=True):
            found.setdefault((node, ""), []).append(rank)
            found.setdefault(("", gpu), []).append(rank)
        return found


#: Texts of labels that are remembered between judgements: of a rank's process, its GPU and its process on that.
_REMEMBERED = 1 << 16


@lru_cache(_REMEMBERED)
def _owner(text: str) -> tuple[str, str]:
    """What a series is of, by its labels: a rank, a GPU, else its node; and which."""
    labels = _labels(text)
    if "rank" in labels:
        return "rank", labels["rank"]
    return ("gpu", labels["gpu_uuid"]) if "gpu_uuid" in labels else ("node", "")


def has(text: str, wanted: Iterable[tuple[str, str]]) -> bool:
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
