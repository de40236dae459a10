"""Columns and waits: what small blocks become."""

from __future__ import annotations

import numpy as np
import pytest
from hindmost_collector.columns import Builder, Malformed, Words
from hindmost_collector.exposition_jobs import ranks_label
from hindmost_collector.waits import Waits
from hypothesis import given
from hypothesis import strategies as st


def builder():
    """A table with one constant and two columns."""
    return Builder({"rank": np.int32}, {"a": (np.int64, -1), "b": (np.int64, -1)})


@given(st.lists(st.tuples(st.integers(0, 70), st.booleans(), st.booleans()), max_size=12))
def test_blocks_of_any_size_keep_their_rows(blocks):
    """Small and large blocks, with columns absent here and there, come out in order; the absent is -1."""
    table, expected = builder(), []
    for rank, (count, has_a, has_b) in enumerate(blocks):
        values = list(range(count))
        table.add(count, (rank,), [("a", values if has_a else []), ("b", values if has_b else [])])
        expected += [(rank, one if has_a else -1, one if has_b else -1) for one in values]
    taken = table.take()
    assert list(zip(*(taken[name].tolist() for name in ("rank", "a", "b")), strict=True)) == expected
    assert table.take()["a"].size == 0


def test_ragged_block_is_refused_whole():
    """A block whose columns differ in length leaves no trace."""
    table = builder()
    with pytest.raises(Malformed, match="column b has 1 values in a block of 2"):
        table.add(2, (0,), [("a", [1, 2]), ("b", [1])])
    table.add(1, (5,), [("a", [9])])
    assert {name: column.tolist() for name, column in table.take().items()} == {"rank": [5], "a": [9], "b": [-1]}


def collectives(words, rows):
    """Rows of ``(rank, comm, seq, duration)`` as a coded table."""
    count = len(rows)
    return {
        "rank": np.array([row[0] for row in rows], dtype=np.int32),
        "comm": np.array([row[1] for row in rows], dtype=np.uint64),
        "seq": np.array([row[2] for row in rows]),
        "duration_ns": np.array([row[3] for row in rows]),
        "op": np.full(count, words.code("all_reduce")),
        "flags": np.zeros(count, dtype=np.int32),
    }


def test_waits_are_settled_when_all_members_are_there():
    """The shortest duration is the last to come; what the others took beyond it, they waited for that rank."""
    words, waits = Words(), Waits()
    waits.add(collectives(words, [(0, 1, 0, 10), (1, 1, 0, 10), (2, 1, 0, 10)]), words)
    first = waits.add(collectives(words, [(0, 1, 1, 9_000), (1, 1, 1, 9_000)]), words)
    assert first["wait_seconds_total"][0].size == 0
    settled = waits.add(collectives(words, [(2, 1, 1, 5_000)]), words)
    assert dict(zip(*(one.tolist() for one in settled["wait_seconds_total"]), strict=True)) == pytest.approx(
        {0: 4e-6, 1: 4e-6, 2: 0}
    )
    assert [one.tolist() for one in settled["caused_wait_seconds_total"]] == [[2], [pytest.approx(8e-6)]]


def test_ranks_label_is_bounded():
    """Verdict labels stay short for any number of ranks."""
    assert [ranks_label(ranks) for ranks in ([2], [5, 2], range(64), range(0, 1024, 2), [])] == [
        "2",
        "2,5",
        "0-63",
        "512 ranks",
        "",
    ]
