"""The metrics of nodes and jobs as text."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.columns import MetricRows
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.packed import packed
from hindmost_collector.serve import metrics as page
from hindmost_collector.serve.metrics import NodeMetrics
from hindmost_proto import telemetry_pb2 as wire
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture
def definitions():
    """Schema 1 has series a and b, schema 2, which came later, b and c."""
    a, b = Series("hindmost_a", False, "A.", "{}"), Series("hindmost_b_total", True, "", '{"device":"x\\"y"}')
    made = Definitions()
    made.schemas = {1: Schema((a, b)), 2: Schema((b, Series("hindmost_c", False, "", "{}")))}
    return made


def shown(metrics):
    """``(name, node, value)`` of all samples."""
    return sorted(
        (sample.name, sample.labels["node"], sample.value)
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    )


def test_newest_value_of_each_series_is_shown_once(definitions):
    """A series that two schemas of a node have is shown as it was last; what is older or missing is left out."""
    metrics = NodeMetrics(definitions)
    metrics.add([MetricRows.of("n0", 1, np.array([5, 6]), np.array([[1.0, 2.0], [3.0, 4.0]]))])
    metrics.add([MetricRows.of("n0", 1, np.array([4]), np.array([[9.0, 9.0]]))])
    metrics.add([MetricRows.of("n0", 2, np.array([7]), np.array([[40.5, np.nan]]))])
    metrics.add([MetricRows.of('n"1', 1, np.array([7]), np.array([[np.nan, 8.0]]))])
    assert shown(metrics) == [
        ("hindmost_a", "n0", 3.0),
        ("hindmost_b_total", 'n"1', 8.0),
        ("hindmost_b_total", "n0", 40.5),
    ]


def test_what_is_older_within_a_batch_is_not_taken_for_the_newest(definitions):
    """A batch may have two blocks of one schema, the newer one first."""
    decoder, clock, metrics = Decoder(definitions), NodeClock(0, 0), NodeMetrics(definitions)
    blocks = [wire.MetricBlock(schema=1, time_ns=[time], values=[float(time), 1.0]) for time in (9, 6)]
    assert decoder.add(packed(wire.Batch(metrics=blocks)), "n0", "j", clock) == []
    chunk = finish(decoder.take()["j"])
    metrics.add(chunk.metrics, in_order=chunk.in_order)
    assert shown(metrics)[0][2] == 9.0


def test_what_a_spool_held_is_not_taken_for_the_newest(definitions):
    """A decoder says of a tick whether any sample in it is older than its node's before; only then is it looked at."""
    decoder, clock, metrics = Decoder(definitions), NodeClock(0, 0), NodeMetrics(definitions)
    told = []
    for times in ([5, 6], [7], [4], [8]):
        block = wire.MetricBlock(schema=1, time_ns=times, values=[float(times[-1]), 1.0] * len(times))
        assert decoder.add(packed(wire.Batch(metrics=[block])), "n0", "j", clock) == []
        chunk = finish(decoder.take()["j"])
        metrics.add(chunk.metrics, in_order=chunk.in_order)
        told.append((chunk.in_order, shown(metrics)[0][2]))
    assert told == [(True, 6.0), (True, 7.0), (False, 7.0), (True, 8.0)]


def test_silent_nodes_have_no_values(definitions):
    """What has not been sent for long is not shown."""
    metrics = NodeMetrics(definitions)
    metrics.add([MetricRows.of("n0", 1, np.array([5]), np.array([[1.0, 2.0]]))])
    metrics.add([MetricRows.of("n1", 1, np.array([9]), np.array([[1.0, 2.0]]))])
    metrics.expire(6)
    assert {node for _, node, _ in shown(metrics)} == {"n1"}
    metrics.expire(10)
    assert metrics.text() == ""


def test_two_slowdowns_of_one_rank_are_one_series():
    """A rank that is slow throughout and more so since later, for one cause, costs what both do: a scrape knows one."""
    one = {"kind": "straggler", "cause": "input", "ranks": [2], "cost_ms_per_step": 4.0, "confidence": 0.9}
    job = SimpleNamespace(id="j", verdicts=lambda: [one, {**one, "cost_ms_per_step": 2.0, "confidence": 0.8}])
    told = "".join(page._verdicts([job]))
    (cost,) = [line for line in told.splitlines() if line.startswith("hindmost_verdict_cost_seconds_per_step{")]
    (sure,) = [line for line in told.splitlines() if line.startswith("hindmost_verdict_confidence_ratio{")]
    assert float(cost.split()[-1]) == pytest.approx(0.006)
    assert float(sure.split()[-1]) == pytest.approx(0.8)
