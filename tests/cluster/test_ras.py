"""NCCL's RAS names the rank of a hang where neither plugin nor probe sees collectives."""

from __future__ import annotations

import json
import os
import signal
import socketserver
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.jobs import HINDMOST, OF_TWO, SOON, environ, job_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.needs("mpirun"), pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("ras_waiting.py")
ANSWER = Path(__file__).parents[1] / "fixtures" / "ras" / "hang_json"
PATIENCE_S = 120.0


@pytest.fixture
def ras(tmp_path: Path) -> Iterator[int]:
    """The port of a RAS that answers as NCCL did in such a hang, with the processes of this job."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            pids = [(tmp_path / f"{rank}.pid").read_bytes() for rank in range(2)]
            answer = ANSWER.read_bytes().replace(b'"pid": 546', b'"pid": ' + pids[0])
            self.wfile.write(answer.replace(b'"pid": 547', b'"pid": ' + pids[1]))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def live_hang(out: Path) -> dict[str, Any] | None:
    path = out / "verdicts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    verdicts = [json.loads(line)["verdict"] for line in lines if line.endswith("}")]
    return next((one for one in verdicts if one["kind"] == "hang" and one["ranks"]), None)


def test_ras_names_the_laggard_and_what_is_waited_in(out: Path, tmp_path: Path, ras: int) -> None:
    """Live, with the communicator and the number of the collective that it has not launched."""
    argv = [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--"]
    argv += [*OF_TWO, str(PROGRAM), str(tmp_path)]
    settings = environ(**SOON, NCCL_RAS_ADDR=f"127.0.0.1:{ras}")
    process = subprocess.Popen(argv, env=settings, text=True, start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while (seen := live_hang(out)) is None and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.25)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    assert seen is not None, (out / "verdicts.jsonl").read_text() if out.exists() else "no run directory"
    assert (seen["ranks"], seen["victims"]) == ([1], [0])
    assert "that all_reduce is number 20 of communicator 0xabe8b168ccb1ed8" in "\n".join(seen["evidence"])
