"""Servers that tests start: handed out once they answer, never before."""

import contextlib
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

#: Generous: the machine may be busy with much else.
START_S = 300.0


def free_port() -> int:
    """A port of loopback on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path, says: str = "") -> None:
    """Wait until ``url`` answers with a page that contains ``says``; fails with the end of ``log`` if it never does."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - loopback
            if says in answer.read().decode():
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer{' with ' + says if says else ''}: {log.read_text()[-2000:]}")
