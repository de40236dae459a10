"""What the page of running and stored jobs asks for, and the newest state of ranks, nodes and GPUs."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.recording_api import Recording
from hindmost_collector.report.machine_tables import cell
from hindmost_collector.serve.live_page import LivePage, condition_of
from hindmost_collector.serve.live_tables import recorded
from hindmost_collector.serve.node_metrics import NodeMetrics
from hindmost_collector.simulate import Fault, Scenario
from hindmost_collector.simulate.write import simulated
from hindmost_collector.store.parquet.store import ParquetStore

SECOND = 1_000_000_000
RANK = '{"job":"j","rank":"2"}'
CPU = "hindmost_process_cpu_seconds_total"
WAIT = {"name": "wait for I/O", "unit": "ratio", "values": [0.25]}
POWER = {"name": "power", "unit": "watts", "values": [310.0]}


class Node:
    """A collector that heard of one node, whose schema 1 has these series: ``(name, labels, counter)``."""

    def __init__(self, *series: tuple[str, str, bool]) -> None:
        self.definitions = Definitions()
        self.nodes = NodeMetrics(self.definitions)
        self.defined(1, *series)
        ranks = {name: np.array(values) for name, values in (("rank", [2]), ("node", ["n0"]), ("gpu_uuid", [""]))}
        job: Any = SimpleNamespace(
            id="j",
            over=False,
            sealed=False,
            exit_code=None,
            report=None,
            report_until_now=lambda: None,
            judged_s=lambda _: None,
            reported=0,
            verdicts=list,
            history=SimpleNamespace(revision=0),
            world_size=4,
            window=SimpleNamespace(ranks=lambda: ranks, last_step=7),
            counters=lambda: [("last_step", np.array([np.nan, np.nan, 7.0]))],
        )
        parts: Any = SimpleNamespace(
            jobs={"j": job},
            nodes=self.nodes,
            definitions=self.definitions,
            clock=SimpleNamespace(now=lambda: 20 * SECOND),
            ingest=SimpleNamespace(agents={}),
            recorder=SimpleNamespace(store=None),
        )
        self.parts, self.agents, self.job, self.page = parts, parts.ingest.agents, job, LivePage(parts)
        self.tables = self.page.tables

    def defined(self, ref: int, *series: tuple[str, str, bool]) -> None:
        self.definitions.schemas[ref] = Schema(Series(name, counter, "", labels) for name, labels, counter in series)

    def heard(self, second: float, values: Sequence[float], ref: int = 1) -> None:
        times = np.array([int(second * SECOND)])
        self.nodes.add([MetricRows.of("n0", ref, times, np.array([values], float))])

    def table(self, name: str) -> dict[str, list[Any]]:
        shown = self.tables.picture("j")
        assert shown is not None
        found: dict[str, list[Any]] = shown["tables"][name]
        return found


def test_a_counter_is_a_rate_once_it_was_heard_twice() -> None:
    """Between the two samples themselves, not between two questions."""
    node = Node((CPU, RANK, True), ("hindmost_process_resident_memory_bytes", RANK, False))
    node.heard(10, [100.0, 5e6])
    assert node.table("ranks").get("cpu", [None]) == [None]
    assert node.table("ranks")["memory"] == [5e6]
    node.heard(14, [102.0, 6e6])
    assert node.table("ranks")["cpu"] == [0.5]
    assert node.table("ranks")["cpu"] == [0.5]  # asked again before there is anything new
    assert node.table("ranks")["step"] == [7.0]


def test_the_length_of_a_step_in_the_table_of_jobs_is_the_mean() -> None:
    """As in ``hindmost top``: a key says which of the two lengths it is."""
    node = Node((CPU, RANK, True))
    lengths = {"p50": 100.0, "p99": 400.0, "mean": 120.0}
    node.job.report = {"job": {"id": "j", "step_ms": lengths}, "verdicts": [], "ranks": []}
    assert node.table("jobs")["mean_step_ms"] == [120.0]


def test_a_counter_that_began_anew_has_no_rate() -> None:
    """A process was restarted: its time is no negative one."""
    node = Node((CPU, RANK, True))
    node.heard(10, [100.0])
    node.table("ranks")
    node.heard(12, [1.0])
    assert node.table("ranks").get("cpu", [None]) == [None]


def test_workers_count_for_their_rank_and_devices_for_their_node() -> None:
    """Without the loopback device, bonds, which count their members again, and idle CPU time."""
    node = Node(
        ("hindmost_process_read_bytes_total", RANK, True),
        ("hindmost_process_children_read_bytes_total", RANK, True),
        ("hindmost_node_network_receive_bytes_total", '{"device":"eth0"}', True),
        ("hindmost_node_network_transmit_bytes_total", '{"device":"eth1"}', True),
        ("hindmost_node_infiniband_receive_bytes_total", '{"device":"mlx5_0","port":"1"}', True),
        ("hindmost_node_network_receive_bytes_total", '{"device":"lo"}', True),
        ("hindmost_node_network_receive_bytes_total", '{"device":"bond0"}', True),
        ("hindmost_node_cpu_seconds_total", '{"mode":"user"}', True),
        ("hindmost_node_cpu_seconds_total", '{"mode":"idle"}', True),
    )
    node.heard(1, [0] * 9)
    node.table("ranks")
    node.heard(2, [1, 20, 300, 4000, 50000, 6e9, 6e9, 3, 60])
    assert node.table("ranks")["read"] == [21.0]
    assert node.table("ranks")["node_net"] == [54300.0]
    nodes = node.table("nodes")
    assert (nodes["received"], nodes["sent"], nodes["cpu"]) == ([50300.0], [4000.0], [3.0])


def test_a_rank_has_its_gpu_by_what_the_driver_says() -> None:
    """Utilisation and temperature stand in the rank's row."""
    gpu = '{"gpu_uuid":"GPU-1"}'
    node = Node(
        ("hindmost_gpu_rank_info", '{"gpu_uuid":"GPU-1","job":"j","rank":"2"}', False),
        ("hindmost_gpu_utilization_ratio", gpu, False),
        ("hindmost_gpu_temperature_celsius", gpu, False),
    )
    node.heard(1, [1.0, 0.5, np.nan])
    ranks = node.table("ranks")
    assert (ranks["gpu"], ranks["gpu_busy"]) == (["GPU-1"], [0.5])
    assert "gpu_temperature" not in ranks  # it does not answer: nothing is made up
    assert node.table("gpus")["ranks"] == [[2]]


def test_an_agent_that_started_anew_is_not_counted_twice() -> None:
    """Two schemas have the same series: that which came last is shown."""
    memory = ("hindmost_node_memory_used_bytes", "{}", False)
    node = Node(memory)
    node.heard(1, [100.0])
    node.defined(2, memory)
    node.heard(5, [70.0], ref=2)
    assert node.table("nodes")["memory"] == [70.0]


@pytest.mark.parametrize(
    ("outbox", "heard", "age_s", "lost"),
    [(object(), 19, 1.0, []), (None, 13, 7.0, []), (None, 12, 8.0, ["n0"]), (object(), 5, 15.0, ["n0"])],
)
def test_lost_contact_is_that_of_the_agents(outbox: Any, heard: int, age_s: float, lost: list[str]) -> None:
    """A hung job makes no steps, and its agents are heard all the same; the page says of it what the tables say."""
    node = Node((CPU, RANK, True))
    agent = {"job": "", "departed": False, "outbox": outbox}
    node.agents["a"] = SimpleNamespace(node="n0", last_heard_ns=heard * SECOND, **agent)
    node.agents["b"] = SimpleNamespace(node="another", last_heard_ns=20 * SECOND, **agent)
    shown = node.tables.picture("j")
    assert shown is not None
    assert (shown["age_s"], shown["lost"], shown["tables"]["jobs"]["age_s"]) == (age_s, lost, [age_s])
    state, _, age_ns = condition_of(node.job, node.parts)
    assert (state, age_ns) == ("lost" if lost else "starting", age_s * SECOND)


def test_the_page_has_the_same_nodes_and_gpus() -> None:
    """Of its job; another job's are left out."""
    node = Node(
        ("hindmost_node_pressure_waiting_seconds_total", '{"resource":"io"}', True),
        ("hindmost_gpu_rank_info", '{"gpu_uuid":"GPU-1","job":"j","rank":"2"}', False),
        ("hindmost_gpu_power_watts", '{"gpu_uuid":"GPU-1"}', False),
        ("hindmost_gpu_power_watts", '{"gpu_uuid":"GPU-2"}', False),
    )
    node.heard(1, [0.0, 1.0, 300.0, 400.0])
    node.table("nodes")
    node.heard(2, [0.25, 1.0, 310.0, 410.0])
    assert (node.table("nodes")["io_wait"], node.table("gpus")["power"]) == ([0.25], [310.0, 410.0])
    answer = node.page.answer("machines", {"job": "j"})
    assert answer is not None
    assert json.loads(gzip.decompress(answer)) == {
        "nodes": {"node": ["n0"], "gpu": [None], "ranks": [[2]], "columns": [WAIT]},
        "gpus": {"node": ["n0"], "gpu": ["GPU-1"], "ranks": [[2]], "columns": [POWER]},
    }


@pytest.mark.parametrize("labels", ["{}", '{"job":"j","rank":"x"}', '{"job":"j","rank":"-1"}'])
def test_a_series_of_no_rank_is_left_out(labels: str) -> None:
    """Whatever an agent sends."""
    assert cell("n0", CPU, labels) is None


@pytest.mark.parametrize(("ended_ns", "over"), [(None, False), (5, True)])
def test_a_run_directory_has_the_same_tables(tmp_path: Path, ended_ns: int | None, over: bool) -> None:
    """Of its newest samples; one that is no longer written says for how long."""
    path = tmp_path / "run"
    simulated(Scenario(ranks=16, steps=30, seed=1, faults=(Fault("gpu_throttle", (13,), 0.2),)), path)
    newest_ns = int(Recording(path).sql("select max(time_ns) from metrics").column(0)[0].as_py())
    meta = path / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "ended_ns": ended_ns}))
    shown = recorded(path, None, newest_ns + 42 * SECOND)
    ranks = shown["tables"]["ranks"]
    slow, other = (ranks["gpu_clock"][ranks["rank"].index(rank)] for rank in (13, 2))
    assert slow < 0.9 * other
    assert (len(ranks["rank"]), shown["age_s"], shown["over"]) == (16, 42.0, over)


S = 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParquetStore]:
    """A store with one job that is over."""
    made = ParquetStore(tmp_path, single=False)
    made.write_meta("a/b", {"job_id": "a/b", "command": "train.py", "world_size": 4, "started_ns": 7 * S})
    verdict = {"kind": "straggler", "ranks": [2], "cost_ratio": 0.3}
    made.write_file("a/b", "report.json", json.dumps({"job": {"id": "a/b"}, "verdicts": [verdict]}).encode())
    made.write_file("a/b", "report.html", b"<!doctype html>")
    yield made
    made.close()


def collector(store: ParquetStore | None = None, *jobs: LiveJob, agents: tuple[Any, ...] = ()) -> Any:
    """As much of one as a page reads."""
    return SimpleNamespace(
        jobs={job.id: job for job in jobs},
        clock=SimpleNamespace(now=lambda: 100 * S),
        ingest=SimpleNamespace(agents=dict(enumerate(agents))),
        recorder=SimpleNamespace(store=store, trouble=None),
    )


def test_stored_jobs_are_listed_with_verdict_and_cost(store: ParquetStore) -> None:
    """After those that run; each has its report as a page."""
    page = LivePage(collector(store, LiveJob("live", 0)))
    running, stored = page.jobs()
    assert (running["id"], running["state"]) == ("live", "starting")
    row = ("a/b", "stored", "straggler", [2], 0.3, 7.0)
    assert tuple(stored[name] for name in ("id", "state", "kind", "ranks", "cost_ratio", "started_s")) == row
    assert page.report_page("a/b") == b"<!doctype html>"
    assert page.report_page("nosuch") is None


def test_what_is_not_known_is_nothing() -> None:
    """A job without a report or steps; a job, a table and a rank that there are not."""
    page = LivePage(collector(None, LiveJob("live", 0)))
    for of in ("report", "steps"):
        body = page.answer(of, {"job": "live"})
        assert body is not None
        assert json.loads(gzip.decompress(body)) is None
    assert page.answer("nosuch", {"job": "live"}) is None
    assert page.answer("steps", {"job": "nosuch"}) is None
    assert page.state("nosuch") == {"job": "nosuch", "state": "unknown"}
    body = page.answer("rank", {"job": "live", "rank": "²"})
    assert body is not None
    assert json.loads(gzip.decompress(body)) == {"rank": -1, "gauges": [], "stack": None}


def test_a_job_is_said_to_have_ended_with_how_it_did() -> None:
    """A normal end needs no word."""
    job = LiveJob("live", 0)
    for code, why in ((0, ""), (3, "exit code 3")):
        job.exit_code = code
        assert condition_of(job, collector(None, job)) == ("ended", why, None)
