"""A job is examined while it hangs: by the collector on its own, and on request."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import HINDMOST, MPIRUN, SOON, environ, job_of, wait_until_gone

pytestmark = [pytest.mark.cluster, pytest.mark.needs("mpirun")]

PROGRAM = Path(__file__).with_name("waiting.py")
#: Generous: the machine may be busy with much else. A quiet one needs about ten seconds.
STANDS = re.compile(r"rank 2 is at waiting\.py:(\d+), in read_shard")


@contextmanager
def hanging(out: Path) -> Iterator[subprocess.Popen[str]]:
    """The job under ``hindmost run``; gone afterwards, however the test ends."""
    argv = [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--", *MPIRUN, str(PROGRAM), "reduce"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(argv, env=environ(**SOON), text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def live_hang(out: Path) -> dict[str, Any] | None:
    """The newest live verdict of a hang that says where rank 2 stands."""
    path = out / "verdicts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    verdicts = [json.loads(line)["verdict"] for line in lines if line.endswith("}")]
    found = [
        verdict for verdict in verdicts if verdict["kind"] == "hang" and STANDS.search("\n".join(verdict["evidence"]))
    ]
    return found[-1] if found else None


def test_a_hang_is_seen_live_with_the_line_that_causes_it(out: Path) -> None:
    """Rank 2 never comes: stacks of all ranks are taken unasked, the verdict names its line, and so does the report."""
    with hanging(out) as process:
        while (seen := live_hang(out)) is None:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.25)
        assert (seen["ranks"], seen["victims"]) == ([2], [0, 1, 3])
        asked = subprocess.run(
            [*HINDMOST, "attach", "--stacks", "--job", job_of(out)],
            env=environ(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert not wait_until_gone(job_of(out))
    ranks = asked.split("rank ")[1:]
    assert [part[0] for part in ranks] == ["0", "1", "2", "3"]
    pending = [re.findall(r"waits for [\d.]+ s in all_reduce number (\d+)", part) for part in ranks]
    assert pending == [["40"], ["40"], [], ["40"]]
    assert "read_shard (waiting.py:" in ranks[2]
    assert ["main (waiting.py:" in (out / f"stacks/{rank}.txt").read_text() for rank in range(4)] == [True] * 4
    verdict = json.loads((out / "report.json").read_text())["verdicts"][0]
    assert (verdict["kind"], verdict["ranks"]) == ("hang", [2])
    assert STANDS.search("\n".join(verdict["evidence"]))
