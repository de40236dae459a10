"""Jobs that stop in messages: whom the ranks wait for in the end, and ranks that wait for each other."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_judge.detect import hang
from hindmost_judge.judge import judge
from hindmost_judge.model import ANY_PEER, Run
from hindmost_judge.verdict.schema import Verdict

from tests.runs import only, with_rows
from tests.scenarios.loads import SECOND, WORLD, standing

PAIR = 9


def first(run: Run) -> Verdict:
    return judge(run).verdicts[0]


def test_a_ring_that_stands_names_the_rank_that_is_in_no_message() -> None:
    """MPI_Wait is local: the peer of its request says who is waited for."""
    verdict = first(standing((3, "wait", 2, False), (0, "send", 1, True), (1, "send", 2, True)))
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (2,), (0, 1, 3))
    assert verdict.evidence[0].startswith(
        "rank 3 waits for rank 2 in MPI_Wait, rank 1 waits for rank 2 in MPI_Send; 3 ranks wait"
    )


def test_ranks_that_receive_from_each_other_are_a_deadlock() -> None:
    """It is shown as one, with who waits for whom; others wait for them. It costs all that stand in it 30 s each."""
    run = standing((0, "recv", 1, False), (1, "recv", 0, False), (2, "recv", 1, False), in_collective=(3,))
    verdict = first(run)
    assert (verdict.kind, verdict.cause, verdict.ranks, verdict.victims) == ("hang", "deadlock", (0, 1), (2, 3))
    assert verdict.evidence[0] == ("deadlock: rank 0 waits for rank 1 in MPI_Recv, rank 1 waits for rank 0 in MPI_Recv")
    assert of_verdict(verdict.__dict__).cost == "4 ranks waited 30.0 s on average"


def test_what_ranks_of_a_deadlock_do_is_one_line() -> None:
    """Each of them is at fault as much as the other; a wait of mpi4py's `recv` has its name."""
    run = standing((0, "probe", 1, False), (1, "probe", 0, False), in_collective=(2, 3))
    texts = [f"    <module> (train.py:{line})\n" for line in (22, 23)]
    verdict = first(replace(run, stacks=table("stacks", rank=[0, 1], time_ns=[1, 1], text=texts)))
    assert verdict.evidence[0].startswith("deadlock: rank 0 waits for rank 1 in recv (MPI_Probe), rank 1 waits")
    assert verdict.evidence[1] == "rank 0 is at train.py:22, rank 1 is at train.py:23"


def test_a_collective_of_messages_names_who_entered_none() -> None:
    """A pickled all-reduce is messages and a broadcast inside: rank 2 raised, rank 0 waits for its part."""
    verdict = first(standing((0, "recv", 2, False), in_collective=(1, 3)))
    assert (verdict.kind, verdict.ranks) == ("hang", (2,))


def test_one_in_a_collective_and_the_others_in_messages_have_parted() -> None:
    """Rank 1 called another collective than the rest, which is made of messages."""
    run = standing((0, "recv", 1, False), (2, "recv", 0, False), in_collective=(1,))
    inside = only(run, in_flight=[0]).in_flight  # of the copy that mpi4py uses
    inside |= {"rank": [3], "kind": ["collective"], "peer": [-1], "comm": np.array([PAIR], np.uint64)}
    copy = {**run.communicators, "comm": np.full(4, PAIR, np.uint64)}
    verdict = first(with_rows(run, in_flight=inside, communicators=copy))
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (1,), (0, 2, 3))
    assert verdict.evidence[0] == "rank 1 is in all_reduce, the others are in MPI_Recv"
    assert "rank 0 waits for rank 1 in MPI_Recv" in verdict.evidence


@pytest.mark.parametrize(("after", "reported"), [(0, True), (29, False)])
def test_a_rank_in_finalize_has_left_its_loop_unless_the_job_was_ended(after: int, reported: bool) -> None:
    """After a Ctrl-C Python finalizes MPI, too: that is no reason for the wait before."""
    run = standing((0, "recv", 2, False), (1, "recv", 2, False), (3, "recv", 2, False))
    last = only(run, in_flight=[0]).in_flight
    last |= {"rank": [2], "kind": ["phase"], "name": ["mpi_finalize"], "peer": [-1]}
    verdict = first(with_rows(run, in_flight=last | {"start_ns": last["start_ns"] + after * SECOND}))
    assert ("rank 2 is in MPI_Finalize: the loop is over" in verdict.evidence) == reported


def test_a_receive_whose_send_was_called_accuses_no_rank() -> None:
    """Both came: the message is missing, or has another tag."""
    verdict = first(standing((0, "recv", 1, False), (1, "send", 0, True), in_collective=(2, 3)))
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("hang", "unknown", ())


@pytest.mark.parametrize("peer", [-1, 3])
def test_a_message_with_an_unknown_rank_accuses_no_other(peer: int) -> None:
    """Recordings of earlier versions have no peers; and not every member of a communicator may be known."""
    run = standing((0, "recv", peer, False), (1, "recv", peer, False), ranks=3, comm=WORLD if peer < 0 else PAIR)
    assert first(run).ranks == ()


def test_a_rank_of_a_communicator_is_found_by_its_place_in_it() -> None:
    """Rank 0 of a communicator of ranks 2 and 3 is rank 2."""
    run = standing((3, "recv", 0, False), comm=PAIR)
    pair = table("communicators", comm=PAIR, rank=[2, 3], rank_in=[0, 1], size=2, name="")
    assert first(with_rows(run, communicators=pair)).ranks == (2,)


def test_who_receives_from_any_rank_waits_for_those_at_work() -> None:
    """Of three ranks that could send, two wait for rank 0 themselves."""
    messages = [(0, "recv", ANY_PEER, False), (1, "recv", 0, False), (3, "recv", 0, False)]
    assert first(standing(*messages)).ranks == (2,)


def test_a_rank_that_waits_for_one_at_work_has_not_stopped() -> None:
    """A server that receives its next order waits for as long as there is none: the others go on."""
    run = standing((3, "recv", 0, False))
    late = run.in_flight | {"start_ns": run.in_flight["start_ns"] - 3600 * SECOND}
    assert all(verdict.kind != "hang" for verdict in judge(replace(run, in_flight=late)).verdicts)


def test_how_long_ranks_wait_is_known_without_their_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find a peer takes a pass over all communicators, and there may be thousands of messages."""
    run = standing((0, "recv", 1, False), (1, "recv", 0, False), in_collective=(2, 3))
    monkeypatch.setattr(hang, "_peers", None)
    waited_ns, first_ns = hang.waits_of(run, (0, 1, 2))
    assert (waited_ns, first_ns) == (3 * 30 * SECOND, run.in_flight["start_ns"].min())
