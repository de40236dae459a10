"""How long a rank waited for its neighbours between two collectives."""

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_judge.model import Job, Run
from hindmost_judge.timeline import matching
from hindmost_judge.types import Floats

MS = 1_000_000


def _waited(transfers: list[tuple[str, int, int]]) -> Floats:
    """[2, 3] what both ranks waited; rank 0 is in these (operation, start, duration) before the last collective."""
    rows = [
        (rank, 7, seq, "all_reduce", start * MS, 2 * MS, 8, 0, -1, -1, -1, -1, -1, -1)
        for rank in (0, 1)
        for seq, start in enumerate((0, 20, 100))
    ]
    rows += [
        (0, 9, seq, op, start * MS, took * MS, 8, 0, 1, -1, -1, -1, -1, -1)
        for seq, (op, start, took) in enumerate(transfers)
    ]
    grid = matching.grid(Run(Job(id="made"), collectives=from_rows("collectives", rows)))
    assert grid is not None
    return grid.peer_wait / MS


@pytest.mark.parametrize(
    ("transfers", "waited"),
    [
        ([("send", 30, 10), ("recv", 50, 5)], 15),
        ([("send", 30, 10), ("recv", 30, 10)], 10),
        ([("send", 30, 10), ("recv", 35, 10)], 15),
        ([("send", 30, 30), ("recv", 35, 5), ("recv", 70, 1)], 31),
    ],
    ids=["one after the other", "one kernel", "overlapping", "one within the other"],
)
def test_transfers_that_overlap_are_waited_for_once(transfers: list[tuple[str, int, int]], waited: int) -> None:
    """A send and a receive that are one kernel (batch_isend_irecv) take its time, not twice that."""
    assert _waited(transfers)[0].tolist() == [0, 0, waited]
    assert np.all(_waited(transfers)[1] == 0)
