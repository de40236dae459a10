"""Columns, waits and constants: what small blocks become."""

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import Chunk, finish, with_words
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.ingest.row_builder import Builder, JobRows, Malformed, Owners, Words
from hindmost_collector.live.totals import Waits
from hindmost_collector.serve.job_metrics import ranks_label
from hindmost_collector.store.arrow_tables import arrow_tables
from hindmost_judge.encoding import chosen, is_constant, repeated, thinned
from hindmost_judge.model import NONBLOCKING, STEPS
from hindmost_proto import telemetry_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st


def builder():
    """A table with two columns and one extra."""
    columns = {"a": ("step", np.int64, -1), "b": ("work", np.int64, -1)}
    return Builder({}, columns, extras={"c": -1})


def rows(table):
    """All rows as tuples, in any order."""
    taken = table.take()
    return sorted(zip(*(taken[name].tolist() for name in ("rank", "a", "b", "c")), strict=True))


@given(st.lists(st.tuples(st.integers(0, 70), st.booleans(), st.booleans(), st.booleans()), max_size=12))
def test_blocks_of_any_shape_keep_their_rows(blocks):
    """Blocks of any size, with columns missing here and there, all come out; a missing value is -1."""
    table, expected = builder(), []
    for rank, (count, has_a, has_b, has_c) in enumerate(blocks):
        values = list(range(count))
        block = wire.StepBlock(step=values if has_a else [], work=values if has_b else [])
        extras = {"c": np.array(values).tobytes()} if has_c else {}
        table.add(packed(block), count, Owners.of([count], [rank]), (), extras=extras)
        expected += [(rank, *(value if has else -1 for has in (has_a, has_b, has_c))) for value in values]
    assert rows(table) == sorted(expected)
    assert table.take()["a"].size == 0


def test_one_block_of_many_ranks():
    """Runs of rows in one block are of one rank each."""
    table = builder()
    table.add(packed(wire.StepBlock(step=[7, 8, 7])), 3, Owners.of([2, 1], [5, 6]), ())
    assert rows(table) == [(5, 7, -1, -1), (5, 8, -1, -1), (6, 7, -1, -1)]


def test_ragged_block_is_refused_whole():
    """A block whose columns differ in length leaves no trace."""
    table = builder()
    with pytest.raises(Malformed, match="column b has 1 values in a block of 2"):
        table.add(packed(wire.StepBlock(step=[1, 2], work=[1])), 2, Owners.of([2], [0]), ())
    table.add(packed(wire.StepBlock(step=[9])), 1, Owners.of([1], [5]), ())
    assert rows(table) == [(5, 9, -1, -1)]


def test_a_block_of_no_rows_has_no_values():
    """One that has any is refused."""
    table = builder()
    with pytest.raises(Malformed, match="column a has 1 values in a block of 0"):
        table.add(packed(wire.StepBlock(step=[1])), 0, Owners.of([0], [0]), ())
    assert rows(table) == []


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


def test_a_collective_that_is_started_and_awaited_is_settled_by_its_waits():
    """Starts tell what waits are for, in this turn or before; waits for a broadcast or for messages tell nothing."""
    words, waits = Words(), Waits()

    def rows_of(op, flags, *found):
        coded = {"op": np.full(len(found), words.code(op)), "flags": np.full(len(found), flags, np.int32)}
        return collectives(words, found) | coded

    begun = [(rank, 1, seq, 500) for rank in (0, 1, 2) for seq in (0, 1)]
    assert not waits.add(rows_of("all_reduce", NONBLOCKING, *begun), words)
    assert not waits.add(rows_of("broadcast", NONBLOCKING, (0, 1, 7, 500), (1, 1, 7, 500)), words)
    assert not waits.add(rows_of("wait", 0, (0, 1, 7, 900), (1, 1, 7, 10), (0, 0, 0, 900), (1, 0, 0, 10)), words)
    waits.add(rows_of("wait", 0, (0, 1, 0, 10), (1, 1, 0, 10), (2, 1, 0, 10)), words)
    assert not waits.add(rows_of("wait", 0, (0, 1, 1, 9_000), (0, 1, 1, 1), (1, 1, 1, 7_000)), words)
    settled = waits.add(rows_of("wait", 0, (2, 1, 1, 5_000)), words)
    assert settled["wait_seconds_total"][1].tolist() == pytest.approx([4e-6, 2e-6, 0])
    assert settled["caused_wait_seconds_total"][0].tolist() == [2]
    assert settled["caused_wait_seconds_total"][1].tolist() == pytest.approx([6e-6])


def test_waits_are_settled_when_all_members_are_there():
    """The shortest duration is the last to come; what the others took beyond it, they waited for that rank."""
    words, waits = Words(), Waits()
    waits.add(collectives(words, [(0, 1, 0, 10), (1, 1, 0, 10), (2, 1, 0, 10)]), words)
    first = waits.add(collectives(words, [(0, 1, 1, 9_000), (1, 1, 1, 9_000)]), words)
    assert not first
    settled = waits.add(collectives(words, [(2, 1, 1, 5_000)]), words)
    assert dict(zip(*(one.tolist() for one in settled["wait_seconds_total"]), strict=True)) == pytest.approx(
        {0: 4e-6, 1: 4e-6, 2: 0}
    )
    assert [one.tolist() for one in settled["caused_wait_seconds_total"]] == [[2], [pytest.approx(8e-6)]]


@pytest.mark.parametrize(("name", "meets"), [("MPI_Allgatherv", True), ("broadcast", False)])
def test_ranks_wait_in_what_the_judge_says_they_do(name, meets):
    """Whatever an operation is called."""
    words, waits = Words(), Waits()
    op = {"op": np.full(2, words.code(name))}
    for seq in range(2):
        found = waits.add(collectives(words, [(0, 1, seq, 9_000), (1, 1, seq, 5_000)]) | op, words)
    assert ("wait_seconds_total" in found) == meets


def test_waits_are_alike_however_the_rows_come():
    """Members of an instance come turn by turn, among those of others: all is settled as if they had come together."""
    words, chance = Words(), np.random.default_rng(1)
    rows = [
        (rank, 1 + rank // 4, seq, int(chance.integers(1_000, 9_000)))
        for seq in range(40)
        for rank in np.arange(8).tolist()
    ]
    turn = np.array([row[2] * 2 for row in rows]) + chance.integers(0, 7, len(rows))
    turn[:8] = 0  # who the members are is known from the first instance
    together, waits = Waits().add(collectives(words, rows), words), Waits()
    sums = {name: np.zeros(8) for name in together}
    for one in range(turn.max() + 1):
        found = waits.add(collectives(words, [row for row, at in zip(rows, turn, strict=True) if at == one]), words)
        for name, (rank, values) in found.items():
            np.add.at(sums[name], rank, values)
    assert waits.pending == 0
    for name, (rank, values) in together.items():
        assert sums[name] == pytest.approx(np.bincount(rank, values, 8))


def test_what_is_never_completed_is_dropped():
    """Of an instance whose other member never comes nothing is kept for ever."""
    words, waits = Words(), Waits()
    for seq in range(500):
        waits.add(collectives(words, [(0, 1, seq, 10)]), words)
    assert waits.pending < 200


def test_ranks_label_is_bounded():
    """Verdict labels stay short for any number of ranks."""
    assert [ranks_label(ranks) for ranks in ([2], [5, 2], range(64), range(0, 1024, 2), [])] == [
        "2",
        "2,5",
        "0-63",
        "512 ranks",
        "",
    ]


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


def test_parts_without_rows_are_a_table_without_rows():
    """As of a flush in which every block of a kind was empty."""
    empty = [Chunk({"steps": {name: column[:0] for name, column in chunk(2).coded["steps"].items()}}, {}, [], [])] * 2
    [stored] = arrow_tables({"j": empty}, Words(), Definitions())["j", "steps"]
    assert stored.num_rows == 0


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
    rows = chosen(table, np.array([True, False, True]))
    assert (rows["a"].tolist(), rows["b"].tolist()) == ([4, 4], [0, 2])
    none = chosen(table, np.zeros(3, bool))
    assert (len(none["a"]), len(none["b"])) == (0, 0)
    assert not is_constant(none["a"])
