"""GPUs that wait for their hosts' launches, and by what a host is slower."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.causes import launch_bound
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict.inconclusive import hosts_unmarked

from tests.recordings import OURS

STEPS = 40
OPERATIONS = 6
MS = 1e6
#: A host's time from each mark of a step to the next: its input, seven intervals of launching, and what is between.
USUAL = np.array([1.0, 3, 3, 3, 3, 3, 3, 3, 0.1])


def launched(enqueue: Any, waited: Any, steps: int, step: float, delay: Any, does: list[str], **marks: Any) -> Any:
    """As much of blocks as is looked at, and the run: operations enqueued at [R, K] ns that waited [R, K] ms."""
    ranks = len(enqueue)
    joined = SimpleNamespace(gpu_time=True, enqueue=enqueue, start=enqueue + waited * MS, columns=enqueue.shape[1])
    blocks = SimpleNamespace(
        ranks=np.arange(ranks),
        steps=np.arange(steps),
        starts=np.arange(steps) * OPERATIONS,
        cohort=np.zeros(ranks, np.int64),
        step_ns=step * MS,
        joined=joined,
        overlapped=False,
        delay=np.repeat(np.array(delay)[:, None] * MS, steps, axis=1),
        **({"took": None, "ended": None, "parts": {}} | marks),
    )
    table = {
        "rank": np.repeat(np.arange(ranks), enqueue.shape[1]),
        "enqueue_ns": enqueue.ravel(),
        "op": np.repeat(does, enqueue.shape[1]),
    }
    return blocks, SimpleNamespace(collectives=table)


@dataclass
class Case:
    """The GPUs of ``slow`` ranks wait for their hosts, which take ``own`` ms; the others wait ``at`` a mark."""

    own: Any
    ranks: int = 3
    slow: tuple[int, ...] = (2,)
    at: int = 8
    delay: float = 17.0
    waited: float = 0.2
    operation: str = "all_reduce"

    def blocks(self) -> Any:
        """As much of blocks as is looked at, and the run."""
        step = float(np.sum(self.own))
        usual = USUAL.copy()
        usual[self.at] += step - usual.sum()
        gaps = np.array([self.own if rank in self.slow else usual for rank in range(self.ranks)])
        marks = np.concatenate([np.zeros((self.ranks, 1)), np.cumsum(gaps, axis=1)], axis=1)
        at = (marks[:, None] + np.arange(STEPS)[:, None] * step) * MS
        enqueue = at[:, :, 2:-2].reshape(self.ranks, -1)
        waited = np.full(enqueue.shape, 30.0)
        waited[list(self.slow)] = self.waited
        waited[:, 0] = 0.1
        late = [rank in self.slow for rank in range(self.ranks)]
        does = [self.operation if slow else "all_reduce" for slow in late]
        took, ended = np.ascontiguousarray(at[:, :, -2] - at[:, :, 0]), at[:, :, -2]
        marks = {"took": took, "ended": ended, "parts": {"input": at[:, :, 1] - at[:, :, 0]}}
        return launched(enqueue, waited, STEPS, step, [self.delay * slow for slow in late], does, **marks)

    def hosts(self) -> launch_bound.LaunchingHosts:
        """What these hosts launched."""
        blocks, run = self.blocks()
        return hosts_of(blocks, run.collectives)

    def slower(self) -> float | None:
        """By how many ms the first slow rank's host is reported to be slower."""
        found = self.hosts().slower(self.slow[0], np.arange(STEPS))
        return found / MS if found is not None else None


def hosts_of(blocks: Any, table: Any) -> launch_bound.LaunchingHosts:
    """Hosts that launched these collectives."""
    fed = launch_bound.waits_for_host(blocks)
    assert fed is not None
    return launch_bound.LaunchingHosts(table, blocks, fed)


def test_a_host_that_launches_as_the_others_do_is_not_slow() -> None:
    """It takes a sixth longer throughout, as hosts do; the others wait for it between steps, or before one."""
    assert Case(USUAL * 1.17).slower() == UnmarkedCase(UNMARKED * 1.17).slower() == 0.0


@pytest.mark.parametrize("place", [0, 3])
def test_a_host_is_slower_by_what_takes_it_longer(place: int) -> None:
    """Its input, or something between two of its launches, takes 4 ms more."""
    own = USUAL.copy()
    own[place] += 4
    assert Case(own).slower() == pytest.approx(4.0)


@pytest.mark.parametrize("first", [0, 40])
def test_a_host_is_set_against_hosts_from_all_over_the_job(first: int) -> None:
    """Whatever ranks the slow ones of a node are: of 64, twelve."""
    own = USUAL.copy()
    own[0] += 4
    assert Case(own, 64, tuple(range(first, first + 12))).slower() == pytest.approx(4.0)


def test_ranks_of_which_nothing_else_is_known_are_no_others() -> None:
    """Collectives of a rank that is in no block are not taken for another's."""
    blocks, run = Case(USUAL * 1.17).blocks()
    table = {name: np.concatenate([column, column[-40:]]) for name, column in run.collectives.items()}
    table["rank"][-40:] = 7
    assert hosts_of(blocks, table).slower(2, np.arange(STEPS)) == 0.0


@pytest.mark.parametrize(("steps", "sure"), [(6, False), (STEPS, True)])
def test_some_steps_that_take_a_host_longer_are_not_enough(steps: int, sure: bool) -> None:
    """Its input takes twice the others', or anything: six such steps may be chance, forty are none."""
    blocks, run = Case(USUAL).blocks()
    blocks.parts["input"][2] = np.tile([0.4, 1.4, 2.2, 2.4, 3.2, 3.8], 7)[:STEPS] * MS
    found = hosts_of(blocks, run.collectives).slower(2, np.arange(steps))
    assert found is not None
    assert (found > 0) == sure


@pytest.mark.parametrize("torn", ["every second", "backwards"])
def test_marks_that_make_no_sense_cost_no_report(torn: str) -> None:
    """Half of a rank's steps are marked, or its clock runs backwards."""
    run = load(OURS / "fsdp-host-bound.tar.xz")
    steps = {name: column.copy() for name, column in run.steps.items()}
    first = steps["rank"] == 0
    if torn == "backwards":
        steps["start_ns"][first] = steps["start_ns"][first][::-1]
    else:
        kept = ~first | (steps["step"] % 2 == 0)
        steps = {name: column[kept] for name, column in steps.items()}
    assert judge(replace(run, steps=steps)).verdicts


@pytest.mark.parametrize("held", [True, False])
def test_what_a_host_needs_that_is_held_up_shows_where_it_is_not(held: bool) -> None:
    """The others, ahead, take as long between the same marks: from the start, or since their GPUs' queues are full."""
    own = USUAL.copy()
    own[1] += 20
    hosts = Case(own, at=1).hosts()
    for peer in (0, 1) if held else ():
        hosts.gaps(peer)[0][1, 1] = USUAL[1] * MS
    assert hosts.slower(2, np.arange(STEPS)) == pytest.approx(20 * MS if held else 0.0)


@pytest.mark.parametrize(("usual", "least", "own"), [(30.0, 20.0, 50.0), (3.0, 1.0, 5.0)])
def test_what_hosts_once_took_less_for_is_no_measure(usual: float, least: float, own: float) -> None:
    """By half as long again, or a twelfth of a step, launching may have become slower: for the slow one as well."""
    gaps = USUAL.copy()
    gaps[1] = own
    hosts = Case(gaps).hosts()
    for peer in (0, 1):
        hosts.gaps(peer)[0][:, 1] = usual * MS
        hosts.gaps(peer)[0][1, 1] = least * MS
    assert hosts.slower(2, np.arange(STEPS)) == 0.0


def test_stalls_are_judged_by_themselves() -> None:
    """A host that keeps a step waiting every now and then is slow in these steps, however it does in all others."""
    steps, late = np.arange(STEPS), np.full(STEPS, 0.5 * MS)
    late[3::7] = 90.0 * MS
    blocks, run = Case(USUAL).blocks()
    blocks.parts["input"][2, 3::7] += 90.0 * MS
    hosts = hosts_of(blocks, run.collectives)
    slower = [(part.tolist(), hosts.slower(2, part)) for part in launch_bound.alike_steps(steps, late)]
    stalls = [(part, found) for part, found in slower if 3 in part]
    assert stalls == [(list(range(3, STEPS, 7)), pytest.approx(90.0 * MS))]
    assert [found for part, found in slower if 3 not in part] == [0.0]


@pytest.mark.parametrize("often", [0, 4])
def test_steps_in_a_row_are_judged_together(often: int) -> None:
    """No stalls, or so few that they tell nothing of a host, are no steps by themselves."""
    late = np.full(STEPS, 5.0 * MS)
    late[: 9 * often : 9] = 90.0 * MS
    assert [part.tolist() for part in launch_bound.alike_steps(np.arange(STEPS), late)] == [
        [*range(20)],
        [*range(20, STEPS)],
    ]


def test_hosts_of_other_operations_are_no_measure() -> None:
    """A stage of a pipeline launches something else."""
    assert Case(USUAL * 1.17, operation="send").slower() is None
    assert UnmarkedCase(UNMARKED * 1.17, operation="send").slower() is None


def test_a_gpu_waits_for_its_host_where_nothing_waits_for_the_gpu() -> None:
    """Rank 2's operations run as they are enqueued; the others' a step later."""
    waits = launch_bound.waits_for_host(Case(USUAL).blocks()[0])
    assert waits is not None
    assert waits.mean(axis=1).tolist() == [0.0, 0.0, 1.0]


def test_a_gpu_waits_for_its_host_where_it_is_late_though_it_queues_in_most_of_the_step() -> None:
    """Two gathers of rank 2 run as they are enqueued, and the others wait in these; backward follows in a queue."""
    blocks, _ = Case(USUAL).blocks()
    place = np.arange(blocks.joined.columns) % OPERATIONS
    blocks.joined.start[2, place >= 2] += 30.0 * MS
    blocks.joined.duration = np.full(blocks.joined.start.shape, MS)
    blocks.joined.duration[:2, place < 2] += 5.0 * MS
    late_once = launch_bound.waits_for_host(blocks)
    blocks.overlapped, blocks.joined.gathers = True, place < 2
    late_where = launch_bound.waits_for_host(blocks)
    assert late_once is not None
    assert late_where is not None
    assert not late_once.any()
    assert late_where.mean(axis=1).tolist() == [0.0, 0.0, 1.0]


def test_a_clock_that_is_far_off_hides_no_wait() -> None:
    """Operations that wait for 20 ms, the shortest of them too, do wait."""
    waits = launch_bound.waits_for_host(Case(USUAL, waited=20.0).blocks()[0])
    assert waits is not None
    assert not waits.any()


RANKS = 4
MARKED_STEPS = 64


def _blocks(waited: Any, took: Any, forward: float, gpu: float) -> Any:
    """Kernels that waited [R, S] ms for their GPU, steps that took hosts [R, S] ms, of them ``forward`` to launch."""
    began = np.cumsum(took, axis=1) * MS - took * MS
    enqueue = began + forward * MS
    joined = SimpleNamespace(enqueue=enqueue, start=enqueue + waited * MS + 0.7 * MS, gpu_time=True)
    return SimpleNamespace(
        joined=joined,
        starts=np.arange(MARKED_STEPS),
        took=took * MS,
        ended=began + took * MS,
        parts={"gpu_forward": np.full(took.shape, gpu * MS)},
        step_ns=20 * MS,
    )


def _same(value: float) -> Any:
    return np.full((RANKS, MARKED_STEPS), value)


@pytest.mark.parametrize(
    ("waited", "forward", "gpu", "fed"),
    [(0.0, 5.0, 5.0, True), (0.0, 3.0, 8.0, False), (30.0, 12.0, 8.0, False)],
)
def test_a_gpu_as_slow_as_its_host_is_launch_bound(waited: float, forward: float, gpu: float, fed: bool) -> None:
    """Not where forward takes the GPU longer, and not where what it runs was launched long before."""
    found = launch_bound.launch_bound_steps(_blocks(_same(waited), _same(20.0), forward, gpu))
    assert found is not None
    assert found.all() == fed
    assert found.any() == fed


def test_one_rank_alone_gets_the_same_report_as_among_all() -> None:
    """Of a rank nothing but its own launches is looked at; one whose launches were not recorded is not known."""
    waited = _same(0.0)
    waited[2, ::2] = 30.0
    blocks = _blocks(waited, _same(20.0), 5.0, 5.0)
    blocks.joined.enqueue[3] = np.nan
    every = launch_bound.launch_bound_steps(blocks)
    assert every is not None
    for row in range(RANKS - 1):
        np.testing.assert_array_equal(launch_bound.launch_bound_steps(blocks, slice(row, row + 1)), every[row][None])
    assert not every[3].any()
    assert launch_bound.launch_bound_steps(blocks, slice(3, 4)) is None


#: Of a job's own marks: what a healthy GPU takes for forward and the optimizer before it, and from forward on to the
#: step's first collective; steps of 33 ms.
FORWARD = 8.0
OPTIMIZER = 3.0
THEN = 1.0
STEP = 33.0


def _marked(behind: Any, host: Any, longer: Any) -> Any:
    """Steps of ranks whose GPUs are ``behind`` [R, S] ms when the host is ready, whose hosts take ``host`` [R, S] ms to
    launch forward, and that compute ``longer`` [R, S] ms; every 16th step's forward is timed. Of a GPU that has caught
    up forward ends with its launching."""
    ready = np.arange(MARKED_STEPS)[None, :] * STEP * MS + np.zeros((RANKS, 1))
    done = ready + (behind - OPTIMIZER) * MS
    began = np.maximum(ready, ready + behind * MS)
    ended = np.maximum(began + (FORWARD + longer) * MS, ready + host * MS)
    took = np.full((RANKS, MARKED_STEPS), (STEP - 1) * MS)
    starts = np.stack([ended + THEN * MS, np.roll(done, -1, axis=1) - MS], axis=2).reshape(RANKS, -1)
    starts[:, -1] = starts[:, -2] + 20 * MS
    gpu = np.full((RANKS, MARKED_STEPS), np.nan)
    gpu[:, ::16] = (ended - began)[:, ::16]
    joined = SimpleNamespace(
        enqueue=np.full(starts.shape, np.nan),
        start=starts,
        duration=np.full(starts.shape, MS),
        gpu_time=True,
        columns=2 * MARKED_STEPS,
    )
    parts = {"forward": host * MS, "backward": took - host * MS, "gpu_forward": gpu}
    return Marked(
        joined,
        2 * np.arange(MARKED_STEPS),
        np.arange(MARKED_STEPS),
        np.arange(RANKS),
        took,
        ready + took,
        parts,
        STEP * MS,
    )


@dataclass(frozen=True)
class Marked:
    """What of a job's blocks is looked at."""

    joined: Any
    starts: Any
    steps: Any
    ranks: Any
    took: Any
    ended: Any
    parts: dict[str, Any]
    step_ns: float


def _late_from_20_to_40(longer: float, otherwise: float = 0.0) -> Any:
    found = _same(otherwise)
    found[1, 20:40] = longer
    return found


def test_a_gpu_that_follows_its_host_shows_in_the_host_s_marks() -> None:
    """Without times of launches: rank 1 launches forward in 14 ms on an idle GPU, of the others work is queued."""
    behind, host = _late_from_20_to_40(-2.0, 30.0), _late_from_20_to_40(14.0, 8.0)
    blocks = _marked(behind, host, _same(0.0))
    found = launch_bound.launch_bound_steps(blocks)
    assert found is not None
    assert np.argwhere(found).tolist() == [[1, 32]]  # the step of these that was timed
    late = np.arange(20, 40)
    assert launch_bound.idled(blocks, 1, late) == pytest.approx(MS * (14.0 + 2.0 - FORWARD + OPTIMIZER - OPTIMIZER))
    assert launch_bound.idled(blocks, 0, late) <= 0


def test_a_gpu_that_computes_longer_with_work_queued_does_not_follow_its_host() -> None:
    """A full queue makes its host wait, too, so that launching takes as long as computing."""
    blocks = _marked(_same(30.0), _late_from_20_to_40(16.0, 8.0), _late_from_20_to_40(8.0))
    found = launch_bound.launch_bound_steps(blocks)
    assert found is not None
    assert not found.any()
    assert launch_bound.idled(blocks, 1, np.arange(20, 40)) == 0


#: Steps between those that were timed.
STALLS = np.array([23, 30, 37])


def test_forward_of_untimed_steps_is_known_of_a_gpu_that_never_runs_dry() -> None:
    """Stalls between the timed steps are of computing where the GPU had work queued all along."""
    longer = _same(0.0)
    longer[1, STALLS] = 32.0
    blocks = launch_bound.timed(_marked(_same(30.0), _same(8.0), longer), 1, STALLS)
    np.testing.assert_allclose(blocks.parts["gpu_forward"][1, STALLS], (FORWARD + 32.0) * MS)
    np.testing.assert_allclose(blocks.parts["gpu_forward"][0, STALLS], FORWARD * MS)


@pytest.mark.parametrize("behind", [-2.0, 5.0])
def test_forward_of_untimed_steps_is_unknown_of_a_gpu_that_may_have_idled(behind: float) -> None:
    """It had nothing queued, or less than its host needed to launch the rest."""
    host = _same(8.0)
    host[1, STALLS] = 40.0
    blocks = launch_bound.timed(_marked(_same(behind), host, _same(0.0)), 1, STALLS)
    assert np.isnan(blocks.parts["gpu_forward"][1, STALLS]).all()


@pytest.mark.parametrize(("longer", "known"), [(9.0, True), (3.0, False)])
def test_longer_copies_may_be_what_a_gpu_that_never_runs_dry_takes_longer(longer: float, known: bool) -> None:
    """Copies of half a millisecond were timed where forward was: no link makes them 18 times as long, but 6 times."""
    more = _same(0.0)
    more[1, STALLS] = longer
    blocks = _marked(_same(30.0), _same(8.0), more)
    blocks.parts["h2d"] = np.where(np.isnan(blocks.parts["gpu_forward"]), np.nan, 0.5 * MS)
    forward = launch_bound.timed(blocks, 1, STALLS).parts["gpu_forward"][1, STALLS]
    assert (~np.isnan(forward)).all() == known


def test_copies_that_were_timed_are_no_forward() -> None:
    """Every step's copy is known, and what it is longer by is not the forward's."""
    more = _same(0.0)
    more[1, STALLS] = 32.0
    blocks = _marked(_same(60.0), _same(8.0), more)
    blocks.parts["h2d"] = more * MS
    forward = launch_bound.timed(blocks, 1, STALLS).parts["gpu_forward"][1, STALLS]
    np.testing.assert_allclose(forward, FORWARD * MS)


def test_a_kernel_that_waits_for_a_part_of_a_step_was_queued() -> None:
    """Within a twentieth of a step of the shortest wait it ran as it was launched; beyond, others ran before it."""
    waited = np.array([[0.5, 1.4, 1.6, 3.9]]) * MS
    blocks: Any = SimpleNamespace(step_ns=20 * MS)
    assert launch_bound.caught_up(waited, blocks).tolist() == [[True, True, False, False]]


UNMARKED_STEPS = 60
#: What a host takes to the first operation of a step, its input among it, and on to each of the others.
UNMARKED = np.array([8.0, 1, 1, 1, 1, 1])


@dataclass
class UnmarkedCase:
    """Rank 2's GPU waits for its host, which takes ``own`` ms; the others are ahead, and wait ``at`` an operation in
    all but their first steps."""

    own: Any
    at: int = 0
    delay: float = 9.0
    operation: str = "all_reduce"
    usual: Any = field(default_factory=UNMARKED.copy)

    def blocks(self) -> Any:
        """As much of blocks as is looked at, and the run."""
        step = float(np.sum(self.own))
        waiting = self.usual.copy()
        waiting[self.at] += step - self.usual.sum()
        took = np.stack(
            [np.repeat([self.usual, waiting], [5, UNMARKED_STEPS - 5], axis=0)] * 2
            + [np.tile(self.own, (UNMARKED_STEPS, 1))]
        )
        enqueue = np.cumsum(took.reshape(3, -1), axis=1) * MS
        waited = np.full(enqueue.shape, 30.0)
        waited[2], waited[:, 0] = 0.2, 0.1
        does = ["all_reduce", "all_reduce", self.operation]
        return launched(enqueue, waited, UNMARKED_STEPS, step, [0.0, 0.0, self.delay], does)

    def slower(self) -> float | None:
        """By how many ms rank 2's host is reported to be slower."""
        blocks, run = self.blocks()
        hosts = launch_bound.Hosts(run.collectives, blocks)
        found = launch_bound.slower_in_fastest(hosts, 2, np.ones(UNMARKED_STEPS, bool))
        return found / MS if found is not None else None


@pytest.mark.parametrize("waiting", [0, 3])
@pytest.mark.parametrize("place", [0, 3])
def test_a_host_is_slower_by_what_takes_it_longer_than_it_need(place: int, waiting: int) -> None:
    """Its input, or something between two of its launches, takes 5 ms more; so it does the others, who wait for it."""
    own = UNMARKED.copy()
    own[place] += 5
    assert UnmarkedCase(own, waiting).slower() == pytest.approx(5.0)


def test_launching_that_is_slower_throughout_names_no_rank() -> None:
    """Two thirds more at each operation, as hosts of one job differ by for tens of steps."""
    own = UNMARKED.copy()
    own[1:] *= 1.67
    assert UnmarkedCase(own).slower() == 0.0


def test_what_is_before_the_first_operation_is_one_launch_among_many_where_it_takes_little() -> None:
    """Gathered parameters: the way from one step to the next is a launch like others, and differs as these do."""
    usual = UNMARKED.copy()
    usual[0] = 1.0
    own = usual.copy()
    own[0] = 1.67
    assert UnmarkedCase(own, usual=usual).slower() == 0.0


@pytest.mark.parametrize(("unsure", "reported"), [(0.0, False), (0.05, False), (9.0, True)])
def test_an_unexplained_lead_clears_no_rank(unsure: float, reported: bool) -> None:
    """9 ms of a step of 13 may be a slow host or the others' lead: the report says that this is unknown."""
    blocks = UnmarkedCase(UNMARKED).blocks()[0]
    blocks.unsure = np.array([0.0, 0.0, unsure * MS])
    verdict = hosts_unmarked(blocks, DEFAULT)
    assert (verdict is not None) == reported
    if verdict is not None:
        assert verdict.kind == "insufficient_data"
        assert verdict.evidence[0].startswith("rank 2 arrives 9.0 ms late per step; its GPU waits for its CPU")
