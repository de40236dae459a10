"""Calls, bytes, wait and transfer of each operation, size and group."""

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.report import columns
from hindmost_judge import communication
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, NONBLOCKING, Job, Run
from hindmost_judge.overview import Overview

from tests.runs import MS, made


def test_wait_is_what_a_call_takes_beyond_the_shortest_of_its_members() -> None:
    """Two groups of two ranks reduce 1 MiB in 2 ms; one rank of each waits another 6 ms."""
    rows = []
    for rank in range(4):
        comm = 1 + rank // 2
        for seq in range(10):
            took = 2_000_000 + (6_000_000 if rank % 2 else 0)
            rows.append((rank, comm, seq, "all_reduce", 10**9, took, 1 << 20, 0, -1, -1, -1, -1, -1, -1))
    (found,) = communication.find(Run(Job("j"), collectives=from_rows("collectives", rows)))
    assert (found.operation, found.bytes, found.group, found.groups, found.calls) == ("all_reduce", 1 << 20, 2, 2, 40)
    assert (found.wait_ms, found.transfer_ms) == pytest.approx((3.0, 2.0))
    assert found.bandwidth == pytest.approx((1 << 20) / 0.002)


def test_of_a_long_recording_the_newest_calls_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all ranks, whatever the order of the rows."""
    monkeypatch.setattr(communication, "CALLS", 40)
    rows = [
        (rank, 1, seq, "all_reduce", 10**9 + seq, 1000, 8, 0, -1, -1, -1, -1, -1, -1)
        for rank in range(4)
        for seq in range(1000)
    ]
    (found,) = communication.find(Run(Job("j"), collectives=from_rows("collectives", rows)))
    assert found.calls == pytest.approx(40, abs=4)
    assert found.group == 4


def test_a_message_has_no_wait_that_is_known() -> None:
    """Its duration is not that of a meeting."""
    rows = [(rank, 1, 0, "send", 10**9, 5, 8, 0, 1 - rank, -1, -1, -1, -1, -1) for rank in range(2)]
    (found,) = communication.find(Run(Job("j"), collectives=from_rows("collectives", rows)))
    assert (found.wait_ms, found.transfer_ms, found.bandwidth) == (None, None, None)
    assert found.took_ms == pytest.approx(5e-6)


def overview(steps: int, step_ms: float) -> Overview:
    """So many steps of two ranks, all of the same length."""
    nothing = np.full((2, steps), np.nan)
    planes = dict.fromkeys(("self", "wait", "transfer", "caused", "last", "delay"), nothing)
    period = np.full(steps, step_ms * 1e6)
    numbers = np.arange(steps)
    return Overview(np.arange(2), numbers, period, np.zeros(2, np.int64), planes, False, False, nothing[0] > 0)


def test_a_rank_has_what_it_called_and_where_it_was_blocked() -> None:
    """In 10 steps of 4 ms: 1 ms of each in a reduction, 2 ms in a wait for messages; to start one takes no time."""
    rows = []
    for step in range(10):
        at = 10**9 + step * 4_000_000
        rows.append((0, 7, step, "all_reduce", at, 1_000_000, 100, 0, -1, -1, -1, -1, -1, -1))
        rows.append((0, 7, step, "send", at, 9_000, 50, NONBLOCKING, 1, -1, -1, -1, -1, -1))
        rows.append((0, 7, step, "recv", at, 9_000, 50, NONBLOCKING, 1, -1, -1, -1, -1, -1))
        rows.append((0, 0, step, "wait", at, 2_000_000, 0, 0, -1, -1, -1, -1, -1, -1))
        rows.append((1, 7, step, "all_reduce", at, 3_000_000, 100, 0, -1, -1, -1, -1, -1, -1))
    run = Run(Job("j"), collectives=from_rows("collectives", rows))
    first, second = communication.by_rank(run, overview(10, 4.0))
    assert first == (0, 40, 30, 1500, pytest.approx(1.0), pytest.approx(2.0))
    assert second == (1, 10, 0, 1000, pytest.approx(3.0), 0.0)
    assert communication.by_rank(run, None)[0].messages_ms is None


def test_of_a_job_without_steps_the_table_has_the_share_of_calls() -> None:
    """Of 10 ms from first to last message, rank 0 is in them for 8 ms, rank 1 for 2 ms; of rank 2 there is nothing."""
    rows = [
        (rank, 7, at, "sendrecv", 10**9 + at * (10_000_000 - ns), ns, 8, 0, 1 - rank, *[-1] * 5)
        for rank, ns in ((0, 4_000_000), (1, 1_000_000))
        for at in (0, 1)
    ]
    ranks = from_rows("ranks", [(rank, 2, rank, "n0", 100 + rank, "", "mpi", 0) for rank in (0, 1)])
    run = Run(Job("j"), ranks=ranks, collectives=from_rows("collectives", rows))
    assert communication.share_of_time(run, np.arange(3)) == pytest.approx([0.8, 0.2, np.nan], nan_ok=True)
    titles, cells = columns.table(judge(run).to_dict()["ranks"])
    assert (titles, cells) == (["rank", "in calls"], [["0", "80 %"], ["1", "20 %"]])


def test_who_waits_in_messages_between_collectives_has_its_share_of_calls() -> None:
    """Rank 0 exchanges for 6 ms of each step of 10, since rank 1 comes late; waits in collectives say nothing of it."""
    calls = [("sendrecv", 0, 2, 6), ("sendrecv", 1, 7.9, 0.1), ("all_reduce", 0, 9, 1), ("all_reduce", 1, 9, 1)]
    rows = [
        (rank, 7, step, op, int((1000 + 10 * step + start) * MS), int(took * MS), 8, 0, peer, *[-1] * 5)
        for step in range(60)
        for op, rank, start, took in calls
        for peer in [-1 if op == "all_reduce" else 1 - rank]
    ]
    run = made(2, collectives=[from_rows("collectives", rows)])
    shares = [row.calls_ratio for row in judge(run).ranks]
    assert shares == [pytest.approx(0.7, abs=0.01), pytest.approx(0.11, abs=0.01)]


def sweep(op: str, sizes: list[int], *, calls: int = 20, ranks: int = 4) -> Run:
    """As OSU's benchmarks: so many calls of each size, which take 1 us and 1 ns for each 10 bytes."""
    rows = [
        (rank, 7, seq, op, 10**9 + seq, 1000 + size // 10, size, 0, -1, -1, -1, -1, -1, -1)
        for rank in range(ranks)
        for seq, size in enumerate(size for size in sizes for _ in range(calls))
    ]
    return Run(Job("j"), collectives=from_rows("collectives", rows))


def test_calls_and_bytes_of_a_sweep_are_exact() -> None:
    """A row a size, as sizes are powers of two."""
    sizes = [4 << power for power in range(20)]
    found = {one.bytes: one for one in communication.find(sweep("all_reduce", sizes))}
    assert sorted(size for size in found if size is not None) == sizes
    assert {one.calls for one in found.values()} == {80}
    assert [found[size].total for size in sizes] == [80 * size for size in sizes]


def test_sizes_between_two_powers_of_two_are_one_class() -> None:
    """It says its smallest and largest call; the sum is exact."""
    (found,) = communication.find(sweep("all_reduce", [600, 1000, 1024]))
    assert (found.least, found.bytes, found.total) == (600, 1024, 80 * (600 + 1000 + 1024))


@pytest.mark.parametrize(
    ("op", "times"), [("all_reduce", 1.5), ("all_gather", 3.0), ("reduce_scatter", 0.75), ("all_to_all", 0.75)]
)
def test_bus_bandwidth_is_what_each_link_carries(op: str, times: float) -> None:
    """Of 4 ranks, by what each of them contributes (doc/PERFORMANCE.md of nccl-tests)."""
    (found,) = communication.find(sweep(op, [1 << 20]))
    assert found.bandwidth is not None
    assert found.bus_bandwidth == pytest.approx(times * found.bandwidth)


def test_a_host_that_waits_in_a_call_does_nothing_else() -> None:
    """So all of a blocking call is exposed; of one that a GPU runs, or that is waited for later, it is not known."""
    blocking = sweep("all_reduce", [8])
    assert communication.find(blocking)[0].exposed == 1.0
    for flag in (GPU_TIME, NONBLOCKING):
        table = blocking.collectives | {"flags": np.full(len(blocking.collectives["rank"]), flag, np.int32)}
        assert communication.find(Run(Job("j"), collectives=table))[0].exposed is None
