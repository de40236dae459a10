"""NCCL's RAS names the rank of a hang where neither plugin nor probe sees collectives."""

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import HINDMOST, OF_TWO, SOON, environ, job_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("ras_waiting.py")
ANSWER = Path(__file__).parents[1] / "fixtures" / "ras" / "hang_json"


@pytest.fixture
def ras(tmp_path: Path) -> Iterator[int]:
    """The port of a RAS that answers as NCCL did in such a hang, with the processes of this job and their counts."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            answer = ANSWER.read_bytes()
            for rank, pid, launched in ((0, b"546", b"22"), (1, b"547", b"20")):
                now = {name: (tmp_path / f"{rank}.{name}").read_bytes().strip() for name in ("pid", "launched")}
                answer = answer.replace(b'"pid": ' + pid, b'"pid": ' + now["pid"])
                answer = answer.replace(b'"AllReduce": ' + launched, b'"AllReduce": ' + now["launched"])
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # before the ranks have begun
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def live_hang(run: Path) -> dict[str, Any] | None:
    path = run / "verdicts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    verdicts = [json.loads(line)["verdict"] for line in lines if line.endswith("}")]
    return next((verdict for verdict in verdicts if verdict["kind"] == "hang" and verdict["ranks"]), None)


def first_hang(run: Path, process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first verdict on the hang, while the job goes on."""
    while (seen := live_hang(run)) is None:
        assert process.poll() is None
        time.sleep(0.1)
    return seen


@contextmanager
def started(argv: list[str], **more: str) -> Iterator[subprocess.Popen[str]]:
    """A process, ended with all that it started."""
    process = subprocess.Popen(
        argv, env=environ(**more), text=True, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def is_named(seen: dict[str, Any]) -> None:
    """With the communicator and the number of the collective that it has not launched."""
    assert (seen["ranks"], seen["victims"]) == ([1], [0])
    assert "that all_reduce is number 100 of communicator 0xabe8b168ccb1ed8" in "\n".join(seen["evidence"])


@pytest.mark.needs("mpirun")
def test_ras_names_the_laggard_and_what_is_waited_in(out: Path, tmp_path: Path, ras: int) -> None:
    """Live, where a probe marks steps and no plugin sees collectives."""
    argv = [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--"]
    argv += [*OF_TWO, str(PROGRAM), str(tmp_path)]
    with started(argv, **SOON, NCCL_RAS_ADDR=f"127.0.0.1:{ras}") as job:
        is_named(first_hang(out, job))


def test_ras_needs_no_probe(out: Path, tmp_path: Path, ras: int) -> None:
    """The node's agent knows the ranks by their environment; nothing else of them is measured."""
    job = job_of(out)
    collector = [*HINDMOST, "collector", "--out", str(out), "--job-id", job]
    collector += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    settings = {**SOON, "NCCL_RAS_ADDR": f"127.0.0.1:{ras}"}
    with started(collector, **SOON) as service:
        assert service.stdout is not None
        address = json.loads(service.stdout.readline())["grpc"]
        agent = [*HINDMOST, "agent", "--collector", address, "--spool", str(tmp_path / "spool")]
        with started(agent, **settings):
            place = {"WORLD_SIZE": "2", "HINDMOST_JOB_ID": job}
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-I", str(PROGRAM), str(tmp_path)], env={**os.environ, **place, "RANK": str(rank)}
                )
                for rank in range(2)
            ]
            try:
                is_named(first_hang(out, service))
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
