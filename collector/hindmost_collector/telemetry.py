"""Node and process metrics by rank: the join that a metric's labels and the rank table allow."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.align import codes
from hindmost_collector.model import Run, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_collector.align import Array, Floats

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


class Metrics:
    """The metrics of a run, looked up by name; names are read once, whatever is asked."""

    def __init__(self, run: Run) -> None:
        self._run = run
        name, self._names = codes(run.metrics["name"]) if rows(run.metrics) else (np.empty(0, np.int64), [])
        self._order = np.argsort(name, kind="stable")
        self._first = np.searchsorted(name[self._order], np.arange(len(self._names) + 1))
        self._rank_of: dict[tuple[str, str], list[int]] | None = None

    def series(self, name: str) -> Iterator[Series]:
        """Every series of this name."""
        if name not in self._names:
            return
        table, one = self._run.metrics, self._names.index(name)
        held = self._order[self._first[one] : self._first[one + 1]]
        label, texts = codes(table["labels"][held])
        node, nodes = codes(table["node"][held])
        key = label * len(nodes) + node
        order = np.lexsort((table["time_ns"][held], key))
        for part in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            at = held[part]
            yield Series(
                _labels(texts[label[part[0]]]),
                nodes[node[part[0]]],
                table["time_ns"][at],
                table["value"][at].astype(np.float64),
            )

    def per_rank(self, name: str) -> dict[int, list[Series]]:
        """Rank to the series that are its own: of its process, of its GPU, else of its node."""
        found: dict[int, list[Series]] = {}
        for series in self.series(name):
            for rank in self._owners(series):
                found.setdefault(rank, []).append(series)
        return found

    def _owners(self, series: Series) -> list[int]:
        if "rank" in series.labels:
            text = series.labels["rank"]
            return [int(text)] if text.isdigit() else []
        if self._rank_of is None:
            self._rank_of = self._places()
        if "gpu_uuid" in series.labels:
            return self._rank_of.get(("", series.labels["gpu_uuid"]), [])
        return self._rank_of.get((series.node, ""), [])

    def _places(self) -> dict[tuple[str, str], list[int]]:
        """Ranks of each node and of each GPU."""
        found: dict[tuple[str, str], list[int]] = {}
        ranks = self._run.ranks
        columns = (ranks[name].tolist() for name in ("rank", "node", "gpu_uuid"))
        for rank, node, gpu in zip(*columns, strict=True):
            found.setdefault((node, ""), []).append(rank)
            found.setdefault(("", gpu), []).append(rank)
        return found


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
