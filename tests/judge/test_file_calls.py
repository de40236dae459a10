"""Calls on files by operation and size."""

import numpy as np
import pytest
from hindmost_judge import usage
from hindmost_judge.model import Job, Run


def run(*calls: tuple[int, str, int, float]) -> Run:
    """Rank, name, ns and bytes of each."""
    columns = [np.array(column) for column in zip(*calls, strict=True)]
    rank, name, took, size = columns
    return Run(
        Job("j"),
        intervals={"rank": rank, "name": name, "start_ns": rank * 0, "duration_ns": took, "value": size.astype(float)},
    )


def test_requests_are_counted_by_their_size() -> None:
    """Two ranks write 1 MiB five times in 10 ms each; one reads 4 KiB; opening moves nothing."""
    write = [(rank, "file_write", 10_000_000, 1 << 20) for rank in range(2) for _ in range(5)]
    found = usage.file_calls(run(*write, (0, "file_read", 500_000, 4096), (1, "file_open", 2_000_000, 0)))
    assert [(one.operation, one.most, one.ranks, one.calls, one.total) for one in found] == [
        ("write", 1 << 20, 2, 10, 10 << 20),
        ("open", None, 1, 1, None),
        ("read", 4096, 1, 1, 4096),
    ]
    assert found[0].bandwidth == pytest.approx((1 << 20) / 0.01)
    assert found[1].bandwidth is None


def test_other_intervals_are_no_calls_on_files() -> None:
    """Nor is a run without any."""
    assert usage.file_calls(run((0, "checkpoint", 1, 0.0))) == []
    assert usage.file_calls(Run(Job("j"))) == []
