"""Calls, bytes, wait and transfer of each operation, size and group."""

from __future__ import annotations

import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_judge import communication
from hindmost_judge.model import Job, Run


def test_wait_is_what_a_call_takes_beyond_the_shortest_of_its_members() -> None:
    """Two groups of two ranks reduce 1 MiB in 2 ms; one rank of each waits another 6 ms."""
    rows = []
    for rank in range(4):
        comm = 1 + rank // 2
        for seq in range(10):
            took = 2_000_000 + (6_000_000 if rank % 2 else 0)
            rows.append((rank, comm, seq, "all_reduce", 10**9, took, 1 << 20, 0, -1, -1, -1, -1, -1, -1))
    (found,) = communication.find(Run(Job("j"), collectives=from_rows("collectives", rows)))
    assert (found.operation, found.bytes, found.group, found.groups, found.calls) == ("all_reduce", 1 << 20, 2, 2, 40)
    assert (found.wait_ms, found.transfer_ms) == pytest.approx((3.0, 2.0))
    assert found.bandwidth == pytest.approx((1 << 20) / 0.002)


def test_of_a_long_recording_the_newest_calls_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all ranks, whatever the order of the rows."""
    monkeypatch.setattr(communication, "CALLS", 40)
    rows = [
        (rank, 1, seq, "all_reduce", 10**9 + seq, 1000, 8, 0, -1, -1, -1, -1, -1, -1)
        for rank in range(4)
        for seq in range(1000)
    ]
    (found,) = communication.find(Run(Job("j"), collectives=from_rows("collectives", rows)))
    assert found.calls == pytest.approx(40, abs=4)
    assert found.group == 4


def test_a_message_has_no_wait_that_is_known() -> None:
    """Its duration is not that of a meeting."""
    rows = [(rank, 1, 0, "send", 10**9, 5, 8, 0, 1 - rank, -1, -1, -1, -1, -1) for rank in range(2)]
    (found,) = communication.find(Run(Job("j"), collectives=from_rows("collectives", rows)))
    assert (found.wait_ms, found.transfer_ms, found.bandwidth) == (None, None, None)
