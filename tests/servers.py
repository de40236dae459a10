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


def listening(pid: int) -> list[tuple[str, str]]:
    """Addresses and ports on which a process listens, as the kernel writes them."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(descriptor.readlink().name)
    found = []
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.append(tuple(words[1].split(":")))
    return found  # type: ignore[return-value]
