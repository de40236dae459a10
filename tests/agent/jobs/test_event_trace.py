"""Event-trace requests: the events of a few steps, fetched from the rings."""

import json
from pathlib import Path
from typing import Any

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent import event_trace

WHO = Identity("job", 3, 4, 3, "node", "python", "train.py")


@pytest.fixture
def python_ring(tmp_path: Path) -> Path:
    """Ten steps of 100 us from 1 ms on, each with a forward phase of 30 us that starts 10 us after it."""
    writer = ring.Writer.create(tmp_path, WHO, "py")
    for step in range(10):
        start = 1_000_000 + step * 100_000
        writer.event(ring.PHASE, writer.name("forward"), start + 10_000, 30_000)
        writer.event(ring.STEP, writer.name("train"), start, 100_000, seq=step)
    return Path(writer.path)


@pytest.fixture
def nccl_ring(tmp_path: Path) -> Path:
    """An all-reduce within step 4 by the GPU's clock, which is 5 ms ahead of the host's."""
    writer = ring.Writer.create(tmp_path, WHO, "nccl")
    comm = writer.communicator(0xAB, 3, 4, "world")
    name = writer.name("all_reduce")
    writer.event(ring.COLLECTIVE, name, 6_450_000, 7_000, 17, comm, value=4096, flags=ring.GPU_TIME)
    writer.event(ring.MARK, writer.name("gpu_clock"), 1_500_000, 0, value=6_500_000)
    return Path(writer.path)


def events(content: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    return found


def test_the_steps_that_were_asked_for(python_ring: Path, nccl_ring: Path) -> None:
    """Steps, phases and GPU operations of the window come in order, on one clock, and nothing else does."""
    content = event_trace.trace([python_ring, nccl_ring], 3, 4, 5)
    assert json.loads(content)["window"] == {"first_step": 4, "last_step": 5}
    assert [(e["cat"], e["name"], e["ts"], e["dur"], e["tid"]) for e in events(content)] == [
        ("step", "train", 1400.0, 100.0, "py"),
        ("phase", "forward", 1410.0, 30.0, "py"),
        ("collective", "all_reduce", 1450.0, 7.0, "nccl"),
        ("step", "train", 1500.0, 100.0, "py"),
        ("mark", "gpu_clock", 1500.0, 0.0, "nccl"),
        ("phase", "forward", 1510.0, 30.0, "py"),
    ]
    assert {e["pid"] for e in events(content)} == {3}
    (reduced,) = [e["args"] for e in events(content) if e["cat"] == "collective"]
    assert reduced == {"seq": 17, "value": 4096, "flags": ring.GPU_TIME, "comm": "0xab"}


def test_steps_that_are_gone_give_way_to_the_latest(python_ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the window is not held any more the answer has the latest events, says so, and is bounded."""
    monkeypatch.setattr(event_trace, "MOST", 4)
    content = event_trace.trace([python_ring], 3, 400, 500)
    assert json.loads(content)["window"] == {"latest_events": 4}
    assert [(e["cat"], e["ts"]) for e in events(content)] == [
        ("step", 1800.0),
        ("phase", 1810.0),
        ("step", 1900.0),
        ("phase", 1910.0),
    ]


def test_a_ring_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """A process that ended meanwhile leaves an empty trace."""
    assert events(event_trace.trace([tmp_path / "gone.ring"], 0, 1, 2)) == []
