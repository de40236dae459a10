"""Columns that hold one value: their memory, and that other code sees no difference."""

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import Chunk, finish, with_words
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.ingest.row_builder import JobRows, Owners, Words
from hindmost_collector.store.arrow_tables import arrow_tables
from hindmost_judge.encoding import chosen, is_constant, repeated, thinned
from hindmost_judge.model import STEPS
from hindmost_proto import telemetry_pb2 as wire

ROWS = 1000


def chunk(forward: int | None, first: int = 0) -> Chunk:
    """Steps of rank 3, of which only the forward phase is measured, or not even that."""
    gathered = JobRows()
    block = wire.StepBlock(step=range(first, first + ROWS), start_ns=range(ROWS), duration_ns=[7] * ROWS)
    measured = {} if forward is None else {"forward_ns": np.full(ROWS, forward).tobytes()}
    gathered.steps.add(packed(block), ROWS, Owners.of([ROWS], [3]), (0, 5), extras=measured)
    return finish(gathered)


def test_unmeasured_columns_take_no_memory():
    """Of a steps table only the columns whose rows differ take memory, and the one of ranks."""
    made = chunk(None)
    assert made.bytes < ROWS * (8 + 8 + 4 + 4) + 8 * len(STEPS)
    assert set(made.coded["steps"]["forward_ns"].tolist()) == {-1}
    assert set(made.coded["steps"]["duration_ns"].tolist()) == {7}


@pytest.mark.parametrize("forwards", [(None, None), (2, 2), (None, 2), (2, 9)])
def test_rows_are_stored_whichever_way_they_were_held(forwards):
    """Pieces that hold one value each, the same or not, are stored as the rows that they stand for."""
    words = Words()
    words.code("train")
    parts = [chunk(forward, place * ROWS) for place, forward in enumerate(forwards)]
    [stored] = arrow_tables({"j": parts}, words, Definitions())["j", "steps"]
    expected = [-1 if forward is None else forward for forward in forwards for _ in range(ROWS)]
    assert stored["forward_ns"].to_pylist() == expected
    assert stored["step"].to_pylist() == list(range(2 * ROWS))
    assert set(stored["kind"].to_pylist()) == {"train"}
    assert stored["start_ns"].to_pylist() == [one + 5 for one in range(ROWS)] * 2


def test_words_of_one_code_are_one_word():
    """A column of one word is read as that word in every row."""
    words = Words()
    words.code("train")
    table = with_words("steps", dict(chunk(None).coded["steps"]), words)
    assert table["kind"].tolist() == ["train"] * ROWS


def test_a_value_that_differs_anywhere_is_kept():
    """Only a column all of whose values are alike is one value; NaN is like nothing."""
    for values in ([1, 2, 1], [1, 1, 2], [float("nan")] * 3):
        assert not is_constant(thinned(np.array(values)))
    assert is_constant(thinned(np.array([4, 4, 4])))


def test_chosen_rows_of_one_value_are_that_value():
    """Rows that are picked from such a column are as many of that value, and no row means no row."""
    table = {"a": repeated(4, 3), "b": np.arange(3)}
    assert chosen(table, np.ones(3, bool)) is table
    some = chosen(table, np.array([True, False, True]))
    assert (some["a"].tolist(), some["b"].tolist()) == ([4, 4], [0, 2])
    none = chosen(table, np.zeros(3, bool))
    assert (len(none["a"]), len(none["b"])) == (0, 0)
    assert not is_constant(none["a"])
