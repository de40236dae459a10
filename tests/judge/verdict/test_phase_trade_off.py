"""A log of the steps clears no rank of a job whose ranks wait for each other inside their phases of work."""

import json
from pathlib import Path

import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict

BEGIN_NS, STEP_NS = 1_795_225_915_000_000_000, 10_000_000


def _judged(folder: Path, forward_ms: list[float], optimizer_ms: list[float]) -> Verdict:
    """Of 40 steps of 10 ms, in which each rank's GPU takes so long over its phases, and the rest over backward."""
    for rank, (forward, optimizer) in enumerate(zip(forward_ms, optimizer_ms, strict=True)):
        lines = []
        for step in range(40):
            start = BEGIN_NS + step * STEP_NS
            host = {"step": step, "t_start": start, "t_data": start + 10_000, "t_end": start + STEP_NS - 10_000}
            gpu = {"fwd_ms": forward + 0.01 * (step % 3), "bwd_ms": 9.9 - forward - optimizer, "opt_ms": optimizer}
            lines.append(json.dumps({**host, **gpu}) + "\n")
        (folder / f"steps.{rank}.jsonl").write_text("".join(lines))
    return judge(load(folder)).verdicts[0]


@pytest.mark.parametrize(
    ("forward", "kind", "ranks"),
    [([7.0, 7.0, 7.0, 7.0], "insufficient_data", ()), ([7.0, 7.0, 7.9, 7.0], "straggler", (2,))],
)
def test_uneven_work_is_judged_as_such(tmp_path: Path, forward: list[float], kind: str, ranks: tuple[int, ...]) -> None:
    """What one has more of no other has less of elsewhere."""
    verdict = _judged(tmp_path, forward, [1.5, 1.5, 1.5, 1.5])
    assert (verdict.kind, verdict.ranks) == (kind, ranks)
    assert "and less in" not in verdict.evidence[0]
