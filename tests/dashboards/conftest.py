"""A real Prometheus server of the test's own: temporary data, loopback, a free port, gone when the test ends."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers import free_port, until_it_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
MINUTES = 5

#: What Grafana puts in place of its variables: all nodes and ranks, and the intervals of a fresh short job.
VARIABLES = {"$node": ".*", "$rank": ".*", "$__rate_interval": "60s", "$__range": "5m"}


class Prometheus:
    """A running server and its query API."""

    def __init__(self, base: str) -> None:
        self.base = base

    def get(self, path: str, **parameters: str) -> Any:
        """The ``data`` of one API call; a refused query fails the test with Prometheus' own words."""
        url = f"{self.base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - loopback
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def show(self, target: dict[str, Any], job: str, end: float, step_s: int = 5) -> list[dict[str, Any]]:
        """The series that Grafana would draw for a panel's target at ``end``, its variables substituted."""
        expression = target["expr"]
        for variable, value in {"$job": job, **VARIABLES}.items():
            expression = expression.replace(variable, value)
        if target.get("instant"):
            return list(self.get("query", query=expression, time=f"{end}")["result"])
        start = f"{end - MINUTES * 60}"
        return list(self.get("query_range", query=expression, start=start, end=f"{end}", step=f"{step_s}")["result"])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Path, Path], Prometheus]]:
    """Start a server on a configuration file and a data directory."""
    running: list[subprocess.Popen[bytes]] = []

    def start(config: Path, data: Path) -> Prometheus:
        base, log = f"127.0.0.1:{free_port()}", tmp_path / "prometheus.log"
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}"]
        command += [f"--web.listen-address={base}", "--log.level=warn", "--storage.tsdb.retention.time=10y"]
        with log.open("wb") as written:
            running.append(subprocess.Popen(command, stdout=written, stderr=written, cwd=tmp_path))
        until_it_answers(running[-1], f"http://{base}/-/ready", log)
        return Prometheus(f"http://{base}")

    yield start
    for process in running:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="session")
def panels() -> Callable[[str], list[dict[str, Any]]]:
    """The panels of a dashboard file that show data."""

    def read(name: str) -> list[dict[str, Any]]:
        board = json.loads((ROOT / "dashboards" / name).read_text(encoding="utf-8"))
        return [panel for panel in board["panels"] if panel["type"] != "row"]

    return read
