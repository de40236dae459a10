"""The boards over a real job: mpirun under ``hindmost run``, two scrapes of its collector, and real nodes with GPUs."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards.conftest import INTERVAL_S, TICKS, Case, targets
from tests.servers import free_port, until_it_answers

pytestmark = [pytest.mark.cluster, pytest.mark.needs("mpirun")]

ROOT = Path(__file__).parents[2]
BOARDS = ("jobs", "job", "rank", "nodes", "gpus", "itself")
#: Another checkout may run the same test on this machine.
JOB = f"live-{os.getpid()}"
END = float(INTERVAL_S * TICKS)
#: Scrapes of agents on a host with 4 H200s, and on a made one that has every source; only jobs are missing there.
NODES = ("agent_scrape_h200x4.txt", "agent_scrape.txt")
BETWEEN_S = 2.0
#: Its steps, its processes and its agent's samplers come at times of their own where cores are full.
KNOWN = (
    "hindmost_rank_steps_total",
    "hindmost_process_voluntary_switches_total",
    "hindmost_process_read_bytes_total",
    "hindmost_agent_sampler_duration_seconds",
)
#: Ranks that mostly sleep, so that this test takes no core from others; the last one is slow.
TRAINING = """
import time
import numpy, hindmost
from mpi4py import MPI

comm, gradient = MPI.COMM_WORLD, numpy.ones(1000)
while True:
    with hindmost.step(work=32):
        with hindmost.phase("input"):
            time.sleep(0.002)
        with hindmost.phase("forward"):
            time.sleep(0.03 if comm.rank == 2 else 0.01)
        comm.Allreduce(MPI.IN_PLACE, gradient)
"""
#: What the job has once it is judged: it is added, so that it may be short.
VERDICT = f'job_id="{JOB}",kind="straggler",cause="compute",ranks="2"'
LATER = {
    f'hindmost_verdict_urgency{{{VERDICT},verdict="straggler: rank 2, compute"}}': 0.4,
    f'hindmost_verdict_info{{{VERDICT},since_step="3"}}': 1.0,
    **{
        f"hindmost_verdict_{name}{{{VERDICT}}}": 0.4
        for name in ("cost_ratio", "cost_seconds_per_step", "confidence_ratio")
    },
    f'hindmost_job_step_ideal_seconds{{job_id="{JOB}"}}': 0.1,
}


class Scrapes(NamedTuple):
    """Two scrapes, and the seconds between them."""

    first: str
    second: str
    seconds: float


@pytest.mark.needs("promtool")
def test_every_panel_has_data_in_a_job_that_has_its_subject(
    evaluate: Callable[[Iterable[Case]], None], job: Scrapes
) -> None:
    """Each query of each board finds series, over three MPI ranks of which one is slow and over nodes with GPUs.

    Those of a table have no metric's name: Grafana would take two names for two rows.
    """
    later = {name: f"{value}+{int('_total' in name)}x{TICKS}" for name, value in LATER.items()}
    series = {**later, **of_job(job), **dict(one for name in NODES for one in of_node(name))}
    checks = []
    for target in (target for board in BOARDS for target in targets(board)):
        filled = target.filled(job_id=JOB, rank="2" if target.board == "rank" else ".*")
        named = f'label_replace(count by (__name__) ({filled}), "name", "$1", "__name__", "(.+)") > bool 0'
        found = named if target.kind == "table" else f"count({filled}) > bool 0"
        checks.append((found, END, {"{}": 1.0}))
    assert len(checks) > 100
    evaluate([Case(series, checks)])


def test_every_metric_that_is_exposed_is_documented(job: Scrapes) -> None:
    """Each family on the page of a real job's collector is in the documentation, with its type."""
    found = re.findall(r"^# TYPE (hindmost_\w+) (\w+)", job.second, re.MULTILINE)
    exposed = {(name, kind) for name, kind in found if not name.endswith("_created")}  # added by prometheus_client
    pages = "".join((ROOT / "docs/reference" / name).read_text() for name in ("metrics.md", "collector-metrics.md"))
    documented = set(re.findall(r"^\| `(hindmost_\w+)` \| (\w+) \|", pages, re.MULTILINE))
    assert len(exposed) > 50
    assert exposed - documented == set()


def of_job(job: Scrapes) -> dict[str, str]:
    """Each series of the job's collector as Prometheus has it, growing on as between the scrapes.

    A counter that a busy machine did not move in between grows by its own value.
    """
    before, found = values(job.first), {}
    for name, value in values(job.second).items():
        counts = "_total{" in name or "_bucket{" in name
        grown = max(value - before.get(name, 0.0), 0.0) or (value if counts else 0.0)
        found[name] = f"{value}+{grown * INTERVAL_S / job.seconds}x{TICKS}"
    return found


def of_node(name: str) -> Iterator[tuple[str, str]]:
    """A scrape of a node as its collector passes it on; each GPU computes for one rank."""
    for series, value in values((ROOT / "tests/golden" / name).read_text(encoding="utf-8")).items():
        yield series, f"{value}+{int('_total' in series)}x{TICKS}"
        gpu = re.search(r'hindmost_gpu_info.*gpu_uuid="([^"]+)",gpu="(\d+)"', series)
        if gpu:
            of = f'job_id="{JOB}",rank="{gpu[2]}"'
            yield f'hindmost_gpu_rank_info{{node="node1",gpu_uuid="{gpu[1]}",{of}}}', f"1x{TICKS}"


def values(text: str) -> dict[str, float]:
    """The samples of a page, with the labels that a scrape adds."""
    return {
        sample.name
        + "{"
        + ",".join(f'{key}="{value}"' for key, value in {**sample.labels, "job": "hindmost", "instance": "c:1"}.items())
        + "}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "\\" not in str(sample.labels) and '"' not in "".join(sample.labels.values())
    }


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Scrapes:
    """A job whose steps are known, and two pages of its collector."""
    tmp_path = tmp_path_factory.mktemp("job")
    address, said = f"127.0.0.1:{free_port()}", tmp_path / "job.log"
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = [sys.executable, "-m", "hindmost", "run", "--job-id", JOB, "--out", str(tmp_path / "run")]
    command += [
        "--listen",
        address,
        "--",
        "mpirun",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        "3",
        sys.executable,
        str(script),
    ]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with said.open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **root}, start_new_session=True)
    try:
        for family in KNOWN:
            until_it_answers(running, f"http://{address}/metrics", said, says=family + "{")
        first, began = page(address), time.monotonic()
        time.sleep(BETWEEN_S)
        return Scrapes(first, page(address), time.monotonic() - began)
    finally:
        os.killpg(running.pid, signal.SIGINT)
        running.wait(300)


def page(address: str) -> str:
    """What the collector's ``/metrics`` shows now."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=200) as answer:
        text: str = answer.read().decode()
        return text
