"""The dashboards over a real job: mpirun under ``hindmost run``, its collector scraped by a real Prometheus."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers import free_port, until_it_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.needs("mpirun"), pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
BOARDS = ("hindmost-job.json", "hindmost-nodes.json")
#: Another checkout may run the same test on this machine.
JOB = f"live-{os.getpid()}"
WAIT_S = 90.0


@pytest.mark.needs("prometheus")
def test_every_panel_has_data_during_a_real_job(
    serve: Callable[[Path, Path], Any], panels: Callable[[str], Any], job: str, tmp_path: Path
) -> None:
    """Each query of the job and node dashboards finds series while four MPI ranks train, one of them slow."""
    server = serve(scraping(job, tmp_path), tmp_path / "data")
    targets = [(panel["title"], target) for name in BOARDS for panel in panels(name) for target in panel["targets"]]
    empty, deadline = targets, time.monotonic() + WAIT_S
    while empty and time.monotonic() < deadline:
        time.sleep(1)
        empty = [(title, target) for title, target in empty if not server.show(target, JOB, time.time())]
    missing = [f"{title} {target['refId']}" for title, target in empty]
    assert missing == [], "\n".join(missing)


def test_every_metric_that_is_exposed_is_documented(job: str) -> None:
    """Each family on the page of a real job's collector is in the documentation, with its type."""
    with urllib.request.urlopen(f"http://{job}/metrics", timeout=10) as answer:
        found = re.findall(r"^# TYPE (hindmost_\w+) (\w+)", answer.read().decode(), re.MULTILINE)
    exposed = {(name, kind) for name, kind in found if not name.endswith("_created")}  # added by prometheus_client
    pages = "".join((ROOT / "docs/reference" / name).read_text() for name in ("metrics.md", "collector-metrics.md"))
    documented = set(re.findall(r"^\| `(hindmost_\w+)` \| (\w+) \|", pages, re.MULTILINE))
    assert len(exposed) > 50
    assert exposed - documented == set()


def scraping(address: str, tmp_path: Path) -> Path:
    """The deployed scrape configuration and alert rules, pointed at the job and made quick."""
    deployed = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    config = tmp_path / "prometheus.yml"
    config.write_text(deployed.replace("collector:9461", address).replace("scrape_interval: 5s", "scrape_interval: 1s"))
    shutil.copy(ROOT / "dashboards" / "alerts.yml", tmp_path)
    return config


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job that runs until the tests have seen enough: the address of its collector's page, which shows its ranks."""
    tmp_path = tmp_path_factory.mktemp("job")
    address, said = f"127.0.0.1:{free_port()}", tmp_path / "job.log"
    training = [sys.executable, str(ROOT / "examples" / "train_mpi.py"), "--steps", "100000", "--slow-rank", "2"]
    command = [sys.executable, "-m", "hindmost", "run", "--job-id", JOB, "--out", str(tmp_path / "run")]
    command += ["--listen", address, "--", "mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with said.open("wb") as log:
        running = subprocess.Popen(
            [*command, *training, "--slow-ms", "20"],
            stdout=log,
            stderr=log,
            env={**os.environ, **root},
            start_new_session=True,
        )
    try:
        until_it_answers(running, f"http://{address}/metrics", said, says="hindmost_rank_steps_total{")
        yield address
    finally:
        os.killpg(running.pid, signal.SIGINT)
        running.wait(60)
