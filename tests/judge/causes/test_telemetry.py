"""A run's samples are read once and together, and say which GPU is a rank's."""

import dataclasses
import gc
import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.recordings.tables import table
from hindmost_judge.causes.telemetry import SOURCES, Metrics, Samples, Series, with_gpus
from hindmost_judge.encoding import codes
from hindmost_judge.model import Job, Run

from tests.runs import made
from tests.scenarios import loads


def test_metrics_are_read_once_a_run_and_leave_no_mark_on_it() -> None:
    """Every caller gets one reading of one run, and another of another run; the run has its own fields only."""
    run = Run(Job("j"))
    fields = set(vars(run))
    read = Metrics.of(run)
    assert Metrics.of(run) is read
    assert Metrics.of(replace(run)) is not read
    assert set(vars(run)) == fields


def test_what_was_read_goes_with_the_run() -> None:
    """A collector judges runs for weeks: none is held by what was read of it."""
    run = Run(Job("j"))
    read = weakref.ref(Metrics.of(run))
    assert read() is not None
    del run
    gc.collect()
    assert read() is None


def test_texts_have_one_code_wherever_they_lie() -> None:
    """Rows that share a text and rows with one alike, in the order in which texts are met; every other row, too."""
    shared, alike = "GPU-1", "-".join(["GPU", "1"])
    assert shared is not alike
    column = np.array([shared, "", alike, "GPU-2", shared, ""], dtype=object)
    code, texts = codes(column)
    assert (code.tolist(), texts) == ([0, 1, 0, 2, 0, 1], ["GPU-1", "", "GPU-2"])
    code, texts = codes(column[1::2])
    assert (code.tolist(), texts) == ([0, 1, 0], ["", "GPU-2"])


RANKS = np.arange(5)
#: The last two ranks share a GPU.
UUID = ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-3"]
NAMES = {
    "hindmost_process_cpu_seconds_total": lambda rank: {"job": "j", "rank": str(rank)},
    "hindmost_process_thread_group_runqueue_seconds_total": lambda rank: {"rank": str(rank), "threads": f"t{rank % 2}"},
    "hindmost_gpu_sm_clock_hertz": lambda rank: {"gpu_uuid": f"GPU-{rank}"},
    "hindmost_node_pressure_waiting_seconds_total": lambda rank: {"resource": ("memory", "io", "cpu")[rank % 3]},
}


def recorded(seed: int) -> Run:
    """Series of ranks, GPUs and nodes, some of none, in any order, with gaps, resets and repeated times."""
    random = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    for name, labels in NAMES.items():
        for rank in range(7):  # of two that are no ranks of this job, too
            text, node = json.dumps(labels(rank)), f"node{rank // 3}"
            times = np.sort(random.integers(0, 60, 12)) * 10**9
            values = np.cumsum(random.random(12))
            values[random.integers(12)] = np.nan
            values[random.integers(6, 12) :] -= 3 * random.random()
            rows += [(node, name, text, int(time), float(value)) for time, value in zip(times, values, strict=True)]
    rows += [("node0", "hindmost_gpu_sm_clock_hertz", "torn", 1, 1.0), ("node0", "other", "{}", 1, 1.0)]
    rows.append(("node0", "hindmost_process_cpu_seconds_total", json.dumps({"rank": "9" * 30}), 1, 1.0))
    shuffled = [rows[at] for at in random.permutation(len(rows))]
    columns = zip(("node", "name", "labels", "time_ns", "value"), zip(*shuffled, strict=True), strict=True)
    who = {"node": [f"node{rank // 3}" for rank in RANKS], "gpu_uuid": UUID}
    return made(len(RANKS), who=who, more={"metrics": table("metrics", **dict(columns))}, id="j")


def owners(series: Series) -> list[int]:
    """Ranks of the job that a series is of."""
    if "rank" in series.labels:
        return [rank for rank in RANKS.tolist() if str(rank) == series.labels["rank"]]
    if "gpu_uuid" in series.labels:
        return [rank for rank in RANKS.tolist() if UUID[rank] == series.labels["gpu_uuid"]]
    return [rank for rank in RANKS.tolist() if f"node{rank // 3}" == series.node]


def one_by_one(run: Run, name: str) -> Iterator[tuple[int, float]]:
    """Rank and value of each sample (of a counter each rise by the second), series by series."""
    source = SOURCES[name]
    for series in Metrics(run).series(source.metric):
        if source.resource not in ("", series.labels.get("resource")):
            continue
        known = ~np.isnan(series.values)
        time, value = series.times[known], series.values[known]
        for rank in owners(series):
            if not source.counter:
                yield from ((rank, one) for one in value.tolist())
                continue
            for at in range(1, len(time)):
                rise = value[at] - value[at - 1] if value[at] >= value[at - 1] else value[at]
                if time[at] > time[at - 1]:
                    yield rank, rise / ((time[at] - time[at - 1]) / 1e9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["cpu", "threads_runqueue", "sm_clock", "memory_pressure", "io_pressure"])
def test_all_series_together_equal_each_series_alone(name: str, seed: int) -> None:
    """Every sample of every rank, each rise of a counter, resets from zero, nothing of whom the job has not."""
    run = recorded(seed)
    column = Samples(run, RANKS, np.empty(0)).sampled_column(name)
    assert column is not None
    value = column.value if column.seconds is None else column.value / column.seconds
    found = np.array(sorted(zip(RANKS[column.row].tolist(), value.tolist(), strict=True)))
    np.testing.assert_allclose(found, np.array(sorted(one_by_one(run, name))))


def test_what_was_not_sampled_is_missing() -> None:
    """Neither a name that is not there, nor one of which all series are of others."""
    run = recorded(1)
    assert Samples(run, RANKS, np.empty(0)).level("power") is None
    assert Samples(run, np.array([99]), np.empty(0)).level("sm_clock") is None


def test_of_all_steps_nothing_is_known_by_samples_before_or_after_them() -> None:
    """A hang that is sampled for minutes says nothing of the steps before it; in chosen ones the nearest samples do."""
    labels, second = json.dumps({"rank": "0"}), 10**9
    counted = [("node0", "hindmost_process_children", labels, at * second + second // 2, 4.0) for at in (-1, 10)]
    samples = Samples(made(1, more={"metrics": from_rows("metrics", counted)}), np.arange(1), np.arange(11.0) * second)
    chosen = samples.level("children", np.array([4, 6]))
    assert samples.level("children") is None
    assert chosen is not None
    assert chosen.tolist() == [4.0]


def test_a_rank_has_the_gpu_on_which_its_node_saw_it_compute() -> None:
    """Of this job only; a rank's own statement stands, and no rank gets a GPU that was not observed."""
    run = loads.make(loads.Load(ranks=4))
    seen = [("made", "0", "GPU-a"), ("made", "1", "GPU-b"), ("other", "2", "GPU-c")]
    labels = [json.dumps({"gpu_uuid": uuid, "job": job, "rank": rank}) for job, rank, uuid in seen]
    metrics = from_rows("metrics", [("node0", "hindmost_gpu_rank_info", text, 1, 1.0) for text in labels])
    ranks = {**run.ranks, "gpu_uuid": np.array(["GPU-own", "", "", ""])}
    known = with_gpus(dataclasses.replace(run, ranks=ranks, metrics=metrics))
    assert known.ranks["gpu_uuid"].tolist() == ["GPU-own", "GPU-b", "", ""]
