"""How long operations were open in dumps written soon after: as long as logs next to them show no step."""

import json
import os
from pathlib import Path

import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict

MS = 1_000_000
STOPPED, STEP = 1_795_000_000 * 10**9, 40 * MS


def _dump(folder: Path, rank: int, entered: int, after_s: float) -> None:
    """Of a rank that entered so many all-reduces, of which 4 completed, written so long after the last."""
    entries = [
        {
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq + 1,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": STOPPED - (6 - seq) * MS,
            "state": "completed" if seq < 4 else "scheduled",
            "is_p2p": False,
        }
        for seq in range(entered)
    ]
    dump = {"version": "2.10", "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": entries}
    path = folder / f"nccl_trace_rank_{rank}.json"
    path.write_text(json.dumps(dump))
    os.utime(path, ns=(0, STOPPED + round(after_s * 1e9)))


def _log(folder: Path, rank: int, until: int) -> None:
    """Sixty steps, of which the last one ended then."""
    began = [until - (60 - step) * STEP for step in range(60)]
    lines = [{"step": step, "t_start": at, "t_data": at + MS, "t_end": at + STEP} for step, at in enumerate(began)]
    (folder / f"steps.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _verdict(folder: Path, *, after_s: float = 6.0, until: int = STOPPED - 20 * MS, logs: int = 2) -> Verdict:
    for rank, entered in enumerate((6, 4)):
        _dump(folder, rank, entered, after_s)
    for rank in range(logs):
        _log(folder, rank, until)
    return judge(load(folder)).verdicts[0]


def test_a_job_that_logs_no_step_while_dumps_are_written_has_stopped(tmp_path: Path) -> None:
    """The process lived until then, and made 150 steps in as much time before: who did not come is named."""
    verdict = _verdict(tmp_path)
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0,))
    assert "6.0 s" in verdict.evidence[0]


@pytest.mark.parametrize(
    "case",
    [{"until": STOPPED + 5_000 * MS}, {"until": STOPPED - 2_000 * MS}, {"logs": 1}, {"after_s": 1.5}],
    ids=["steps go on", "a log keeps steps back", "a rank has no log", "written at once"],
)
def test_what_was_open_for_a_moment_tells_no_stop(tmp_path: Path, case: dict[str, int]) -> None:
    """Operations are open at any moment of a job at work, and one without a log may be at work."""
    assert _verdict(tmp_path, **case).kind != "hang"
