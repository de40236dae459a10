"""What a rank under ``hindmost run`` is inside of, as its rings show it: the operation it has entered and not left."""

from __future__ import annotations

import time
from pathlib import Path

from hindmost import ring

from hindmost_cli.attach.target import environ_of

#: What a rank can wait for others in.
WAITS = (ring.COLLECTIVE, ring.P2P)


def pending(pid: int, proc: Path = Path("/proc"), now_ns: int | None = None) -> list[str]:
    """A line for every collective and message that the process waits in, the longest first; none: nothing is open.

    Empty, too, for a process that no ``hindmost run`` observes. Never raises.
    """
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    try:
        folder = environ_of(pid, proc).get("HINDMOST_RING_DIR")
        paths = sorted(Path(folder).glob(f"*.{pid}.ring")) if folder else []
    except OSError:  # the process has ended, or is another user's
        return []
    events = [event for path in paths for event in _open(path) if event.kind in WAITS]
    return [_line(event, now_ns) for event in sorted(events, key=lambda event: event.start_ns)]


def _open(path: Path) -> list[ring.Event]:
    try:
        reader = ring.Reader(path)
    except (OSError, ring.RingError):  # it was removed, or is being made
        return []
    try:
        return reader.open_records()
    except ring.RingError:
        return []
    finally:
        reader.close()


def _line(event: ring.Event, now_ns: int) -> str:
    what = event.name if event.kind == ring.P2P else f"{event.name} number {event.seq}"
    peer = ""
    if event.kind == ring.P2P and event.peer != -1:
        peer = " with any rank" if event.peer == ring.ANY else f" with rank {event.peer}"
    where = f" of communicator {event.comm_id:#x}" if event.comm_id else ""
    return f"waits for {(now_ns - event.start_ns) / 1e9:.1f} s in {what}{where}{peer}"
