"""Delays where collectives overlap with computing, and whether they do."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import table
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, Run
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.timeline.overlap import ahead_of_host, at_most_by_others, is_overlapped, overlapped_delay

from tests.judge.buckets import BUCKETS, RANKS, STEPS, run, with_cost
from tests.runs import blocks_of, call, made, rows_of

ROWS = 4
COLUMNS = 60
PLACES = 8
MS = 1e6


def _found(late: Any, queued: Any = ()) -> bool:
    """The finding on a job with this delay [R, S, P]; at ``queued`` places of a step collectives queue."""
    late = late.reshape(ROWS, -1)
    own = np.full_like(late, MS)
    for place in queued:
        own[:, place::PLACES] = 0.0
        late[:, place::PLACES] = 0.0
    start = np.tile(np.arange(COLUMNS * PLACES) * 2 * MS, (ROWS, 1))
    return _overlapped(_joined(start, 5 * MS - late), own, PLACES)


def _joined(start: Any, duration: Any, enqueue: Any = np.nan, *, gathers: bool = True) -> Any:
    """Collectives of one group's GPUs, all of them gathers or none."""
    ranks, columns = start.shape
    return SimpleNamespace(
        ranks=np.arange(ranks),
        enqueue=np.broadcast_to(enqueue, start.shape),
        gpu_time=True,
        group=np.zeros((ranks, 1), np.int64),
        gathers=np.full(columns, gathers),
        columns=columns,
        start=start,
        duration=duration,
    )


def _overlapped(joined: Any, own: Any, places: int) -> bool:
    columns = np.arange(joined.columns)
    return is_overlapped(joined, own, columns // places, columns[::places], None)


def _noise(seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(0, 0.05 * MS, (ROWS, COLUMNS, PLACES))


@pytest.mark.parametrize("queued", [(), (1, 3)])
def test_a_delay_that_goes_on_is_overlapped_with_computing(queued: tuple[int, ...]) -> None:
    """Each segment adds to how late a rank is; what queues behind another collective does not show it."""
    assert _found(np.cumsum(_noise(), axis=2), queued)


def test_a_delay_that_starts_anew_is_not() -> None:
    """All ranks leave each collective together, and what a rank is late by at the next is that segment's alone."""
    assert not _found(_noise())


def test_a_rank_that_stalls_is_late_everywhere_in_that_step_and_still_starts_anew() -> None:
    """What a stalled step has at all its places goes from none to the next."""
    late = _noise()
    late[2, ::6] += MS * np.tile([0.3, 1.7], PLACES // 2)
    assert not _found(late)


def test_steps_of_one_gather_each_tell_nothing() -> None:
    """There is no place between two collectives of one step."""
    block = np.full((ROWS, COLUMNS), MS)
    assert not _overlapped(_joined(block * np.arange(COLUMNS), block), block, 1)


def _waited(meanwhile: float, ahead: float, stall: float = 0.0) -> bool:
    """What is found where so large a part of a wait is missing from what is computed after it, and each kernel was
    launched ``ahead`` ns before it began; once all wait for one that stalls for ``stall`` ns."""
    waited = np.random.default_rng(3).exponential(0.3 * MS, (ROWS, COLUMNS * PLACES))
    waited[np.arange(COLUMNS * PLACES) % ROWS, np.arange(COLUMNS * PLACES)] = 0.0  # the rank that comes last
    waited[1:, COLUMNS] += stall
    gap = MS - meanwhile * np.minimum(waited, 0.9 * MS)
    duration = 0.3 * MS + waited
    start = np.cumsum(duration + gap, axis=1) - duration - gap
    columns = np.arange(COLUMNS * PLACES)
    lead = np.minimum(columns * MS, ahead)  # no host is ahead from the first launch on
    return _overlapped(_joined(start, duration, start - lead), np.full_like(start, MS), PLACES)


@pytest.mark.parametrize(("meanwhile", "beside"), [(0.0, False), (0.1, False), (0.6, True), (1.0, True)])
@pytest.mark.parametrize("stall", [0.0, 1000.0], ids=["none stalls", "all waited once for one that stalled"])
def test_ranks_that_compute_while_they_wait_have_the_less_to_compute_after_that(
    meanwhile: float, beside: bool, stall: float
) -> None:
    """However long each is ahead: where collectives block nothing of a wait is missing from what follows."""
    assert _waited(meanwhile, 40 * MS, stall * MS) == beside


def test_what_hosts_catch_up_with_while_their_gpus_wait_is_no_computing() -> None:
    """Kernels that begin as they are launched follow their hosts."""
    assert not _waited(1.0, 0.1 * MS)


def test_who_has_more_to_do_waits_less_and_computes_longer_whether_or_not_gathers_block(tmp_path: Path) -> None:
    """A slow GPU among batches of uneven length, whose gathers block, once counted as overlapped."""
    fault = Fault("compute", (1,), 0.08, 50)
    job = simulate(Scenario(4, 100, 2, "fsdp", step_ms=100, varying_lengths=0.05, faults=(fault,)))
    write(job.run, tmp_path / "run", "traces")
    (verdict,) = (one for one in judge(load(tmp_path / "run")).verdicts if one.ranks)
    assert (verdict.ranks, verdict.cause) == ((1,), "compute")
    saved = (job.truth.total_ns - job.truth.repaired_ns) / 1e6 / len(job.truth.active[0])
    assert verdict.cost_ms_per_step == pytest.approx(saved, rel=0.2)


LAYERS = 6


def _sharded(copy: float, longer: float) -> tuple[Run, float]:
    """Hosts gather a layer in forward when the one before the last has computed; and the length in ns.

    Rank 1 begins each step so many ms late, or computes so much ``longer`` in forward. For 20 steps its input takes a
    little longer.
    """
    noise, late = np.random.default_rng(3).normal(1.0, 0.005, (STEPS, 2 * LAYERS, ROWS)), np.arange(ROWS) == 1
    over, computed, calls, began = np.zeros(ROWS), np.zeros(ROWS), [], []
    for step in range(STEPS):
        began.append(over + 0.2 * MS)
        over = computed = over + 2 * MS
        done = [computed + copy * MS * late] * 2
        for layer in range(LAYERS):
            start = np.maximum(over, done[-2] if layer else over)
            over = np.full(ROWS, start.max() + 0.5 * MS)
            calls.append(("all_gather", start, start, over))
            done.append(np.maximum(done[-1], over) + 3 * MS * noise[step, layer] * (1 + longer * late))
        computed = done[-1]
        for layer in range(LAYERS):
            launched = start = over if layer else np.maximum(over, done[-2])
            over = np.full(ROWS, start.max() + 0.5 * MS)
            calls.append(("all_gather", launched, start, over))
            start = computed = np.maximum(computed, over) + 6 * MS * noise[step, LAYERS + layer]
            over = np.full(ROWS, start.max() + 0.5 * MS)
            calls.append(("reduce_scatter", launched + 0.02 * MS, start, over))
        computed = over
    kinds, launched, start, stop = (np.array(one) for one in zip(*calls, strict=True))
    at, rank = (axis.ravel() for axis in np.indices(start.shape))
    collectives = table(
        "collectives",
        rank=rank,
        comm=7,
        seq=at,
        step=at // (3 * LAYERS),
        op=kinds[at],
        start_ns=(start.ravel() + 1e9).astype(np.int64),
        duration_ns=(stop - start).ravel().astype(np.int64),
        enqueue_ns=(launched.ravel() + 1e9 - 0.05 * MS).astype(np.int64),
        bytes=1 << 20 | at % (3 * LAYERS) << 4,
        flags=GPU_TIME,
    )
    starts = np.array(began).T / MS
    took = np.diff(starts, axis=1, append=starts[:, -1:] + 60) - 0.2
    own = 0.5 + 0.9 * (late[:, None] & (np.arange(STEPS) // 20 == 3))
    steps = rows_of("steps", start_ns=starts + 1000, duration_ns=took, input_ns=own)
    return made(ROWS, steps=[steps], collectives=[collectives], source="a trace"), float(over[0])


@pytest.mark.parametrize(("copy", "longer"), [(2.0, 0.0), (0.0, 0.7)])
def test_a_wait_in_a_gather_costs_only_what_the_others_do_not_compute_meanwhile(copy: float, longer: float) -> None:
    """A rank that is 2 ms late once is that late for each layer's gather; the layers hide all but the last."""
    (job, took), (_, calm) = _sharded(copy, longer), _sharded(0.0, 0.0)
    (verdict,) = judge(job).verdicts
    assert verdict.ranks == (1,)
    assert verdict.cost_ms_per_step == pytest.approx((took - calm) / STEPS / MS, rel=0.2)


@pytest.mark.parametrize("waits", [False, True])
def test_hosts_wait_for_each_collective_if_they_launch_the_next_as_long_after_it_however_long_it_took(
    waits: bool,
) -> None:
    """Hosts that are ahead may launch it later than the one before was over, too, though they wait for none."""
    noise = np.random.default_rng(1)
    begins = 100 * MS * np.arange(STEPS) + noise.uniform(0, 25 * MS, (RANKS, STEPS))
    first = begins + noise.normal(30 * MS, MS, begins.shape)
    over = np.broadcast_to(first.max(axis=0) + MS, first.shape)
    second = (over if waits else first) + noise.normal(30 * MS, MS, first.shape)
    start = np.stack([first, second], axis=2).reshape(RANKS, -1)
    stop = np.stack([over, np.broadcast_to(second.max(axis=0) + MS, second.shape)], axis=2).reshape(RANKS, -1)
    own = start - np.pad(stop, ((0, 0), (1, 0)))[:, :-1]
    assert _overlapped(_joined(start, stop - start, start, gathers=False), own, 2) is not waits


def _waits_for_each(places: int, slow: float, transfer: float) -> Run:
    """Two ranks whose hosts launch each of a step's collectives as they come to it, in ms; rank 1 is slow."""
    noise, now, calls, begins = np.random.default_rng(1), np.zeros(2), [], []
    for number in range(60 * places):
        begins += [now] if number % places == 0 else []
        came = now + (8.0 * np.exp(noise.normal(0.0, 0.005, 2)) + np.array([0.0, slow])) / places
        now = np.full(2, came.max() + transfer / places)
        one = call("all_reduce", number, came, now)
        calls.append(one | {"enqueue_ns": one["start_ns"] - 20_000, "step": np.full(2, number // places)})
    marks = np.diff(np.array([*begins, now]), axis=0).T
    steps = rows_of("steps", start_ns=np.array(begins).T + 10.0, duration_ns=marks)
    return made(2, steps=[steps], collectives=calls)


def test_transfers_of_the_only_collective_of_a_step_are_not_hidden() -> None:
    """Hosts that launch it as they come to it wait for it."""
    bound = judge(_waits_for_each(1, 0.0, 10.0)).job.bound
    assert bound is not None
    assert bound.by == "communication"


def test_who_is_always_last_of_two_costs_all_of_its_delay_where_hosts_wait_for_each_collective() -> None:
    """It never waits, so its own waits do not tell; those of the other do."""
    (verdict,) = judge(_waits_for_each(4, 3.0, 2.0)).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    assert verdict.cost_ms_per_step == pytest.approx(3.0, rel=0.1)


def test_one_host_that_is_not_ahead_shows_the_clocks_of_all_gpus() -> None:
    """Three hosts launch 3 ms early, always: no clock is off by that, since all GPUs leave each collective at once."""
    columns = np.arange(200)
    launched = np.tile(columns * 20 * MS, (ROWS, 1)) + MS
    arrived = launched + np.array([[3.0], [3.0], [0.1], [3.0]]) * MS
    left = arrived.max(axis=0) + MS
    clocks = np.array([[0.5], [0.0], [0.0], [0.0]]) * MS
    joined = _joined(arrived + clocks, left - arrived, launched)
    assert ahead_of_host(joined)[:, 0] / MS == pytest.approx([0.6, 0.1, 0.1, 0.1], abs=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_clocks_compared_in_order_give_what_each_pair_does(seed: int) -> None:
    """Ties, and ranks of which nothing is known, included."""
    random = np.random.default_rng(seed)
    least = random.choice([*range(-5, 20), np.nan, np.inf], 40) * MS
    behind = random.choice([*range(-9, 9), np.nan], 40) * MS
    pairs = least + np.abs(behind[:, None] - behind)
    each = np.fmin(least, np.fmin.reduce(pairs, axis=1))
    np.testing.assert_array_equal(at_most_by_others(least, behind), each)


PLACES_SHOWN = 10


def _late(*faults: Fault) -> float:
    """Ns a step that rank 2 is late by from step 60 on."""
    blocks = blocks_of(simulate(Scenario(16, 120, seed=37, faults=faults)).run)
    return float(np.median(blocks.delay[2, blocks.steps >= 60]))


def test_what_made_a_rank_late_in_other_steps_adds_nothing_to_a_late_input() -> None:
    """A slow GPU becomes later from one collective to the next, but not in steps in which it is as fast as any."""
    late_input = Fault("input", (2,), 0.1, 60)
    assert _late(Fault("compute", (2,), 0.1, 20, 60), late_input) == pytest.approx(_late(late_input), rel=0.02)


def test_a_collective_that_few_steps_have_is_no_usual_place() -> None:
    """Two steps end with an evaluation's collective, for which one rank came late: in the others it is on time."""
    counts = np.full(COLUMNS, PLACES_SHOWN)
    counts[[20, 40]] += 1
    starts = np.append(0, np.cumsum(counts)[:-1])
    random = np.random.default_rng(4)
    duration = 0.3 * MS + random.normal(0, 0.01 * MS, (ROWS, counts.sum()))
    own = np.full_like(duration, MS)
    own[:, starts[1:] - 1] = 0.0  # the last of a step follows the one before at once
    extra = starts[[20, 40]] + PLACES_SHOWN
    own[:, extra] = 50 * MS
    duration[:3, extra] += 30 * MS
    found = overlapped_delay(peers_median(duration) - duration, own, starts)
    assert np.abs(np.median(found, axis=1)).max() < 0.1 * MS


def _anywhere(stalls: Any, step: int) -> None:
    stalls[2, step, np.random.default_rng(step).integers(0, BUCKETS)] += 9e6


def _all_along(stalls: Any, step: int) -> None:
    stalls[2, step] += 9e6 / BUCKETS


@pytest.mark.parametrize(("stall", "starts"), [(_anywhere, True), (_all_along, True), (_anywhere, False)])
def test_a_stall_in_backward_is_seen_wherever_it_is(stall: Callable[[Any, int], None], starts: bool) -> None:
    """Nine ms in every seventh step, now before this bucket and now before that, or a little before each."""
    stalls = np.zeros((RANKS, STEPS, BUCKETS))
    for step in range(3, STEPS, 7):
        stall(stalls, step)
    job, cost = with_cost(stalls, starts=starts)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks) == ("intermittent", (2,))
    assert verdict.cost_ms_per_step == pytest.approx(cost, rel=0.1)


def test_stalls_of_all_ranks_in_turn_name_no_rank() -> None:
    """As many and as long, each of another rank."""
    stalls = np.zeros((RANKS, STEPS, BUCKETS))
    for number, step in enumerate(range(3, STEPS, 5)):
        stalls[number % RANKS, step, number % BUCKETS] += 9e6
    assert [verdict.ranks for verdict in judge(run(stalls)[0]).verdicts if verdict.ranks] == []


def test_a_slow_rank_is_not_later_for_having_stalled_nowhere() -> None:
    """One that computes longer before each bucket in all steps is its own usual."""
    stalls = np.zeros((RANKS, STEPS, BUCKETS))
    stalls[1, :, 0] += 2e6
    job, cost = with_cost(stalls)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    assert verdict.cost_ms_per_step == pytest.approx(cost, rel=0.1)


def test_small_stalls_of_others_do_not_hide_large_ones() -> None:
    """Seven of 19 ms are one rank's; two ranks that stalled once for 5 ms had no equal."""
    stalls = np.zeros((RANKS, 47, BUCKETS))
    stalls[2, 2::7, 3] += 19e6
    stalls[1, 5, 4] += 5e6
    stalls[3, 11, 6] += 5e6
    (verdict,) = judge(run(stalls, starts=False)[0]).verdicts
    assert (verdict.kind, verdict.ranks) == ("intermittent", (2,))
