"""Counters of ranks, for jobs with step marks and without."""

import numpy as np
from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.live.jobs import LiveJob


def chunk(words, steps):
    """Two ranks, ``steps`` times two all-reduces of 1 ms after 4 ms and 5 ms of self time, half of it on the CPU."""
    rows = [(rank, 2 * step + call) for rank in range(2) for step in range(steps) for call in range(2)]
    count = len(rows)
    call = np.array([row[1] % 2 for row in rows])
    own = np.where(call, 4_000_000, 5_000_000)
    table = {
        "rank": np.array([row[0] for row in rows], dtype=np.int32),
        "comm": np.ones(count, dtype=np.uint64),
        "seq": np.array([row[1] for row in rows]),
        "op": np.full(count, words.code("all_reduce"), dtype=np.int32),
        "start_ns": np.arange(count) * 1_000_000,
        "duration_ns": np.full(count, 1_000_000),
        "bytes": np.where(call, 64, 4096),
        "flags": np.zeros(count, dtype=np.int32),
        "peer": np.full(count, -1, dtype=np.int32),
        "self_ns": own,
        "cpu_ns": own // 2,
        "runqueue_ns": np.zeros(count, dtype=np.int64),
        "step": np.full(count, -1),
    }
    return Chunk({"collectives": table}, {}, [], [])


def test_steps_of_an_unmarked_job_are_inferred():
    """A job that marks no steps has step counters and phases all the same, from the pattern of its collectives."""
    words, job = Words(), LiveJob("j", 0)
    job.add(chunk(words, 40), words, Definitions(), 1)
    job.infer_steps()
    counters = {name: values.tolist() for name, values in job.counters()}
    assert job.calls_per_step == 2
    assert counters["steps_total"] == [40, 40]
    assert counters["last_step"] == [39, 39]
    assert np.allclose(counters["step_seconds_total"], 40 * 0.011)
    assert np.allclose(counters["phase:self_cpu"], 40 * 0.0045)
    assert np.allclose(counters["phase:self_blocked"], 40 * 0.0045)


def test_alike_collectives_in_a_row_are_one_inferred_step():
    """Of two that nothing but the computing before the first tells apart a live count makes one step, too."""
    words, job = Words(), LiveJob("j", 0)
    calls = chunk(words, 40)
    table = calls.coded["collectives"]
    table |= {"self_ns": np.where(table["bytes"] == 64, 5_000_000, 3_000), "bytes": np.full(80 * 2, 8)}
    job.add(calls, words, Definitions(), 1)
    job.infer_steps()
    assert {name: values.tolist() for name, values in job.counters()}["steps_total"] == [40, 40]


def test_horovod_cycles_are_counted_with_their_time():
    """Each interval adds its cycles and its length; other intervals, and ranks without any, add nothing."""
    words, job = Words(), LiveJob("j", 0)
    table = {
        "rank": np.array([0, 0, 1, 1], dtype=np.int32),
        "name": np.array([words.code("horovod_cycle")] * 3 + [words.code("probe")], dtype=np.int32),
        "start_ns": np.arange(4),
        "duration_ns": np.array([1_000_000_000, 1_200_000_000, 1_000_000_000, 7]),
        "value": np.array([1000.0, 800.0, 500.0, 9.0]),
    }
    job.add(Chunk({"intervals": table}, {}, [], []), words, Definitions(), 1)
    counters = {name: values.tolist() for name, values in job.counters()}
    assert counters["horovod_cycles_total"] == [1800, 500]
    assert np.allclose(counters["horovod_cycle_seconds_total"], [2.2, 1.0])


def test_not_having_waited_is_zero():
    """A rank with collectives without waiting has counters of zero, not none."""
    words, job = Words(), LiveJob("j", 0)
    job.add(chunk(words, 2), words, Definitions(), 1)
    counters = {name: values.tolist() for name, values in job.counters()}
    assert counters["caused_wait_seconds_total"] == [0, 0]
    assert counters["last_arrivals_total"] == [0, 0]
