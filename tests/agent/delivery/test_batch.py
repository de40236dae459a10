"""Steps become columns, whatever phases each of them has; readings become blocks, whatever series they come with."""

from collections.abc import Callable

import pytest
from hindmost_agent.delivery.batch import SHORT_ROWS, UNMEASURED, Builder
from hindmost_agent.jobs.event_rows import StepRow
from hindmost_agent.sampler import Metric, Reading, Series, gauge
from hindmost_collector.ingest.packed_fields import Batch, eights, widen
from hindmost_proto import telemetry_pb2 as wire

from tests.ring_records import Call, calls

BUSY = gauge("hindmost_process_busy", "How busy a rank of a test is.", "rank")


def reading(ranks: range, metric: Metric = BUSY, time_ns: int = 0) -> Reading:
    return Reading("process", time_ns, tuple(Series(metric, (f"{rank}",)) for rank in ranks), [1.0] * len(ranks))


@pytest.mark.parametrize(
    ("phases", "columns"),
    [
        ([{"forward": 1, "sync": 2}, {"sync": 4, "forward": 3}], {"forward": [1, 3], "sync": [2, 4]}),
        (
            [{"forward": 1, "sync": 2}, {"forward": 3, "input": 4}],
            {"forward": [1, 3], "sync": [2, UNMEASURED], "input": [UNMEASURED, 4]},
        ),
        ([{"forward": 1}, {}], {"forward": [1, UNMEASURED]}),
        ([{}, {"forward": 1}], {"forward": [UNMEASURED, 1]}),
        ([{"forward": 1}], {"forward": [1]}),
        ([{}, {}], {}),
    ],
)
def test_a_phase_a_step_did_not_have_is_unmeasured(phases: list[dict[str, int]], columns: dict[str, list[int]]) -> None:
    """A row for each step in each column, in the steps' order."""
    builder = Builder("n")
    builder.steps(7, [StepRow("train", step, 10, 20, 8, one) for step, one in enumerate(phases)])
    (block,) = wire.Batch.FromString(b"".join(builder.pack().parts)).steps
    assert {column.name: list(column.ns) for column in block.phases} == columns
    assert list(block.step) == list(range(len(phases)))


def test_ranks_that_come_within_a_batch_have_a_block_of_their_own() -> None:
    """What was read before they came keeps the series that it was read with."""
    builder = Builder("n")
    two, more = reading(range(2)), reading(range(3), time_ns=10)
    for one in (two, more, two._replace(time_ns=20)):
        builder.reading(one)
    packed = builder.pack()
    blocks = wire.Batch.FromString(b"".join(packed.parts)).metrics
    assert [(list(block.time_ns), len(block.values)) for block in blocks] == [([0, 20], 4), ([10], 3)]
    assert sorted(block.schema for block in blocks) == sorted(packed.definitions)


@pytest.mark.parametrize(
    ("column", "values", "sent"),
    [
        ("flags", (0, 0), []),
        ("flags", (0, 1), [0, 1]),
        ("peer", (UNMEASURED, UNMEASURED), []),
        ("peer", (0, UNMEASURED), [0, UNMEASURED]),
        ("cpu_ns", (UNMEASURED, UNMEASURED), []),
        ("cpu_ns", (UNMEASURED, 0), [UNMEASURED, 0]),
        ("runqueue_ns", (UNMEASURED, UNMEASURED), []),
        ("runqueue_ns", (5, UNMEASURED), [5, UNMEASURED]),
        ("enqueue_ns", (UNMEASURED, UNMEASURED), []),
        ("enqueue_ns", (UNMEASURED, 5), [UNMEASURED, 5]),
    ],
)
def test_a_column_that_says_nothing_is_not_sent(column: str, values: tuple[int, int], sent: list[int]) -> None:
    """Its absence says the same; a column that says something of one row is whole."""
    row = Call("all_reduce", 1, 0, 10, 20, 8, 0, UNMEASURED, 7, UNMEASURED, UNMEASURED)
    builder = Builder("n")
    builder.collectives(7, calls(row._replace(**{column: value}) for value in values))
    (block,) = wire.Batch.FromString(b"".join(builder.pack().parts)).collectives
    assert list(getattr(block, column)) == sent
    assert list(block.self_ns) == [7, 7]


@pytest.mark.parametrize("rows", [63, 64, 65])
@pytest.mark.parametrize(
    ("column", "value", "entries"),
    [
        ("bytes", lambda _: 1 << 40, lambda rows: 1),
        ("cpu_ns", lambda row: (1 << 32) - 1 - row, lambda rows: (rows + 1) // 2),
        ("cpu_ns", lambda row: UNMEASURED if row == 1 else row, lambda rows: rows),
        ("self_ns", lambda row: row << 32, lambda rows: rows),
        ("start_ns", lambda _: 10, lambda rows: rows),
    ],
)
def test_columns_of_many_rows_are_short_where_their_values_permit_it(
    rows: int, column: str, value: Callable[[int], int], entries: Callable[[int], int]
) -> None:
    """A collector that reads them makes whole columns of them."""
    row = Call("all_reduce", 1, 0, 10, 20, 8, 0, UNMEASURED, 7, UNMEASURED, UNMEASURED)
    builder = Builder("n")
    sent = [row._replace(**{column: value(number)}) for number in range(rows)]
    builder.collectives(7, calls(sent[:20]))
    builder.collectives(8, calls(sent[20:]))
    content = b"".join(builder.pack(short_columns=True).parts)
    (block,) = wire.Batch.FromString(content).collectives
    assert len(getattr(block, column)) == (entries(rows) if rows >= SHORT_ROWS else rows)
    (raw,) = Batch.FromString(content).collectives
    widen(raw, rows)
    assert eights(getattr(raw, column)).tolist() == [getattr(one, column) for one in sent]
