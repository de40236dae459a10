"""An agent whose GPU driver never answers: it serves what there is, and it ends when asked to."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

#: Every call of this driver stays in the C library for ever, as one of NVML does that waits for a GPU's firmware. Its
#: binding has put stdout elsewhere by then, as AMD's does while it is imported.
AGENT = """
import ctypes, functools, sys
from hindmost_agent import daemon, sampler, settings

class Driver:
    class NVMLError(Exception): ...
    def nvmlInit(self):
        sys.stdout = sys.stderr
        ctypes.CDLL(None).pause()

daemon.Host = functools.partial(sampler.Host, nvml_library=Driver())
sys.exit(daemon.serve(settings.settings(listen="127.0.0.1:0", interval="100ms", exit_when_stdin_closes=True)))
"""


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[str]]:
    """The agent's process, killed at the end should it still run."""
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    yield process
    process.kill()
    process.wait()


def test_a_driver_that_hangs_keeps_neither_the_page_nor_the_exit(agent: subprocess.Popen[str]) -> None:
    """The node's metrics are served; of the GPUs there is nothing; when its stdin closes the agent leaves in order."""
    assert agent.stdout is not None
    ready = json.loads(agent.stdout.readline())
    with urllib.request.urlopen(f"http://{ready['listen']}/metrics") as answer:
        page = answer.read().decode()
    assert "\nhindmost_node_cpu_seconds_total{" in page
    assert "hindmost_gpu_" not in page
    said, errors = agent.communicate()
    assert (agent.returncode, json.loads(said)["left"]) == (0, "stdin was closed"), errors
