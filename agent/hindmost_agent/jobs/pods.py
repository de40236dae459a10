"""The pod that a rank runs in, as the rank's environment says: its template sets variables by the downward API."""

from __future__ import annotations

from pathlib import Path

from hindmost_proto import telemetry_pb2 as wire

from hindmost_agent.kernel_files import read_once

#: Variable to field of the message.
VARIABLES = {
    b"HINDMOST_POD_NAMESPACE": "namespace",
    b"HINDMOST_POD_NAME": "name",
    b"HINDMOST_POD_UID": "uid",
    b"HINDMOST_WORKLOAD": "workload",
    b"HINDMOST_QUEUE": "queue",
}
#: Characters of a name in Kubernetes, at most; a workload is KIND/NAME.
LONGEST = 320


def pod_of(proc: Path, pid: int) -> wire.Pod | None:
    """The pod of a process; ``None`` where its environment names no namespace, or cannot be read."""
    try:
        entries = read_once(proc / str(pid) / "environ", 1 << 20).split(b"\0")
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in entries)
    found = {
        VARIABLES[name]: value.decode("utf-8", "replace")[:LONGEST] for name, _, value in pairs if name in VARIABLES
    }
    return wire.Pod(**found) if found.get("namespace") else None
