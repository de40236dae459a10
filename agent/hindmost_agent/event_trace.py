"""The event trace of one rank that a collector asks for: every event of some steps that its rings still hold.

Chrome's trace format (Perfetto, chrome://tracing): complete events with ``ts`` and ``dur`` in us of the node's
CLOCK_MONOTONIC, one thread a producer.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hindmost import ring

#: Events of one answer; beyond it the latest count. One of them takes about 150 bytes.
MOST = 8192
KINDS = {
    ring.STEP: "step",
    ring.PHASE: "phase",
    ring.COLLECTIVE: "collective",
    ring.P2P: "p2p",
    ring.SELF: "self",
    ring.MARK: "mark",
    ring.IO: "io",
}
GPU_CLOCK = "gpu_clock"

Held = list[tuple[str, ring.Event]]


def trace(paths: Iterable[Path], rank: int, first: int, last: int) -> bytes:
    """The events of one process from step ``first`` to ``last``, from all of its rings.

    Where the rings do not hold these steps any more, or the job marks none: the latest events that they hold. The field
    ``window`` says which it is.
    """
    recorded = [item for path in paths for item in _events_in_ring(path)]
    chosen = _within(recorded, first, last)
    window = {"first_step": first, "last_step": last} if chosen else {"latest_events": min(len(recorded), MOST)}
    chosen = sorted(chosen or recorded, key=lambda item: item[1].start_ns)[-MOST:]
    events = [_entry(producer, rank, event) for producer, event in chosen]
    return json.dumps({"traceEvents": events, "window": window}, separators=(",", ":")).encode()


def _events_in_ring(path: Path) -> Held:
    """All that a ring still holds, by the name of its producer and on the host's clock."""
    try:
        reader = ring.Reader(path)
    except (OSError, ring.RingError):  # it went with its process
        return []
    try:
        reader.position = max(reader.written - reader.header.capacity, 0)
        events = reader.poll()
    except ring.RingError:
        return []
    finally:
        reader.close()
    return [(reader.header.producer, event) for event in _on_host_clock(events)]


def _on_host_clock(events: list[ring.Event]) -> list[ring.Event]:
    """GPU times moved by the latest pair of both clocks; without one they cannot be placed and are left out."""
    marks = [event for event in events if event.kind == ring.MARK and event.name == GPU_CLOCK]
    offset = marks[-1].start_ns - marks[-1].value if marks else None
    placed = []
    for event in events:
        if not event.flags & ring.GPU_TIME:
            placed.append(event)
        elif offset is not None:
            placed.append(event._replace(start_ns=event.start_ns + offset))
    return placed


def _within(events: Held, first: int, last: int) -> Held:
    """What began within these steps' first start and last end; nothing where none of them is held."""
    steps = [event for _, event in events if event.kind == ring.STEP and first <= event.seq <= last]
    if not steps:
        return []
    begin, end = min(e.start_ns for e in steps), max(e.start_ns + e.duration_ns for e in steps)
    return [item for item in events if begin <= item[1].start_ns < end]


def _entry(producer: str, rank: int, event: ring.Event) -> dict[str, Any]:
    arguments: dict[str, Any] = {"seq": event.seq, "value": event.value, "flags": event.flags}
    if event.comm_id:
        arguments["comm"] = f"{event.comm_id:#x}"
    if event.peer >= 0:
        arguments["peer"] = event.peer
    return {
        "name": event.name or KINDS.get(event.kind, "other"),
        "cat": KINDS.get(event.kind, "other"),
        "ph": "X",
        "ts": event.start_ns / 1e3,
        "dur": event.duration_ns / 1e3,
        "pid": rank,
        "tid": producer,
        "args": arguments,
    }
