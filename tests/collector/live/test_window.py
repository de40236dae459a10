"""What a running job's window and counters hold: the time that all ranks have reported, within bounds."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import Chunk, from_rows
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.live import totals, window
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.live.window import REPORT_LAG_NS, LastRows, reported_by_all
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.encoding import is_constant, repeated
from hindmost_judge.judge import judge
from hindmost_judge.model import COMMUNICATORS, Run

RANKS, ONSET, STEPS = 32, 60, 100
#: Ranks of the node whose agent sent its last batch a while ago.
BEHIND = range(8)
EVERYTHING = frozenset({"steps", "collectives"})


def simulated(layout: str) -> Run:
    """Four nodes; rank 5 becomes slow."""
    run = simulate(Scenario(RANKS, STEPS, seed=2, layout=layout, faults=(Fault("compute", (5,), 0.1, ONSET),))).run
    return replace(run, job=replace(run.job, source="hindmost", ended_ns=None, exit_code=None))


@pytest.fixture(scope="module")
def job() -> Run:
    """One whose ranks meet many times in a step."""
    return simulated("fsdp")


def began(run: Run, step: int) -> int:
    """When the first rank began a step."""
    return int(run.steps["start_ns"][run.steps["step"] == step].min())


def without(run: Run, ranks: range, *, since: int = STEPS, before: int = 0) -> Run:
    """The same, less what these ranks did since one step and before another."""
    first = began(run, before)
    last = began(run, since) if since < STEPS else np.iinfo(np.int64).max
    kept = {}
    for name, table in (("steps", run.steps), ("collectives", run.collectives)):
        start, ends = table["start_ns"], table["start_ns"] + table["duration_ns"]
        there = ~np.isin(table["rank"], ranks) | ((start >= first) & (ends <= last))
        kept[name] = {column: values[there] for column, values in table.items()}
    return replace(run, **kept)


def step_ns(run: Run) -> float:
    return float(np.median(run.steps["duration_ns"]))


def until(run: Run) -> list[int]:
    """The last step that each rank has begun."""
    return [int(run.steps["step"][run.steps["rank"] == rank].max()) for rank in range(RANKS)]


def test_who_waits_for_ranks_that_did_not_tell_yet_waits_for_no_network(job: Run) -> None:
    """The slow rank's newest steps are on their way: what the others wait is judged when these are there."""
    run = without(job, BEHIND, since=ONSET + 2)
    assert [verdict.kind for verdict in judge(reported_by_all(run, step_ns(job), set(), EVERYTHING)).verdicts] == [
        "balanced"
    ]
    run = without(job, BEHIND, since=ONSET + 20)
    (one,) = judge(reported_by_all(run, step_ns(job), set(), EVERYTHING)).verdicts
    assert (one.kind, one.ranks, one.since_step) == ("straggler", (5,), pytest.approx(ONSET, abs=2))


def test_steps_that_some_ranks_do_not_tell_of_make_nothing_cheaper(job: Run) -> None:
    """A window that has lost the first steps of some ranks, and not yet the last of others."""
    (whole,) = judge(job).verdicts
    run = without(without(job, BEHIND, since=STEPS - 15), range(8, 16), before=15)
    assert [verdict.cost_ms_per_step for verdict in judge(run).verdicts] != [
        pytest.approx(whole.cost_ms_per_step, rel=0.2)
    ]
    (one,) = judge(reported_by_all(run, step_ns(job), set(), set())).verdicts
    assert one.cost_ms_per_step == pytest.approx(whole.cost_ms_per_step, rel=0.05)


def test_ranks_that_are_gone_or_late_for_too_long_are_not_waited_for(job: Run) -> None:
    """What was let go of those that joined late, or have ended, is not missing."""
    run = without(job, BEHIND, since=80)
    assert max(until(reported_by_all(run, step_ns(job), set(), EVERYTHING))) <= 80
    assert max(until(reported_by_all(run, step_ns(job), set(BEHIND), EVERYTHING))) == STEPS - 1
    long_ago = next(step for step in range(STEPS) if began(job, STEPS - 1) - began(job, step) < REPORT_LAG_NS) - 3
    run = without(job, BEHIND, since=long_ago)
    assert max(until(reported_by_all(run, step_ns(job), set(), EVERYTHING))) == STEPS - 1


def test_what_all_ranks_reported_holds_one_value_for_a_constant_column(job: Run) -> None:
    """Half the columns of a large window are: written out they would double what judging it takes."""
    run = without(job, BEHIND, since=80)
    run = replace(run, steps=run.steps | {"work": repeated(-1, len(run.steps["rank"]))})
    assert is_constant(reported_by_all(run, step_ns(job), set(), EVERYTHING).steps["work"])


def test_too_short_a_window_stays_as_it_is(job: Run) -> None:
    """Fewer steps than a judgement needs say less than those that some ranks do not tell of."""
    run = without(without(job, BEHIND, since=88), range(RANKS), before=80)
    assert reported_by_all(run, step_ns(job), set(), set()).steps is run.steps


def test_collectives_that_all_ranks_told_of_too_few_steps_are_left_to_the_marks() -> None:
    """Of thousands of ranks a window holds some seconds of collectives, each rank's from another moment on."""
    job = simulated("dp")
    short = without(without(job, BEHIND, since=84), range(8, 16), before=78)
    short = without(short, range(RANKS), before=70)
    run = replace(job, collectives=short.collectives)
    assert not len(reported_by_all(run, step_ns(job), set(), {"steps"}).collectives["rank"])
    (one,) = judge(reported_by_all(run, step_ns(job), set(), {"steps"})).verdicts
    assert (one.kind, one.ranks, one.since_step) == ("straggler", (5,), pytest.approx(ONSET, abs=2))
    unmarked = replace(short, steps={name: column[:0] for name, column in job.steps.items()})
    assert len(reported_by_all(unmarked, step_ns(job), set(), set()).collectives["rank"])


def test_a_window_that_begins_with_its_job_is_not_cut_at_its_begin(job: Run) -> None:
    """Ranks' first reports are when they began."""
    run = without(job, BEHIND, before=5)
    assert reported_by_all(run, step_ns(job), set(), EVERYTHING).steps["step"].min() == 0
    assert reported_by_all(run, step_ns(job), set(), set()).steps["step"].min() >= 4


RESTARTS, MEMBERS = 400, 8


def lives() -> Iterator[list[dict[str, object]]]:
    """Members of the communicators that each start of a job makes anew."""
    for life in range(RESTARTS):
        yield [
            dict.fromkeys(COMMUNICATORS, 0) | {"comm": life, "rank": rank, "size": MEMBERS, "name": ""}
            for rank in range(MEMBERS)
        ]


def test_of_communicators_those_that_were_stated_last_are_known() -> None:
    """However often a job started again; one that is stated again is as new as any."""
    known = LastRows("communicators", ("comm", "rank"), most=80)
    first = next(lives())
    for life in lives():
        known.add(from_rows("communicators", [tuple(row[name] for name in COMMUNICATORS) for row in life]))
        known.add(from_rows("communicators", [tuple(row[name] for name in COMMUNICATORS) for row in first]))
    assert len(known.table()["comm"]) == 80
    assert set(known.table()["comm"].tolist()) == {0, *range(RESTARTS - 9, RESTARTS)}
    order = np.lexsort((known.table()["rank"], known.table()["comm"]))
    assert order.tolist() == list(range(80))


def test_sizes_of_communicators_are_known_of_those_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start makes new ones."""
    monkeypatch.setattr(totals, "MOST_COMMUNICATORS", 10)
    words, settling = Words(), totals.Waits()
    op = words.code("all_reduce")
    for life in range(RESTARTS):
        settling.add(
            {
                "comm": np.full(MEMBERS, life),
                "op": np.full(MEMBERS, op),
                "seq": np.zeros(MEMBERS, np.int64),
                "rank": np.arange(MEMBERS),
                "duration_ns": np.full(MEMBERS, 5),
                "flags": np.zeros(MEMBERS, np.int64),
            },
            words,
        )
    assert list(vars(settling)["_members"]) == list(range(RESTARTS - 10, RESTARTS))
    assert settling.pending == 0


def test_nodes_of_which_nothing_is_heard_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job whose nodes are replaced, those that were heard of last are known."""
    monkeypatch.setattr(window, "MOST_NODES", 10)
    held, definitions = window.Window(), Definitions()
    for at in range(RESTARTS):
        held.add(
            Chunk(coded={}, plain={}, metrics=[], attachments=[], heard={"stays": at, f"node-{at}": at}), definitions
        )
    assert set(vars(held)["_heard"]) == {"stays", *(f"node-{at}" for at in range(RESTARTS - 9, RESTARTS))}


def stacks_after(came: list[tuple[int, int, str]]) -> list[tuple[int, str]]:
    """Which ranks' stacks a window holds after these came, and the first letter of each."""
    held = window.Window()
    for one in came:
        held.add(Chunk({}, {"stacks": from_rows("stacks", [one])}, [], []), Definitions())
    table = held.snapshot("j", Words())().stacks
    return [(rank, text[0]) for rank, text in zip(table["rank"].tolist(), table["text"].tolist(), strict=True)]


def test_stacks_of_all_ranks_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of however many ranks, also of those that are gone: those that came first go."""
    monkeypatch.setattr("hindmost_collector.live.window._STACK_CHARACTERS", 20)
    came = [(rank, rank, "abcde"[rank] * 8) for rank in range(5)]
    assert stacks_after(came) == [(3, "d"), (4, "e")]


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


@pytest.mark.parametrize("apart", [1, 65_535, 65_536, 1 << 30])
def test_numbers_of_calls_may_be_far_apart(apart: int):
    """Rank 0 waits 4 ms in each call, for rank 1, however many calls of others came between two."""
    words, job = Words(), LiveJob("j", 0)
    calls = chunk(words, 2)
    table = calls.coded["collectives"]
    table |= {
        "seq": table["seq"].astype(np.int64) * apart,
        "duration_ns": np.where(table["rank"] == 0, 5_000_000, 1_000_000),
    }
    job.add(calls, words, Definitions(), 1)
    counters = {name: values.tolist() for name, values in job.counters()}
    assert np.allclose(counters["caused_wait_seconds_total"], [0, len(table["seq"]) // 2 * 0.004])
