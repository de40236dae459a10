"""The metrics of nodes and jobs as text."""

import json
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hindmost_collector.components import Components
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions, Pod, Schema, Series
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.ingest.row_builder import MetricRows
from hindmost_collector.live.jobs import Contact
from hindmost_collector.options import Options
from hindmost_collector.serve import job_metrics
from hindmost_collector.serve.endpoints import Endpoints
from hindmost_collector.serve.exposition import CORE, JOB, NODE, RANK, fitting
from hindmost_collector.serve.node_metrics import NodeMetrics
from hindmost_proto import telemetry_pb2 as wire
from prometheus_client.parser import text_string_to_metric_families

from tests.memory import memory_of


@pytest.fixture
def definitions():
    """Schema 1 has series a and b, schema 2, which came later, b and c."""
    a, b = Series("hindmost_a", False, "A.", "{}"), Series("hindmost_b_total", True, "", '{"device":"x\\"y"}')
    made = Definitions()
    made.schemas = {1: Schema((a, b)), 2: Schema((b, Series("hindmost_c", False, "", "{}")))}
    return made


def samples(metrics):
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
    assert samples(metrics) == [
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
    assert samples(metrics)[0][2] == 9.0


def test_what_a_spool_held_is_not_taken_for_the_newest(definitions):
    """A decoder says of a tick whether any sample in it is older than its node's before; only then is it looked at."""
    decoder, clock, metrics = Decoder(definitions), NodeClock(0, 0), NodeMetrics(definitions)
    values = []
    for times in ([5, 6], [7], [4], [8]):
        block = wire.MetricBlock(schema=1, time_ns=times, values=[float(times[-1]), 1.0] * len(times))
        assert decoder.add(packed(wire.Batch(metrics=[block])), "n0", "j", clock) == []
        chunk = finish(decoder.take()["j"])
        metrics.add(chunk.metrics, in_order=chunk.in_order)
        values.append((chunk.in_order, samples(metrics)[0][2]))
    assert values == [(True, 6.0), (True, 7.0), (False, 7.0), (True, 8.0)]


def test_silent_nodes_have_no_values(definitions):
    """What has not been sent for long is not shown."""
    metrics = NodeMetrics(definitions)
    metrics.add([MetricRows.of("n0", 1, np.array([5]), np.array([[1.0, 2.0]]))])
    metrics.add([MetricRows.of("n1", 1, np.array([9]), np.array([[1.0, 2.0]]))])
    metrics.expire(6)
    assert {node for _, node, _ in samples(metrics)} == {"n1"}
    metrics.expire(10)
    assert metrics.text() == ""


def test_of_a_process_that_has_ended_no_text_is_kept():
    """Each process has a schema of its own, which may be known for long: its lines go with its value."""
    made, label, held = Definitions(), '{{"job":"j{}","rank":"0"}}', []
    metrics = NodeMetrics(made)
    for job in range(100):
        made.schemas[job] = Schema([Series(f"hindmost_{name}", False, "", label.format(job)) for name in "abcdefgh"])
        metrics.add([MetricRows.of("n0", job, np.array([job]), np.ones((1, 8)))])
        assert f'job_id="j{job}"' in metrics.text(RANK)
        metrics.counts()
        metrics.expire(job)
        held.append(memory_of((metrics._lines, metrics._counts))["objects"])
    assert held[-1] == held[9]


def test_what_is_sent_seldom_keeps_its_value_between(definitions):
    """A sampler that is read every five minutes is not silent in between; one that stops is, some periods later."""
    metrics, minute = NodeMetrics(definitions), 60 * 10**9
    for at in (0, 5, 10):
        metrics.add([MetricRows.of("n0", 1, np.array([at * minute]), np.array([[1.0, 2.0]]))])
        metrics.expire((at - 2) * minute, at * minute)
    metrics.expire(20 * minute, 22 * minute)
    assert samples(metrics)
    metrics.expire(21 * minute, 23 * minute)
    assert samples(metrics) == []


@pytest.fixture
def fine():
    """A node's metrics with a series of each level that agents have."""
    made = Definitions()
    labels = ["{}", '{"job":"j","rank":"0"}', '{"cpu":"0"}']
    made.schemas = {
        1: Schema([Series(f"hindmost_{name}", False, "", one) for name, one in zip("abc", labels, strict=True)])
    }
    metrics = NodeMetrics(made)
    metrics.add([MetricRows.of(node, 1, np.array([5]), np.array([[1.0, 2.0, 3.0]])) for node in ("n0", "n1")])
    return metrics


@pytest.mark.parametrize(("level", "names"), [(JOB, ""), (NODE, "a"), (RANK, "ab"), (CORE, "abc")])
def test_each_level_adds_finer_series(fine, level, names):
    """Ranks come after nodes, and cores after ranks; the counts are those of the page."""
    text = fine.text(level)
    assert [name for name in "abc" if f"hindmost_{name}{{" in text] == list(names)
    assert sum(fine.counts()[: level + 1]) == 2 * len(names)


def test_levels_give_way_until_the_page_is_small_enough():
    """With more series than are allowed the finest level goes first; what says how jobs are always stays."""
    counts = (0, 100, 1000, 10_000)
    assert [fitting(CORE, counts, most) for most in (20_000, 11_099, 1100, 1099, 1)] == [CORE, RANK, RANK, NODE, JOB]


def test_nodes_and_jobs_that_are_gone_have_no_series(fine):
    """A node that is lost has no values, a job that is over has none on any node."""
    assert 'node="n0"' not in fine.text(gone={"n0"})
    assert "hindmost_b" not in fine.text(over={"j"})


@pytest.fixture
def job():
    """A job of two ranks that makes 100 steps of work, with a verdict to fill in."""
    ranks = {"rank": np.arange(2), "local_rank": np.arange(2), "node": np.array(["n0", "n1"])}
    ranks |= {"gpu_uuid": np.array(["", ""]), "pid": np.arange(2)}
    window = SimpleNamespace(ranks=lambda: ranks, began_ns={7: 2_000_000_000}.get)
    columns = {"steps_total": np.array([99.0, 100.0]), "work_total": np.array([990.0, 1000.0])}
    made = SimpleNamespace(id="j", command="c", world_size=2, window=window, report=None, over=False, sealed=False)
    made.counters, made.step_seconds, made.started_ns = columns.items, lambda: {"median": 0.5}, 0
    made.verdicts = list
    return made


def agent(**facts):
    """An agent of every job that is connected and was heard of at 100 s."""
    return SimpleNamespace(
        **{"node": "n0", "job": "", "outbox": 1, "departed": False, "last_heard_ns": 100 * S} | facts
    )


S = 10**9


def values(text, name):
    """The values of a metric, by its labels but ``job_id``."""
    return {
        tuple(value for key, value in sample.labels.items() if key != "job_id"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def state(job, *agents, at=101):
    """The state that the page shows."""
    found = values(job_metrics.JobPage().text([job], Contact(agents, at * S)), "hindmost_job_state")
    return [name for (name,), value in found.items() if value]


@pytest.mark.parametrize(
    ("of_n1", "expected"), [({}, "running"), ({"last_heard_ns": 0}, "running"), ({"node": "n0"}, "running")]
)
def test_a_job_runs_while_one_of_its_nodes_is_heard(job, of_n1, expected):
    """A node without an agent of its own is not lost, and one lost node does not lose the job."""
    assert state(job, agent(), agent(**{"node": "n1", **of_n1})) == [expected]


@pytest.mark.parametrize(
    ("facts", "at"), [({"outbox": None}, 108), ({}, 115), ({"departed": True}, 101)], ids=("broken", "silent", "left")
)
def test_a_job_is_lost_when_no_agent_of_it_is_heard(job, facts, at):
    """It broke off and was last heard 8 s ago, it is silent for 15 s, or it signed off while ranks run."""
    both = [agent(**facts), agent(**{**facts, "node": "n1"})]
    assert state(job, *both, at=at) == ["lost"]
    assert state(job, *both, at=100) == ["lost" if "departed" in facts else "running"]


def test_a_job_whose_own_agents_signed_off_is_not_lost(job):
    """`hindmost run` ends them when its ranks have ended; the collector hears of the end a little later."""
    both = [agent(job="j", node=node, departed=True) for node in ("n0", "n1")]
    assert state(job, *both) == ["running"]


def test_a_lost_job_has_no_values_and_an_ended_one_has_them_once_more(job):
    """What is last known of a job is no news of it; of one that ended, a scrape still gets the last counts."""
    page, there = job_metrics.JobPage(), Contact([], 0)
    assert 'steps_total{job_id="j",rank="1"} 100' in page.text([job], there)
    gone = Contact([agent(node="n0"), agent(node="n1")], 200 * S)
    assert {line.split("{")[0] for line in page.text([job], gone).splitlines() if line[0] != "#"} == {
        "hindmost_job_info",
        "hindmost_job_state",
    }
    job.over = True
    assert ["hindmost_rank_steps_total" in page.text([job], there) for _ in range(3)] == [True, False, False]


def test_a_job_says_which_object_of_kubernetes_made_it(job):
    """What the lowest rank says counts for the job; a job outside of Kubernetes has no such series."""
    pods = {"j": {1: Pod("b", workload="Job/b"), 0: Pod("team-a", workload="MPIJob/train", queue="gold")}}
    text = job_metrics.JobPage().text([job], Contact([], 0), JOB, pods)
    assert values(text, "hindmost_job_workload_info") == {("team-a", "MPIJob", "train", "gold"): 1}
    assert "hindmost_job_workload_info{" not in job_metrics.JobPage().text([job], Contact([], 0), JOB)


def test_a_job_counts_steps_and_work(job):
    """Steps are those of the rank with most, work is that of all ranks."""
    text = job_metrics.JobPage().text([job], Contact([], 0), JOB)
    found = [values(text, f"hindmost_job_{name}")[()] for name in ("steps_total", "work_total", "devices")]
    assert found == [100, 1990, 2]
    assert "hindmost_rank_" not in text


def verdict(kind, **facts):
    return {"kind": kind, "cause": None, "ranks": [], "since_step": 7, "confidence": 0.9, "cost_ratio": None} | facts


SLOW = verdict("straggler", cause="gpu_throttle", ranks=[3], cost_ratio=0.4)


@pytest.mark.parametrize(
    ("verdicts", "first", "urgency"),
    [
        ([SLOW, verdict("hang", cause="unknown", ranks=[5])], "hang: rank 5", 2),
        ([verdict("straggler", cause="unknown", ranks=[1], cost_ratio=0.2)], "straggler: rank 1, cause unknown", 0.2),
        ([SLOW, verdict("desync", ranks=[5, 6])], "desync: ranks 5,6", 2),
        ([SLOW], "straggler: rank 3, gpu throttle", 0.4),
        ([verdict("balanced")], "balanced", 0),
        ([verdict("balanced", confidence=0.5)], "unsure: no rank proven", -1),
        ([verdict("insufficient_data")], "unsure: not enough data", -1),
        ([verdict("uneven_workload", cost_ratio=0.1)], "uneven workload", 0.1),
        ([verdict("slow_link", ranks=range(0, 64, 2), cost_ratio=0.1)], "slow link: 32 ranks", 0.1),
    ],
)
def test_the_most_urgent_verdict_is_what_a_person_looks_at_first(job, verdicts, first, urgency):
    """A stop comes before any cost; what is not known is not taken for health; a balanced job names no rank."""
    job.verdicts = lambda: verdicts
    found = values(job_metrics.JobPage().text([job], Contact([], 0)), "hindmost_verdict_urgency")
    labels, highest = max(found.items(), key=lambda one: one[1])
    assert (labels[-1], highest) == (first, urgency)


def test_the_onset_of_a_verdict_outlives_the_window(job):
    """Once its first step has left the window, the time of it is still known."""
    job.verdicts, page = lambda: [SLOW], job_metrics.JobPage()
    for _ in range(2):
        text = page.text([job], Contact([], 0))
        assert list(values(text, "hindmost_verdict_onset_time_seconds").values()) == [2]
        job.window.began_ns = lambda _: None


def test_two_slowdowns_of_one_rank_are_one_series():
    """A rank that is slow throughout and more so since later, for one cause, costs what both do: a scrape knows one."""
    one = {"kind": "straggler", "cause": "input", "ranks": [2], "cost_ms_per_step": 4.0, "confidence": 0.9}
    job = SimpleNamespace(
        id="j",
        window=SimpleNamespace(began_ns=lambda _: None),
        verdicts=lambda: [one, {**one, "cost_ms_per_step": 2.0, "confidence": 0.8}],
    )
    page = "".join(job_metrics.JobPage().of_verdicts([job]))
    (cost,) = [line for line in page.splitlines() if line.startswith("hindmost_verdict_cost_seconds_per_step{")]
    (sure,) = [line for line in page.splitlines() if line.startswith("hindmost_verdict_confidence_ratio{")]
    assert float(cost.split()[-1]) == pytest.approx(0.006)
    assert float(sure.split()[-1]) == pytest.approx(0.8)


@pytest.fixture
def scraped(job):
    """A function: the page of a collector with these settings, that has a job of two ranks and one node with cores."""

    def scrape(**options):
        parts = Components(Options(**options), None)
        parts.jobs["j"] = job
        labels = ["{}", '{"job":"j","rank":"0"}', '{"cpu":"0"}']
        series = [Series(f"hindmost_{name}", False, "", one) for name, one in zip("abc", labels, strict=True)]
        parts.definitions.schemas = {1: Schema(series)}
        parts.nodes.add([MetricRows.of("n0", 1, np.array([5]), np.array([[1.0, 2.0, 3.0]]))])
        scrape = Endpoints(parts)
        scrape.metrics()  # the own metrics of the next one know what this one left out
        return scrape.metrics().decode()

    return scrape


@pytest.mark.parametrize(("most", "withheld"), [(500_000, 0), (8, 1), (7, 8), (0, 9)])
def test_the_page_is_bounded_and_says_what_it_leaves_out(scraped, most, withheld):
    """Of one node's series, seven of ranks and one of a core, the finest go first; jobs' and own series always stay."""
    text = scraped(metrics_series=most)
    assert values(text, "hindmost_collector_withheld_series")[()] == withheld
    kept = [name for name in ("a", "b", "c", "job_info") if f"hindmost_{name}{{" in text]
    assert kept == [name for name, goes in (("a", 9), ("b", 8), ("c", 1), ("job_info", 10)) if withheld < goes]


def test_series_that_are_withheld_take_no_memory():
    """A thousand nodes have a million of them, and more than are shown; a scrape counts these and writes none."""
    made, nodes, width = Definitions(), 50, 100
    for ref in range(nodes):
        labels = [json.dumps({"cpu": str(cpu)}) for cpu in range(width)]
        made.schemas[ref] = Schema(
            Series(f"hindmost_{cpu}", False, "Of a core.", one) for cpu, one in enumerate(labels)
        )
    metrics = NodeMetrics(made)
    metrics.add([MetricRows.of(f"n{ref}", ref, np.array([5]), np.ones((1, width))) for ref in range(nodes)])
    tracemalloc.start()
    try:
        assert (metrics.counts()[CORE], metrics.text(NODE)) == (nodes * width, "")
        assert tracemalloc.get_traced_memory()[0] < 16 * nodes * width
    finally:
        tracemalloc.stop()


def test_series_that_are_not_wanted_are_not_withheld(scraped):
    """A lower level is a choice and no loss."""
    text = scraped(metrics_level="job")
    assert values(text, "hindmost_collector_withheld_series")[()] == 0
    assert "hindmost_rank_" not in text


@pytest.mark.parametrize("label", ["job_id", "job"])
def test_each_series_of_a_job_has_the_label_that_is_set_and_no_other(scraped, label):
    """The old name is there for those who need it, in place of the new one: no series is there twice."""
    text = scraped(job_label=label)
    other = {"job_id": "job", "job": "job_id"}[label]
    assert f'hindmost_rank_steps_total{{{label}="j",rank="1"}}' in text
    assert f'hindmost_b{{node="n0",{label}="j",rank="0"}}' in text
    assert f'{other}="' not in text
