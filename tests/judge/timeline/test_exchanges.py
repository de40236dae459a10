"""Ranks that exchange the edges of their domains with neighbours, and meet in no collective."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_collector.report import text
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge
from hindmost_judge.model import NONBLOCKING, UNMEASURED, Run
from hindmost_judge.timeline.exchanges import with_exchanges_joined

from tests.runs import MS, made

#: What a call itself takes, ns.
CALL = 10_000


class Call(NamedTuple):
    """A call of a rank; ns."""

    rank: int
    op: str
    peer: int
    start_ns: float
    self_ns: float = 0.0
    duration_ns: float = CALL
    flags: int = 0


def run_of(calls: list[Call]) -> Run:
    """A job whose ranks made these."""
    columns = dict(zip(Call._fields, map(np.array, zip(*calls, strict=True)), strict=True))
    whole = {name: column.astype(np.int64) if name.endswith("_ns") else column for name, column in columns.items()}
    fixed = {"comm": np.full(len(calls), 7), "bytes": np.full(len(calls), 8000)}
    return made(len(set(columns["rank"].tolist())), collectives=[table("collectives", **whole, **fixed)])


def exchanging(own: np.ndarray[Any, Any], often: int = 0) -> Run:
    """Ranks in a row compute for ``own`` [R, S] ns, send to and receive from neighbours, and wait for both; in each of
    ``often`` steps they send more."""
    calls: list[Call] = []
    left = np.zeros(len(own))
    for number, work in enumerate(own.T):
        came = left + work
        for rank, at in enumerate(came):
            peers = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < len(own)]
            words = [(op, peer) for peer in peers for op in ("send", "recv")]
            words += [("send", peers[0])] if often and number % often == often - 1 else []
            calls += [
                Call(rank, op, peer, at + place * CALL, 0 if place else work[rank], flags=NONBLOCKING)
                for place, (op, peer) in enumerate(words)
            ]
            at_wait = at + len(words) * CALL
            left[rank] = max(at_wait, came[[rank, *peers]].max() + 5 * CALL)
            calls.append(Call(rank, "wait", -1, at_wait, duration_ns=left[rank] - at_wait))
    return run_of(calls)


def works(ranks: int = 4, steps: int = 300) -> np.ndarray[Any, Any]:
    """[R, S] ns: 10 ms, and noise."""
    return np.asarray(np.random.default_rng(1).normal(10 * MS, 0.2 * MS, (ranks, steps)))


@pytest.mark.parametrize("ranks", [2, 4, 9])
@pytest.mark.parametrize("often", [0, 50])
def test_who_keeps_its_neighbours_waiting_is_named(ranks: int, often: int) -> None:
    """Since when, and at what cost, as in a job of collectives; also where other messages come between."""
    own = works(ranks)
    own[1, 150:] += 3 * MS
    first = judge(exchanging(own, often)).verdicts[0]
    assert (first.kind, first.ranks) == ("straggler", (1,))
    assert first.since_step == pytest.approx(150, abs=3)
    assert first.cost_ms_per_step == pytest.approx(2.9, rel=0.15)
    assert first.evidence[0].startswith("self time between exchanges: rank 1")


def test_the_table_says_exchanges_where_ranks_meet_in_no_collective() -> None:
    """No line of the report speaks of collectives."""
    own = works()
    own[1] += 3 * MS
    shown = text.render(judge(exchanging(own)).to_dict(), explain=True)
    assert "collective" not in shown
    assert "in exchanges, for ranks that arrive later" in " ".join(shown.split())


def test_an_even_job_is_balanced() -> None:
    first = judge(exchanging(works())).verdicts[0]
    assert (first.kind, first.ranks) == ("balanced", ())


def handed_out() -> Iterator[Call]:
    """Who is done gets the next piece of work: rank 2 does half as many as rank 1."""
    for rank, piece in ((1, 10 * MS), (2, 20 * MS)):
        for end in range(piece, 3000 * MS, piece):
            yield from (Call(rank, "send", 0, end - 2 * CALL, piece - 2 * CALL), Call(rank, "recv", 0, end - CALL))
            yield from (Call(0, "recv", rank, end - 2 * CALL), Call(0, "send", rank, end - CALL))


def in_turn(*own: int) -> Iterator[Call]:
    """A message goes round: each rank computes for its ``own`` ms when it has it, and passes it on."""
    for start in range(0, 200 * sum(own), sum(own)):
        at = start
        for rank, work in enumerate(own):
            yield Call(rank, "send", (rank + 1) % len(own), (at + work) * MS, work * MS)
            rest = (sum(own) - work) * MS - CALL
            yield Call(rank, "recv", (rank - 1) % len(own), (at + work) * MS + CALL, duration_ns=rest)
            at += work


def subcycled() -> Iterator[Call]:
    """Rank 0 makes two short steps for each of rank 2, and rank 1 meets both."""
    for start in range(0, 2000 * MS, 10 * MS):
        for half in (start + 5 * MS, start + 10 * MS):
            yield from (Call(0, "send", 1, half, 5 * MS - CALL), Call(0, "recv", 1, half + CALL))
            yield from (Call(1, "send", 0, half, 5 * MS - CALL), Call(1, "recv", 0, half + CALL))
        yield from (Call(1, "send", 2, half + 2 * CALL), Call(1, "recv", 2, half + 3 * CALL))
        yield from (Call(2, "send", 1, half, 10 * MS - CALL), Call(2, "recv", 1, half + 3 * CALL))


def apart() -> Iterator[Call]:
    """Two pairs that do not wait for each other."""
    for start in range(0, 2000 * MS, 10 * MS):
        for rank in range(4):
            yield Call(rank, "sendrecv", rank ^ 1, start, 10 * MS - CALL)


def unmeasured() -> Iterator[Call]:
    """Nothing tells how long ranks computed before."""
    return (one._replace(self_ns=UNMEASURED) for one in apart() if one.rank < 2)


@pytest.mark.parametrize(
    "calls",
    [handed_out(), in_turn(2, 20), in_turn(3, 8, 3, 8), in_turn(2, 3, 5, 10), subcycled(), apart(), unmeasured()],
)
def test_ranks_that_do_not_wait_for_each_other_alike_are_left(calls: Iterator[Call]) -> None:
    assert with_exchanges_joined(run_of(list(calls))) is None


def test_steps_that_a_recording_lacks_of_one_rank_move_no_others() -> None:
    """As the beginning of a window does: its steps are those that others made at the time."""
    own = works(3)
    own[1, 150:] += 3 * MS
    run = exchanging(own)
    kept = (run.collectives["rank"] != 2) | (run.collectives["start_ns"] > 200 * MS)
    joined = with_exchanges_joined(replace(run, collectives=chosen(run.collectives, kept)))
    assert joined is not None
    seq, start, rank = (joined.collectives[name] for name in ("seq", "start_ns", "rank"))
    others, late = (dict(zip(seq[rank == one].tolist(), start[rank == one].tolist(), strict=True)) for one in (0, 2))
    assert len(late) < len(others) - 10
    assert max(abs(late[step] - others[step]) for step in late) < 10 * MS
