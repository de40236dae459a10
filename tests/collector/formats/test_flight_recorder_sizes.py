"""Flight Recorder dumps of ranks that called one operation with tensors of unlike sizes."""

import json
import os
import pickle
from pathlib import Path

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import operation
from hindmost_judge.judge import judge

from tests.collector.formats.dumps import dump_of, write


def _waiting(folder: Path, name: str, sizes: list[int], *, left: int = 0, twice: bool = False) -> None:
    """Dumps, as pickles and JSON, of a group whose ranks called their sixth operation with tensors of these sizes.

    It is open for as long as its time-out; ``left``: on so many ranks it had ended. ``twice``: two have its number.
    """
    for rank, size in enumerate(sizes):
        dump = dump_of(6, completed=6 if rank < left else 5)
        dump["pg_config"]["0"]["ranks"] = str(list(range(len(sizes))))
        dump["entries"][5] |= {"profiling_name": name, "input_sizes": [[size, 2]], "timeout_ms": 12_000}
        dump["entries"] += dump["entries"][5:] if twice else []
        for entry in dump["entries"]:
            entry["time_created_ns"] += rank
        write(folder, rank, dump)
        if rank % 2:
            (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
        os.utime(folder / f"nccl_trace_rank_{rank}", ns=(0, 10**18 + 13 * 10**9))


@pytest.mark.parametrize("kind", ["all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast"])
def test_an_operation_of_another_size_is_another_operation(tmp_path: Path, kind: str) -> None:
    """What all must call with as much does not end: who gave another size than the rest is named, with both sizes."""
    _waiting(tmp_path, f"nccl:{kind}", [2048, 2048, 7, 2048])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (2,), (0, 1, 3))
    inside, others = (f"{operation(f'nccl:{kind}')} ({count} elements of BFloat16)" for count in ("14", "4,096"))
    assert verdict.evidence[0] == f"rank 2 is in {inside}, the others are in {others}"
    assert f"that {others} is number 5 of" in verdict.evidence[-1]


@pytest.mark.parametrize(("sizes", "odd", "told"), [([8, 8, 7], 2, ()), ([8, 7], 0, ("rank 1",))])
def test_a_desync_quotes_the_line_of_the_odd_call(
    tmp_path: Path, sizes: list[int], odd: int, told: tuple[str, ...]
) -> None:
    """From where each rank called what the others did not, as its dump tells; of two ranks, from where either did."""
    _waiting(tmp_path, "nccl:all_reduce", sizes)
    for rank in range(len(sizes)):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        dump = json.loads(path.read_text()) if rank % 2 else pickle.loads(path.read_bytes())  # noqa: S301 - our own
        dump["entries"][5]["frames"] = [{"name": "step", "filename": "train.py", "line": 100 + rank}]
        path.write_text(json.dumps(dump))
        os.utime(path, ns=(0, 10**18 + 13 * 10**9))
    evidence = judge(load(tmp_path)).verdicts[0].evidence
    lines = [line for line in evidence if "called from train.py:" in line]
    assert [line.split(" entered")[0] for line in lines] == [f"rank {odd}", *told]
    assert lines[0].endswith(f"there, called from train.py:{100 + odd}, in step()")


@pytest.mark.parametrize("name", ["nccl:all_to_all", "nccl:all_gather", "nccl:reduce_scatter", "nccl:gather", "alike"])
def test_parts_of_unlike_sizes_are_one_operation(tmp_path: Path, name: str) -> None:
    """Where each member may have a part of its own size, the size accuses no rank; nor where all called alike."""
    _waiting(tmp_path, "nccl:all_reduce" if name == "alike" else name, [7, 7, 7 if name == "alike" else 2048, 7])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("hang", ())
    assert "elements" not in verdict.evidence[0]


def test_another_size_needs_no_length_of_the_wait(tmp_path: Path) -> None:
    """At no moment of a job at work do its ranks call one operation with unlike sizes."""
    _waiting(tmp_path, "nccl:_all_gather_base", [2048, 7, 2048])
    for rank in range(3):
        os.utime(tmp_path / f"nccl_trace_rank_{rank}", ns=(0, 10**18 + 10**9))
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", (1,))
    assert any("(time not recorded)" in line for line in verdict.evidence)


def test_with_as_many_sizes_as_ranks_no_rank_is_named(tmp_path: Path) -> None:
    """One of two ranks called it with another size: which is wrong is unknown."""
    _waiting(tmp_path, "nccl:_all_gather_base", [2048, 7])
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", ())


@pytest.mark.parametrize(("left", "twice"), [(0, True), (2, False)], ids=["two of one number", "some have left it"])
def test_sizes_that_may_not_be_the_members_accuse_no_rank(tmp_path: Path, left: int, twice: bool) -> None:
    """Which of two operations meets which is not known, nor what most gave by those alone who are still inside."""
    _waiting(tmp_path, "nccl:broadcast", [2048, 2048, 2048, 7, 7], left=left, twice=twice)
    verdict = judge(load(tmp_path)).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("hang", ())
