"""A job that stops in messages has a verdict on the rank that the others wait for, while it stands."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import HINDMOST, MPIRUN, SOON, environ, job_of, wait_until_gone
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.needs("mpirun")]

PROGRAM = str(Path(__file__).with_name("waiting.py"))


def stop_of(out: Path, how: str, wanted: str) -> dict[str, Any]:
    """The first live verdict on the stop of which a line has ``wanted``; then the job is ended."""
    argv = [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--", *MPIRUN, PROGRAM, how]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(argv, env=environ(**SOON), start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        while process.poll() is None:
            found = [
                verdict for verdict in verdicts(out / "verdicts.jsonl") if wanted in "\n".join(verdict["evidence"])
            ]
            if found:
                return found[0]
            time.sleep(0.25)
        raise AssertionError(f"ended without a word on {wanted}; said: {list(verdicts(out / 'verdicts.jsonl'))}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert not wait_until_gone(job_of(out))


def verdicts(path: Path) -> Sequence[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["verdict"] for line in lines if line.endswith("}")]


@pytest.mark.parametrize(
    ("how", "kind", "cause", "ranks", "wanted"),
    [
        ("ring", "hang", "unknown", [2], "in read_shard()"),
        ("deadlock", "hang", "deadlock", [0, 1], "rank 0 waits for rank 1 in MPI_Recv, rank 1 waits for rank 0"),
        ("raise", "hang", "unknown", [2], "rank 2 raised ValueError at waiting.py:"),
        ("parted", "desync", "unknown", [1], "rank 1 is in all_gather, the others are in all_reduce"),
    ],
)
def test_a_stop_names_whom_the_others_wait_for(
    out: Path, how: str, kind: str, cause: str, ranks: list[int], wanted: str
) -> None:
    """By the peers of their messages, with the line, the exception or the operation that shows why."""
    verdict = stop_of(out, how, wanted)
    assert (verdict["kind"], verdict["cause"], verdict["ranks"]) == (kind, cause, ranks)
