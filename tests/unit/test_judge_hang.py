"""Jobs that stop: who is named when only one rank finished, when the job was killed, or when it saves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hindmost_collector.chunk import from_rows
from hindmost_collector.judge import judge
from hindmost_collector.model import COMMUNICATORS, VANISHED, empty

from tests.scenarios.loads import Load, hang, make

if TYPE_CHECKING:
    from hindmost_collector.model import Run
    from hindmost_collector.verdict import Verdict

FOUR = Load(ranks=4, steps=40)
SECOND = 10**9


def first(run: Run) -> Verdict:
    return judge(run).verdicts[0]


def also(run: Run, rank: int, op: str, seq: int) -> Run:
    """The run with one more finished collective of a rank, after all others."""
    table = run.collectives
    more = {name: column[-1:].copy() for name, column in table.items()}
    more |= {"rank": np.array([rank], np.int32), "op": np.array([op]), "seq": np.array([seq])}
    more["start_ns"] = table["start_ns"].max(keepdims=True) + SECOND
    return replace(run, collectives={name: np.concatenate([table[name], more[name]]) for name in table})


def in_phase(run: Run, rank: int, name: str) -> Run:
    """The run with a rank inside a phase."""
    table = run.in_flight
    more = {key: column[-1:].copy() for key, column in table.items()}
    more |= {"rank": np.array([rank], np.int32), "kind": np.array(["phase"]), "name": np.array([name])}
    return replace(run, in_flight={key: np.concatenate([table[key], more[key]]) for key in table})


def test_an_operation_that_only_the_odd_rank_finished_is_a_divergence() -> None:
    """A broadcast's root leaves at once: the others wait in what it never entered."""
    verdict = first(also(hang(FOUR, [2]), 2, "broadcast", 40))
    assert (verdict.kind, verdict.ranks) == ("desync", (2,))
    assert "rank 2 entered broadcast there instead" in verdict.evidence


def test_what_all_have_run_is_no_divergence() -> None:
    """Numbers may count each operation apart: the same broadcast of everybody is nobody's mistake."""
    run = hang(FOUR, [2])
    for rank in range(4):
        run = also(run, rank, "broadcast", 3)
    assert (first(run).kind, first(run).ranks) == ("hang", (2,))


def in_another_communicator(run: Run, rank: int, members: int) -> Run:
    """The run with the rank's open operation in a communicator of its own number, of so many members."""
    table = {name: column.copy() for name, column in run.in_flight.items()}
    table["comm"][table["rank"] == rank] = 8
    group = empty(COMMUNICATORS) | {
        "comm": np.array([8], np.uint64),
        "rank": np.array([rank], np.int32),
        "rank_in": np.array([0], np.int32),
        "size": np.array([members], np.int32),
        "name": np.array(["world"]),
    }
    return replace(run, in_flight=table, communicators=group, job=replace(run.job, world_size=4))


def test_one_of_two_cannot_be_told_from_the_other() -> None:
    """Where as many ranks entered the one operation as the other, they diverge and nobody is named."""
    verdict = first(hang(Load(ranks=2, steps=40), [1], op="all_reduce", other="all_gather"))
    assert (verdict.kind, verdict.ranks) == ("desync", ())
    assert verdict.evidence[-1] == "which of them took the wrong branch cannot be told"
    assert "all_gather" in " ".join(verdict.evidence)
    assert "all_reduce" in " ".join(verdict.evidence)


def test_who_waits_in_another_communicator_of_the_same_ranks_has_parted_from_them() -> None:
    """A rank's own broadcast and the others' gradients each wait for the rest: no rank is inside the same operation."""
    run = in_another_communicator(hang(FOUR, [2], op="ddp_sync", other="broadcast"), 2, members=4)
    verdict = first(run)
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (2,), (0, 1, 3))
    assert "rank 2 entered broadcast there instead" in verdict.evidence


def test_groups_of_other_ranks_that_wait_for_each_other_name_nobody() -> None:
    """Two groups entered in different order: each rank waits, and neither order is the wrong one."""
    run = in_another_communicator(hang(FOUR, [2], op="all_reduce", other="all_reduce"), 2, members=2)
    assert (first(run).kind, first(run).ranks) == ("desync", ())


@pytest.mark.parametrize(("waited", "kind"), [(30.0, "balanced"), (90.0, "hang")])
def test_a_rank_that_writes_a_checkpoint_has_a_minute(waited: float, kind: str) -> None:
    """The others wait for whoever saves; only after a minute is that a stop."""
    assert first(in_phase(hang(FOUR, [1], waited=waited), 1, "checkpoint")).kind == kind


def killed(run: Run, code: int, after_s: float) -> Run:
    ended = int((run.collectives["start_ns"] + run.collectives["duration_ns"]).max() + after_s * SECOND)
    return replace(run, job=replace(run.job, exit_code=code, ended_ns=ended))


@pytest.mark.parametrize(
    ("code", "after_s", "kind"),
    [(137, 60.0, "hang"), (-9, 60.0, "hang"), (137, 2.0, "balanced"), (1, 60.0, "balanced")],
)
def test_a_killed_job_hung_if_nothing_had_moved_before(code: int, after_s: float, kind: str) -> None:
    """A signal ends healthy jobs too: what counts is how long nothing had moved."""
    verdict = first(killed(make(FOUR), code, after_s))
    assert (verdict.kind, verdict.ranks) == (kind, ())


def test_being_killed_makes_no_hang_of_an_operation_just_entered() -> None:
    """Whatever was open when the signal came had been open for an instant."""
    run = hang(FOUR, [1], waited=0.5)
    job = replace(run.job, exit_code=143, ended_ns=int(run.in_flight["observed_ns"].max()) + SECOND)
    assert first(replace(run, job=job)).kind == "balanced"


def test_what_was_open_until_the_job_was_killed_hung_until_then() -> None:
    """Nobody looks at the last moment: the end of the job says how long an operation was open."""
    run = hang(FOUR, [1], waited=1)
    job = replace(run.job, exit_code=137, ended_ns=int(run.in_flight["start_ns"].max()) + 40 * SECOND)
    verdict = first(replace(run, job=job))
    assert (verdict.kind, verdict.ranks) == ("hang", (1,))
    assert "3 ranks have waited 40.0 s" in verdict.evidence[0]


def test_a_stack_that_could_not_be_read_is_no_place_in_the_code() -> None:
    """Why there is none is told, and nobody is sent to a file without one."""
    why = "no stack of process 1209: Failed to find a python interpreter in the .data section\n"
    run = hang(FOUR, [3])
    ended = replace(run, job=replace(run.job, ended_ns=1), stacks=from_rows("stacks", [(3, 1, why)]))
    verdict = first(ended)
    assert verdict.evidence[-1] == (
        "rank 3's stack could not be read: Failed to find a python interpreter in the .data section"
    )
    assert "stacks/3.txt" not in verdict.advice[0]


def test_a_culprit_whose_process_is_gone_is_told_as_that() -> None:
    """The others wait for a process that ended: the evidence says so."""
    run = hang(FOUR, [3])
    state = {"rank": [3], "time_ns": [int(run.in_flight["start_ns"].min())], "life": [VANISHED]}
    gone = {name: np.array(values) for name, values in state.items()}
    assert any("rank 3 is gone" in line for line in first(replace(run, rank_states=run.rank_states | gone)).evidence)
