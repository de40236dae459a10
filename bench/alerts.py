"""From a slow rank to a message, and from its repair to the all-clear: how long each takes.

A real mpirun job under ``hindmost run``, whose collector a real Prometheus scrapes with the deployed configuration and
rules; it tells a real Alertmanager with the deployed routes, which posts to a webhook here (Debian: openmpi-bin,
prometheus, prometheus-alertmanager). One rank is slow for a minute. Ranks mostly sleep: a small machine does for this.

    python -m bench.alerts --runs 3 -o bench/results/alerts.json
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.checkout import write
from tests.servers import free_port

ROOT = Path(__file__).parents[1]
#: When the rank is slow, s after the job's first step, and when the job ends.
SLOW_FROM_S, SLOW_UNTIL_S, LASTS_S = 20.0, 80.0, 150.0
TRAINING = f"""
import sys, time
import numpy, hindmost
from mpi4py import MPI

comm, gradient, marks = MPI.COMM_WORLD, numpy.ones(10000), open(sys.argv[1], "a")
comm.Barrier()
began, was = time.time(), False
while (at := comm.bcast(time.time() - began)) < {LASTS_S}:
    slow = {SLOW_FROM_S} <= at < {SLOW_UNTIL_S}
    if slow != was and comm.rank == 2:
        print("firing" if slow else "resolved", time.time(), file=marks, flush=True)
    was = slow
    with hindmost.step(work=32):
        with hindmost.phase("input"):
            time.sleep(0.03 if slow and comm.rank == 2 else 0.005)
        with hindmost.phase("forward"):
            time.sleep(0.015)
        comm.Allreduce(MPI.IN_PLACE, gradient)
"""
NAME = "HindmostStragglerEarly"


class Webhook(ThreadingHTTPServer):
    """Notes when the slow rank's alert was first posted as ``firing`` and as ``resolved``, and in which words."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Posted)
        self.seen: dict[str, tuple[float, str]] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Posted(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]:
            if alert["labels"]["alertname"] == NAME and alert["labels"].get("ranks") == "2":
                self.server.seen.setdefault(alert["status"], (time.time(), alert["annotations"]["summary"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Nothing is logged."""


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own group, ended with what began it."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **root}, start_new_session=True, cwd=log.parent
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.wait(60)


def commands(directory: Path, webhook: Webhook) -> dict[str, list[str]]:
    """What is started: the deployed configuration, pointed at one another's ports."""
    page, prometheus, alertmanager = (f"127.0.0.1:{free_port()}" for _ in range(3))
    for deployed, changes in (
        ("prometheus/prometheus.yml", {"collector:9461": page, "alertmanager:9093": alertmanager}),
        ("alertmanager/alertmanager.yml", {"127.0.0.1:9099": f"127.0.0.1:{webhook.server_port}"}),
    ):
        text = (ROOT / "deploy" / deployed).read_text(encoding="utf-8")
        for address, here in changes.items():
            text = text.replace(address, here)
        (directory / Path(deployed).name).write_text(text, encoding="utf-8")
    for rules in ("recording.yml", "alerts.yml"):
        shutil.copy(ROOT / "dashboards" / rules, directory)
    (directory / "train.py").write_text(TRAINING, encoding="utf-8")
    run = [sys.executable, "-m", "hindmost", "run", "--listen", page, "--out", "run", "--"]
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4", sys.executable, "train.py", "marks"]
    kept = "--storage.tsdb.path=series", f"--web.listen-address={prometheus}"
    silences = "--storage.path=silences", f"--web.listen-address={alertmanager}", "--cluster.listen-address="
    return {
        "prometheus": ["prometheus", "--config.file=prometheus.yml", *kept],
        "alertmanager": [_alertmanager(), "--config.file=alertmanager.yml", *silences],
        "job": run + mpirun,
    }


def _alertmanager() -> str:
    return shutil.which("prometheus-alertmanager") or "alertmanager"


def once(directory: Path) -> dict[str, Any]:
    """One job: seconds from the fault to "firing", and from its repair to "resolved"; None where none came."""
    with Webhook() as webhook, ExitStack() as running:
        running.callback(webhook.shutdown)
        for name, command in commands(directory, webhook).items():
            job = running.enter_context(started(command, directory / f"{name}.log"))
        while job.poll() is None and "resolved" not in webhook.seen:
            time.sleep(0.1)
        marks = directory / "marks"
        happened = dict(line.split() for line in marks.read_text().splitlines()) if marks.exists() else {}
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    for status in ("firing", "resolved"):
        at, text = webhook.seen.get(status, (None, None))
        known = at is not None and status in happened
        found |= {f"{status}_s": round(at - float(happened[status]), 1) if at and known else None, status: text}
    return found


def main() -> None:
    """Measure, print, and fail where a message came late or not at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--most", type=float, default=30.0, help="seconds that either may take")
    parser.add_argument("-o", "--output", type=Path, help="where the figures go as JSON")
    args = parser.parse_args()
    missing = [name for name in ("mpirun", "prometheus", _alertmanager()) if not shutil.which(name)]
    if missing:
        sys.exit(f"no {', '.join(missing)}: apt install openmpi-bin prometheus prometheus-alertmanager")
    results = []
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory(prefix="alerts-") as directory:
            results.append(once(Path(directory).resolve()))
        print(json.dumps(results[-1]), flush=True)
    if args.output:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        write(args.output, {"command": "python -m bench.alerts", "machine": machine, "runs": results})
    took = [one[f"{status}_s"] for one in results for status in ("firing", "resolved")]
    sys.exit(any(seconds is None or seconds > args.most for seconds in took))


if __name__ == "__main__":
    main()
