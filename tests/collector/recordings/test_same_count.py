"""Two sources of one communicator's operations are joined by what both say of them, not by where each begins."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings import operations
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import table
from hindmost_judge.judge import judge
from hindmost_judge.model import Table

from tests.recordings import unpacked


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Terse Inspector lines of real training of which rank 0 computes longer, a log of its steps, and dumps."""
    return unpacked("inspector-ddp-slow-rank0", tmp_path_factory.mktemp("recorded"))


def _steps(recording: Table, more: int = 0) -> dict[tuple[int, int], int]:
    """Rank and number of an operation to its step."""
    columns = (recording["rank"], recording["seq"] + more, recording["step"])
    return {(rank, seq): step for rank, seq, step in zip(*(column.tolist() for column in columns), strict=True)}


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_log_without_its_beginning_is_joined_with_whole_dumps(recorded: Path, tmp_path: Path, share: float) -> None:
    """Its operations were taken for those of earlier steps, and no rank was late in them."""
    for path in [*recorded.glob("steps.*"), *recorded.glob("nccl_trace*")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for path in recorded.glob("inspector/*.log"):
        lines = path.read_bytes().splitlines(keepends=True)
        (tmp_path / path.name).write_bytes(b"".join(lines[round(share * len(lines)) :]))
    whole, cut = load(recorded), load(tmp_path)
    steps, mine = _steps(whole.collectives), _steps(cut.collectives, more=8)  # a gather and seven broadcasts began it
    assert mine.items() <= steps.items()
    assert len(mine) > (0.95 - share) * len(steps)
    verdict = judge(cut).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (0,), "compute")


def _operations(first: int, names: list[str], sizes: list[int], **more: Any) -> Table:
    return table(
        "collectives", rank=np.zeros(len(names)), seq=first + np.arange(len(names)), op=names, bytes=sizes, **more
    )


STEPS = 5 * ["all_reduce"]
SIZES = [8, 800, 24, 1000, 48]


def test_operations_of_kinds_that_one_has_none_of_ran_before() -> None:
    """Two broadcasts that only one recorded are what the other counts less; sizes may be counts of elements."""
    dump = _operations(0, ["broadcast", "broadcast", *STEPS], [4, 4, *SIZES])
    assert operations.difference(_operations(0, STEPS, SIZES), dump, 2) == 2
    halves = [size // 2 for size in SIZES]
    assert operations.difference(_operations(0, STEPS, halves, elements=halves), dump, 2) == 2


def test_a_barrier_is_an_all_reduce_to_nccl() -> None:
    """It stands in one list as itself, and in the other as what runs for it."""
    assert operations.difference(_operations(0, STEPS, SIZES), _operations(0, [*STEPS[:4], "barrier"], SIZES), 2) == 0


def test_operations_of_other_sizes_are_not_the_same() -> None:
    """However they are counted: nothing is concluded from one about the other then."""
    assert operations.difference(_operations(0, STEPS, SIZES), _operations(0, STEPS, [5, 5, 5, 5, 5]), 2) is None


def test_recordings_of_other_times_have_nothing_in_common() -> None:
    """The numbers tell, where both count from the job's beginning."""
    later = _operations(400, STEPS, SIZES)
    assert operations.difference(_operations(0, STEPS, SIZES), later, 2) is None
