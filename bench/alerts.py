"""From a slow rank to a message, and from its repair to the all-clear: how long each takes.

    python bench/alerts.py --times 3 --write bench/results/alerts.json

A real mpirun job that a collector of a cluster watches, scraped by a real Prometheus with the deployed configuration,
rules and Alertmanager (Debian: prometheus, prometheus-alertmanager), which posts to a webhook here. One rank is slow
for a while in the middle of the job. Ranks mostly sleep, so that a small machine does for this.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hindmost.inject

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
        print("slow" if slow else "healed", time.time(), file=marks, flush=True)
    was = slow
    with hindmost.step(work=32):
        with hindmost.phase("input"):
            time.sleep(0.03 if slow and comm.rank == 2 else 0.005)
        with hindmost.phase("forward"):
            time.sleep(0.015)
        comm.Allreduce(MPI.IN_PLACE, gradient)
        gradient /= comm.size
"""
NAME = "HindmostStragglerEarly"


class Webhook:
    """Notes when each alert of the job was first reported to fire, and to be resolved."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], float] = {}
        self.texts: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    if alert["labels"].get("ranks") != "2":
                        continue  # the watchdog, or what the machine is slow by
                    key = alert["labels"]["alertname"], alert["status"]
                    if outer.seen.setdefault(key, time.time()) > time.time() - 0.1:
                        outer.texts.append(f"{alert['status']}: {alert['annotations']['summary']}")
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()


def free_port() -> int:
    """A port of loopback on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(command: list[str], log: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own group, ended with what began it."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env={**os.environ, **environ}, start_new_session=True, cwd=log.parent
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def servers(directory: Path, webhook: Webhook) -> tuple[str, dict[str, list[str]]]:
    """The collector's address for agents, and the commands of all servers, with the deployed files pointed at these."""
    agents, page, ours, alertmanager = (f"127.0.0.1:{free_port()}" for _ in range(4))
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("collector:9461", page).replace("alertmanager:9093", alertmanager)
    (directory / "prometheus.yml").write_text(config, encoding="utf-8")
    for rules in ("recording.yml", "alerts.yml"):
        shutil.copy(ROOT / "dashboards" / rules, directory)
    routes = (ROOT / "deploy/alertmanager/alertmanager.yml").read_text(encoding="utf-8")
    (directory / "alertmanager.yml").write_text(routes.replace(":9099", f":{webhook.port}"), encoding="utf-8")
    collector = [sys.executable, "-m", "hindmost", "collector", "--listen", agents, "--http", page]
    return agents, {
        "collector": [*collector, "--store", str(directory / "store")],
        "prometheus": [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'series'}",
            f"--web.listen-address={ours}",
        ],
        "alertmanager": [
            shutil.which("prometheus-alertmanager") or "alertmanager",
            f"--config.file={directory / 'alertmanager.yml'}",
            f"--storage.path={directory / 'silences'}",
            f"--web.listen-address={alertmanager}",
            "--cluster.listen-address=",
        ],
    }


def observed(job: str, agents: str) -> dict[str, str]:
    """The environment that a scheduler's prolog gives to ranks: docs/reference/environment.md."""
    name = f"alerts-{os.getpid()}-{job}"
    inject = str(Path(hindmost.inject.__path__[0]))
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (inject, os.environ.get("PYTHONPATH")))),
        "HINDMOST_JOB_ID": name,
        "HINDMOST_RING_DIR": f"/dev/shm/hindmost-{os.getuid()}/{name}",  # noqa: S108 - where rings live
        "HINDMOST_COLLECTOR": agents,
        "HINDMOST_PYTHON": sys.executable,
        "HINDMOST_LAUNCHER": "mpirun",
        "HINDMOST_INJECT": inject,
        "HINDMOST_MPI": "python",
    }


def once(directory: Path) -> dict[str, Any]:
    """One job: seconds from the fault to "firing", and from its repair to "resolved"; None where none came."""
    webhook, marks, script = Webhook(), directory / "marks", directory / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    agents, commands = servers(directory, webhook)
    with ExitStack() as running:
        running.callback(webhook.close)
        for name, command in commands.items():
            running.enter_context(started(command, directory / f"{name}.log"))
        job = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4", sys.executable, str(script), str(marks)]
        process = running.enter_context(started(job, directory / "job.log", **observed(directory.name, agents)))
        deadline, ends = time.monotonic() + LASTS_S + 60, ("slow", "healed")
        while process.poll() is None and time.monotonic() < deadline and (NAME, "resolved") not in webhook.seen:
            time.sleep(0.1)
        at = dict(line.split() for line in marks.read_text().splitlines()) if marks.exists() else {}
    found = (webhook.seen.get((NAME, status)) for status in ("firing", "resolved"))
    took = [
        None if seen is None or end not in at else seen - float(at[end]) for end, seen in zip(ends, found, strict=True)
    ]
    rounded = [None if one is None else round(one, 1) for one in took]
    return {"firing_s": rounded[0], "resolved_s": rounded[1], "messages": webhook.texts}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--keep", help="leave logs and series in this directory")
    parser.add_argument("--write", help="write the result to this file")
    args = parser.parse_args()
    for programs in (("mpirun",), ("prometheus",), ("prometheus-alertmanager", "alertmanager")):
        if not any(map(shutil.which, programs)):
            sys.exit(f"bench/alerts.py needs {programs[0]}: apt install openmpi-bin prometheus prometheus-alertmanager")
    results = []
    for turn in range(args.times):
        with ExitStack() as open_:
            made = args.keep and Path(args.keep, f"{turn}")
            directory = Path(made or open_.enter_context(tempfile.TemporaryDirectory(prefix="alerts-")))
            directory.mkdir(parents=True, exist_ok=True)
            results.append(once(directory.resolve()))
        print(json.dumps(results[-1], indent=1), flush=True)
    if args.write:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        text = json.dumps({"machine": machine, "runs": results}, indent=1)
        Path(args.write).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
