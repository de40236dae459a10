"""Typical queries of a store and their time, next to a fixed amount of work that shows how busy the host is."""

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import hindmost_collector

from bench.storage import data

#: The goal in seconds, on a machine that is free, and the question. Quantiles are exact.
QUESTIONS = {
    "per_rank_p50_p99": (
        0.5,
        """
        select rank, quantile_cont(duration_ns, [0.5, 0.99]) as p50_p99_ns
        from steps where duration_ns >= 0 group by rank order by rank""",
    ),
    "five_minutes_of_a_node": (
        0.02,
        """
        select time_ns, value from metrics where node = 'node00017' and name = 'hindmost_bench_cpu_seconds_total_20'
        and time_ns >= {start} and time_ns < {start} + 300000000000 order by time_ns""",
    ),
    "slow_rank_join": (
        0.3,
        """
        select s.rank, r.node, avg(s.forward_ns) / 1e6 as forward_ms, count(*) as steps from steps s
        join (select rank, any_value(node) as node from ranks group by rank) r on s.rank = r.rank
        where s.forward_ns >= 0 group by s.rank, r.node order by forward_ms desc limit 10""",
    ),
}

#: Rows of the reference: their sum per rank, from memory, is what a question that reads nothing would cost.
REFERENCE_ROWS = 10_000_000


def asked(store: Path, start_ns: int, rounds: int) -> dict[str, Any]:
    """Seconds and CPU seconds of each question, and how many times as long as the reference query next to it."""
    reference = _reference()
    found = {}
    for name, (goal, sql) in QUESTIONS.items():
        query = sql.format(start=start_ns + 60 * data.SECOND)
        recording = hindmost_collector.open(store)
        answer = functools.partial(recording.sql, query)
        rows, taken, beside = len(answer()), [], []
        for _ in range(rounds):
            beside.append(_timed(reference)[0])
            taken.append(_timed(answer))
        times = [one for one, _ in taken]
        found[name] = {
            "goal_s": goal,
            "median_s": round(statistics.median(times), 4),
            "least_s": round(min(times), 4),
            "most_s": round(max(times), 4),
            "cpu_s_all_threads_median": round(statistics.median(cpu for _, cpu in taken), 4),
            "reference_median_s": round(statistics.median(beside), 4),
            "reference_least_s": round(min(beside), 4),
            "times_the_reference": round(statistics.median(times) / statistics.median(beside), 2),
            "rows": rows,
        }
    return found


def _reference() -> Callable[[], Any]:
    connection = duckdb.connect()
    connection.execute(
        f"create table kept as select (i // 9770)::int as rank, i * 7919 % 1000003 as value"
        f" from range({REFERENCE_ROWS}) made(i)"
    )
    return lambda: connection.sql("select rank, sum(value) as total from kept group by rank").to_arrow_table()


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used
