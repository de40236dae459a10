"""The dashboards over a job of 1,024 ranks on 128 nodes, back-filled into a real Prometheus."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("prometheus", "promtool")

Sample = tuple[str, str, float]

RANKS, PER_NODE, CULPRIT = 1024, 8, 517
END = 1_700_000_000
TICK, TICKS = 30, 10

#: No panel may draw more lines than a person can tell apart, no table may have more rows than one scrolls.
MOST_LINES = 36
MOST_ROWS = 50

PER_SECOND = {
    "hindmost_rank_steps_total": 2.0,
    "hindmost_rank_step_seconds_total": 1.0,
    "hindmost_rank_collectives_total": 8.0,
    "hindmost_rank_events_lost_total": 0.0,
    "hindmost_process_cpu_seconds_total": 1.0,
    "hindmost_process_runqueue_seconds_total": 0.01,
    "hindmost_process_read_bytes_total": 1e6,
}
BOARDS = ("hindmost-job.json", "hindmost-nodes.json", "hindmost-gpus.json")

GPU_GAUGES = {
    "hindmost_gpu_sm_clock_hertz": 1.7e9,
    "hindmost_gpu_sm_clock_max_hertz": 1.98e9,
    "hindmost_gpu_memory_used_bytes": 1e11,
    "hindmost_gpu_memory_total_bytes": 1.5e11,
    "hindmost_gpu_power_watts": 600.0,
    "hindmost_gpu_temperature_celsius": 60.0,
    "hindmost_gpu_utilization_ratio": 0.99,
    "hindmost_gpu_sm_activity_ratio": 0.8,
    "hindmost_gpu_tensor_activity_ratio": 0.4,
    "hindmost_gpu_dram_activity_ratio": 0.3,
    "hindmost_gpu_pcie_receive_bytes_per_second": 6e8,
}
GPU_COUNTERS = [
    ("hindmost_gpu_clocks_event_seconds_total", ',reason="sw_power_cap"'),
    ("hindmost_gpu_nvlink_receive_bytes_total", ""),
    ("hindmost_gpu_nvlink_replay_errors_total", ""),
    ("hindmost_gpu_pcie_errors_total", ',kind="bad_tlp"'),
    ("hindmost_gpu_ecc_errors_total", ',corrected="no"'),
    ("hindmost_gpu_all_xid_errors_total", ""),
]
NODE_COUNTERS = [
    ("hindmost_agent_cpu_seconds_total", ""),
    ("hindmost_node_context_switches_total", ""),
    ("hindmost_node_major_page_faults_total", ""),
    *(("hindmost_node_cpu_seconds_total", f',mode="{mode}"') for mode in ("user", "idle")),
    *(("hindmost_node_pressure_waiting_seconds_total", f',resource="{what}"') for what in ("cpu", "io", "memory")),
    *((f"hindmost_node_disk_{what}_total", ',device="d0"') for what in ("read_bytes", "written_bytes", "busy_seconds")),
    *(
        (f"hindmost_node_network_{way}_{what}_total", ',device="eth0"')
        for way in ("receive", "transmit")
        for what in ("bytes", "errors", "drops")
    ),
]


def test_every_panel_has_data_and_stays_readable(
    serve: Callable[[Path, Path], Any], panels: Callable[[str], Any], data: Path, tmp_path: Path
) -> None:
    """With 1,024 ranks each query of each dashboard answers, with few enough series to read."""
    config = tmp_path / "prometheus.yml"
    config.write_text("scrape_configs: []\n")
    server = serve(config, data)
    wrong = []
    for panel in (panel for name in BOARDS for panel in panels(name)):
        found = [len(server.show(target, "big", END, TICK)) for target in panel["targets"]]
        readable = max(found) <= MOST_ROWS if panel["type"] == "table" else sum(found) <= MOST_LINES
        if not (all(found) and readable):
            wrong.append((panel["title"], found))
    assert wrong == []


def test_the_culprit_is_on_top_of_the_panels_that_name_it(
    serve: Callable[[Path, Path], Any], panels: Callable[[str], Any], data: Path, tmp_path: Path
) -> None:
    """Both bar panels show the one slow rank of 1,024 first, with the node it runs on."""
    config = tmp_path / "prometheus.yml"
    config.write_text("scrape_configs: []\n")
    server = serve(config, data)
    first = [
        server.show(panel["targets"][0], "big", END)[0]["metric"]
        for panel in panels("hindmost-job.json")
        if panel["type"] == "bargauge"
    ]
    assert [(metric["rank"], metric["node"]) for metric in first] == [(str(CULPRIT), f"n{CULPRIT // PER_NODE}")] * 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prometheus data directory with five minutes of the simulated job."""
    directory = tmp_path_factory.mktemp("data")
    text = directory / "job.om"
    text.write_text("".join(exposition()) + "# EOF\n")
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", text, directory],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return directory


def exposition() -> Iterator[str]:
    """OpenMetrics text of all ticks, each sample with its time."""
    for tick in range(TICKS + 1):
        elapsed, at = float(tick * TICK), END - (TICKS - tick) * TICK
        for name, labels, value in [
            *job(),
            *nodes(elapsed),
            *(row for rank in range(RANKS) for row in of(rank, elapsed)),
        ]:
            yield f"{name}{{{labels}}} {value} {at}\n"


def job() -> Iterator[Sample]:
    """What is said once a job: who it is, its step time, and the verdict on it."""
    verdict = f'job="big",kind="straggler",cause="compute",ranks="{CULPRIT}"'
    yield "hindmost_job_info", 'job="big",command="train.py",world_size="1024"', 1.0
    yield "hindmost_job_step_seconds", 'job="big",quantile="0.5"', 0.5
    yield "hindmost_job_step_seconds", 'job="big",quantile="0.99"', 0.6
    yield "hindmost_verdict_info", verdict + ',since_step="0"', 1.0
    yield "hindmost_verdict_cost_ratio", verdict, 0.2
    yield "hindmost_verdict_cost_seconds_per_step", verdict, 0.1
    yield "hindmost_verdict_confidence_ratio", verdict, 0.99


def of(rank: int, elapsed: float) -> Iterator[Sample]:
    """What is said of each rank: one is slow by a fifth of a step, and all others wait for it."""
    slow = rank == CULPRIT
    labels = f'job="big",rank="{rank}"'
    node = f'node="n{rank // PER_NODE}"'
    yield "hindmost_rank_info", f'{labels},{node},local_rank="{rank % PER_NODE}",pid="{rank + 2}",gpu_uuid=""', 1.0
    yield "hindmost_rank_wait_seconds_total", labels, elapsed * (0.01 if slow else 0.2)
    yield (
        "hindmost_rank_caused_wait_seconds_total",
        labels,
        elapsed * (0.2 * (RANKS - 1) if slow else 0.01 + rank * 1e-6),
    )
    yield "hindmost_rank_last_arrivals_total", labels, elapsed * (7.5 if slow else 0.5 / RANKS)
    yield "hindmost_rank_last_step", labels, elapsed * 2
    for phase, seconds in (("input", 0.1), ("forward", 0.5 if slow else 0.3), ("sync", 0.2)):
        yield "hindmost_rank_phase_seconds_total", f'{labels},phase="{phase}"', elapsed * seconds
    for name, per_second in PER_SECOND.items():
        yield name, f"{labels},{node}" if "process" in name else labels, elapsed * per_second
    yield "hindmost_process_resident_memory_bytes", f"{labels},{node}", 4e9
    gpu = f'{node},gpu_uuid="GPU-{rank}"'
    yield "hindmost_gpu_rank_info", f"{gpu},{labels}", 1.0
    for name, value in GPU_GAUGES.items():
        yield name, gpu, value
    for name, more in GPU_COUNTERS:
        yield name, gpu + more, elapsed * 0.01


def nodes(elapsed: float) -> Iterator[Sample]:
    """What is said of each node itself and by its agent."""
    for number in range(RANKS // PER_NODE):
        node = f'node="n{number}"'
        yield "hindmost_node_memory_total_bytes", node, 1e12
        yield "hindmost_node_memory_available_bytes", node, 8e11
        yield "hindmost_node_cpus", node, 96.0
        yield "hindmost_node_processes_running", node, 9.0
        yield "hindmost_agent_spool_bytes", node, 1e5
        yield "hindmost_collector_agent_silence_seconds", node, 0.5
        for name, labels in NODE_COUNTERS:
            yield name, f"{node}{labels}", elapsed * 0.02
