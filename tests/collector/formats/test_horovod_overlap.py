"""Horovod timelines of operations that run while ranks go on, and of such as ranks wait for one by one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge

RANKS, TENSORS, STEPS, LATE_US = 4, 6, 40, 900


def _operation(ready: dict[int, int], tensor: int) -> list[dict[str, Any]]:
    """One tensor's negotiation, which ends when the last rank is ready, and its operation of 200 us."""
    marks = [{"ph": "X", "name": str(rank), "ts": at, "dur": 0, "pid": tensor} for rank, at in ready.items()]
    end = max(ready.values()) + 15
    return [
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": min(ready.values()), "pid": tensor},
        *marks,
        {"ph": "E", "ts": end, "pid": tensor},
        {"ph": "B", "name": "ALLREDUCE", "ts": end + 5, "pid": tensor},
        {"ph": "E", "ts": end + 200, "pid": tensor},
    ]


def _timeline(path: Path, *, one_by_one: bool) -> Path:
    """Rank 2 begins each step later by ``LATE_US``; a tensor is ready each 300 us, or when the last is reduced."""
    happened, at = [], 0
    for _ in range(STEPS):
        late, begin = LATE_US, at + 8000
        for tensor in range(TENSORS):
            ready = {rank: begin + 10 * rank + (late if rank == 2 else 0) for rank in range(RANKS)}
            happened += _operation(ready, tensor)
            at = max(ready.values()) + 215
            begin, late = (at + 300, 0) if one_by_one else (begin + 300, late)
    path.write_text(json.dumps(happened))
    return path


@pytest.mark.parametrize("one_by_one", [False, True], ids=["overlapped", "one by one"])
def test_a_rank_is_late_once_a_step(tmp_path: Path, one_by_one: bool) -> None:
    """Where the others go on it is late for every operation by as much: six times that was not what it cost."""
    verdict = judge(load(_timeline(tmp_path / "timeline.json", one_by_one=one_by_one))).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("straggler", (2,))
    assert verdict.cost_ms_per_step == pytest.approx(LATE_US / 1000, rel=0.05)
