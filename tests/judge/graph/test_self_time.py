"""Own work of hosts, and what it costs, from marks that hold waiting."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.detect import host_work
from hindmost_judge.graph import self_time
from hindmost_judge.types import Floats, Lanes, Timeline
from hindmost_judge.whatif import savings

from .timelines import MS, PHASES, run, work

INPUT, FORWARD, BACKWARD, OTHER = (PHASES.index(name) for name in ("input", "forward", "backward", "other"))
WAITS = {"step": (OTHER, 0), "before": (FORWARD, 1)}


@pytest.mark.parametrize("waits", WAITS)
def test_hosts_that_are_ahead_wait_where_no_mark_precedes_the_gpu(waits: str) -> None:
    """The place is found from the marks alone, wherever the program waits for its GPU."""
    own = work(4, 120)
    own[INPUT, 2] += 6.0
    found = self_time.build_lanes(run(own, 5.0, waits=waits)).wait
    assert found is not None
    assert (found.phase, found.lag) == WAITS[waits]


def test_hosts_that_are_steps_ahead_wait_at_the_limit_of_their_queue_also_if_they_seldom_reach_it() -> None:
    """One of two hosts gets five steps ahead, waits for a while, and is slowly caught up with."""
    own = work(2, 260)
    own[INPUT, 1, 20:120] += 3.0
    own[INPUT, 0, 120:] += 0.5
    found = self_time.build_lanes(run(own, 5.0, waits="before", lag=6))
    assert found.wait is not None
    assert (found.wait.phase, found.wait.lag) == (FORWARD, 6)
    (delay,) = host_work.find_delays(found, 0.8 * MS, 8 * MS)
    assert (delay.row, delay.phase) == (1, "input")


@pytest.mark.parametrize("waits", WAITS)
def test_hosts_wait_where_they_follow_their_gpus_at_once(waits: str) -> None:
    """Their clocks may be off by more than they are ahead: several places look as if they came after the GPU's end."""
    own = work(3, 150, noise=0.01) * np.array([0.05, 0.06, 3.6, 1.0, 0.0])[:, None, None]
    own[BACKWARD, 2] += 2.0
    found = self_time.build_lanes(replace(run(own, 5.0, waits=waits), clock=4.0 * MS)).wait
    assert found is not None
    assert (found.phase, found.lag) == WAITS[waits]


def test_the_wait_is_where_it_levels_times_and_not_where_clocks_are_aligned() -> None:
    """Clocks are aligned by the ends of steps, so these vary even less than the end of the wait before."""
    own = work(2, 120, noise=0.15)
    own[INPUT, 1] += 8.0
    own[PHASES.index("between")] = 0.2 + 0.1 * np.random.default_rng(1).random(own.shape[1:])
    found = run(own, 5.0, waits="step")
    off = (own[PHASES.index("between")] - 0.25) * MS
    found = replace(found, arrived=found.arrived + off, left=found.left + off)
    wait = self_time.build_lanes(found).wait
    assert wait is not None
    assert (wait.phase, wait.lag) == (OTHER, 0)


def test_hosts_pace_gpus_that_run_all_they_were_given_while_the_next_batch_is_fetched() -> None:
    """A GPU takes 4 ms longer for a backward than its host, and then has nothing to do for 15 ms."""
    timeline = run(work(4, 120), 14.0, waits="before")
    timeline = replace(timeline, arrived=timeline.arrived + 4.0 * MS, left=timeline.left + 4.0 * MS)
    assert self_time.paced_by_hosts(timeline, self_time.build_lanes(timeline))


@pytest.mark.parametrize(("queued_ms", "paced"), [(0.1, True), (3.0, False)])
def test_gpus_that_run_launches_late_set_the_pace_whatever_clocks_differ_by(queued_ms: float, paced: bool) -> None:
    """A full launch queue of a tenth of a step blocks hosts in all they do. Launches and kernels share one clock."""
    found = run(work(4, 120) * np.array([0.05, 2.0, 1.0, 1.0, 0.0])[:, None, None], 5.0, waits="before")
    assert found.enqueued is not None
    found = replace(found, enqueued=found.arrived - queued_ms * MS, clock=4.0 * MS)
    assert self_time.paced_by_hosts(found, self_time.build_lanes(found)) == paced


@pytest.mark.parametrize(("first_ms", "paced"), [(3.0, False), (0.5, True)])
def test_hosts_that_wait_for_a_place_in_their_queues_set_no_pace(first_ms: float, paced: bool) -> None:
    """GPUs idle while a batch is fetched. They run the step's last collective 3 ms late, and the first one as late."""
    found = run(work(4, 120), 14.0, waits="before")
    assert found.queued is not None
    found = replace(found, arrived=found.arrived + 3.0 * MS, left=found.left + 3.0 * MS)
    found = replace(found, queued=np.full_like(found.queued, first_ms * MS + 0.1 * MS))
    assert self_time.paced_by_hosts(found, self_time.build_lanes(found)) == paced


@pytest.mark.parametrize("waits", WAITS)
def test_own_work_is_what_hosts_did_without_their_waits(waits: str) -> None:
    """Three hosts are 6 ms a step ahead and wait for that: their work is known within 2 % all the same."""
    own = work(4, 120)
    own[INPUT, 2] += 6.0
    timeline = run(own, 5.0, waits=waits)
    found = self_time.build_lanes(timeline)
    assert (timeline.spent.sum(axis=0).mean(axis=1) / MS) == pytest.approx([45.0] * 4, rel=0.03)
    assert (found.host.sum(axis=0).mean(axis=1) / MS) == pytest.approx(own.sum(axis=0).mean(axis=1), rel=0.02)
    assert (found.least <= found.host + 1).all()
    assert (found.host <= found.most + 1).all()


def test_where_most_hosts_wait_in_all_steps_none_is_taken_to_work_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """All come as early in each step. So it is chance that one does not seem to wait."""
    own = work(4, 120)
    own[FORWARD, 2] += 10.0
    limits = iter([np.nan, np.inf])
    monkeypatch.setattr(self_time, "_limit", lambda *_: next(limits, np.nan))
    found = self_time.build_lanes(run(own, 5.0, waits="copy", launches=False)).host[FORWARD].mean(axis=1)
    assert found[1] == pytest.approx(found[0], rel=0.1)


#: A full launch queue: hosts differ by 1 %, so it takes the faster ones a dozen steps to get to it.
QUEUED = work(6, 120, noise=0.003) * np.array([0.005, 7.5, 2.0, 7.0, 0.0])[:, None, None]
QUEUED *= np.array([1.0, 1.02, 0.99, 1.0, 0.995, 1.005])[:, None]


@pytest.mark.parametrize(
    ("waits", "own", "longer", "gpu", "within"),
    [
        ("copy", work(4, 120), 10.0, 5.0, 0.04),  # the others never do a forward without waiting in its copy
        ("queue", QUEUED, 0.0, 20.0, 0.02),  # what they do after each wait is not all
        ("never", work(3, 160, noise=0.05), 0.0, 5.0, 0.005),  # no phase grows with how early they come to it
    ],
)
def test_work_is_known_of_hosts_that_are_always_ahead(
    waits: str, own: Floats, longer: float, gpu: float, within: float
) -> None:
    """One works longer from the start, or none: it is what they do without a wait."""
    own[FORWARD, 2] += longer
    found = self_time.build_lanes(run(own, gpu, waits=waits))
    assert found.ahead.mean() > 0.5
    assert (found.host.sum(axis=0).mean(axis=1) / MS) == pytest.approx(own.sum(axis=0).mean(axis=1), rel=within)


def test_hosts_that_wait_in_two_phases_work_in_them_as_those_that_do_not() -> None:
    """A full launch queue: three hosts wait for 8 ms a step, 3 of them in backward. No launch is recorded."""
    own = work(4, 120)
    own[INPUT, 2] += 8.0
    timeline = run(own, 5.0, waits="before", launches=False)
    moved = np.clip(timeline.spent[FORWARD] - own[FORWARD] * MS, 0.0, 3.0 * MS)
    spent = timeline.spent.copy()
    spent[FORWARD] -= moved
    spent[BACKWARD] += moved
    timeline = replace(timeline, spent=spent)
    found = self_time.build_lanes(timeline)
    assert self_time.paced_by_hosts(timeline, found)
    assert (found.host.sum(axis=0).mean(axis=1) / MS) == pytest.approx(own.sum(axis=0).mean(axis=1), rel=0.04)


def _unmarked(own: Floats, gpu: float, waits: str, since: int = 0) -> Timeline:
    """Rank 2 works 18 ms longer as a step begins, from some step on, and its marks do not say where."""
    slow = own.copy()
    slow[INPUT, 2, since:] += 18.0
    timeline = run(slow, gpu, waits=waits, launches=False)
    spent = timeline.spent.copy()
    spent[INPUT, 2, since:] -= 18.0 * MS
    spent[OTHER, 2, since:] += 18.0 * MS
    return replace(timeline, spent=spent)


def test_a_host_that_works_in_no_phase_before_its_launches_paces_its_gpu() -> None:
    """Its launches seem to wait as long."""
    timeline = _unmarked(work(4, 120), 5.0, "before")
    assert self_time.paced_by_hosts(timeline, self_time.build_lanes(timeline))


def test_what_a_host_works_in_no_phase_before_its_launches_is_no_wait() -> None:
    """All wait for their GPUs as a step ends."""
    timeline = _unmarked(work(4, 120), 5.0, "step", since=60)
    lanes = self_time.with_unmarked_work(timeline, self_time.build_lanes(timeline))
    (found,) = host_work.find_delays(lanes, 0.8 * MS, 8 * MS)
    assert (found.row, found.phase, found.first) == (2, "other", 60)
    assert found.delay == pytest.approx(18.0 * MS, rel=0.1)


def test_the_cost_of_work_in_no_phase_before_the_launch_is_that_of_a_later_launch() -> None:
    """GPUs run for 20 ms after a step's last launch, and no host works meanwhile: all of the 18 ms is lost."""
    own = work(4, 120)
    timeline = _unmarked(own, 20.0, "step")
    lanes = self_time.with_unmarked_work(timeline, self_time.build_lanes(timeline))
    assert _saved(lanes, 18.0) == pytest.approx(_longer(timeline, run(own, 20.0, waits="step")), rel=0.1)


def _saved(lanes: Lanes, ms: float) -> float:
    """Ns a step that the replay saves where rank 2 works so many ms less."""
    late = lanes.host.sum(axis=0) - lanes.peer_pace
    fixed = late.copy()
    fixed[2] -= ms * MS
    return float((savings.step_delay_of_lanes(lanes, late) - savings.step_delay_of_lanes(lanes, fixed)).mean())


def _longer(slow: Timeline, usual: Timeline) -> float:
    """Ns by which the steps of a job are longer than those of another."""
    return float(np.diff(slow.left[0]).mean() - np.diff(usual.left[0]).mean())


def test_a_host_that_ends_a_step_long_after_its_gpu_did_not_wait_for_it() -> None:
    """Its last phase takes 9 ms, its GPU is done after one: the others wait there, it does not."""
    own = work(4, 120)
    own[OTHER] *= 9.0
    own[FORWARD, 2] += 6.0
    found = self_time.build_lanes(run(own, 5.0, waits="step"))
    assert (found.host[OTHER, 2].mean() / MS) == pytest.approx(9.0, rel=0.02)


def test_a_host_that_takes_long_and_stays_ahead_waits() -> None:
    """In every eighth step it waits at the end of the step before, not where it does in all others."""
    own = work(4, 160)
    own[INPUT, 2] += 20.0
    timeline = run(own, 5.0, waits="before")
    began, spent = timeline.began.copy(), timeline.spent.copy()
    for step in range(8, 160, 8):
        moved = np.maximum(spent[FORWARD, :, step] - own[FORWARD, :, step] * MS, 0.0)
        spent[FORWARD, :, step] -= moved
        spent[OTHER, :, step - 1] += moved
        began[:, step] += moved
    found = self_time.build_lanes(replace(timeline, began=began, spent=spent))
    assert (found.host.sum(axis=0).mean(axis=1) / MS) == pytest.approx(own.sum(axis=0).mean(axis=1), rel=0.03)


@pytest.mark.parametrize("waits", WAITS)
def test_work_in_steps_that_a_host_did_not_log_is_within_its_bounds(waits: str) -> None:
    """One logs three of four steps; all work half as long again in the others, which its own steps do not show."""
    own = work(4, 120)
    own[INPUT, 2] += 6.0
    own[:, :, ::4] *= 1.5
    timeline = run(own, 5.0, waits=waits)
    spent = timeline.spent.copy()
    spent[:, 1, ::4] = np.nan
    timeline = replace(timeline, spent=spent)
    lanes = self_time.with_unmarked_work(timeline, self_time.build_lanes(timeline))
    assert (lanes.least <= lanes.host).all()
    assert (lanes.host <= lanes.most).all()
    assert lanes.host[:, 1, ::4].sum(axis=0).mean() / MS == pytest.approx(58.5, rel=0.1)


@pytest.mark.parametrize("waits", WAITS)
def test_the_replay_gives_the_steps_as_they_were_and_as_they_would_be(waits: str) -> None:
    """Replayed with all it takes the observed time; with the slow host at its peers' pace, what such a job takes."""
    own = work(4, 120)
    slow = own.copy()
    slow[INPUT, 2] += 6.0
    timeline = run(slow, 5.0, waits=waits)
    found = self_time.build_lanes(timeline)
    assert np.diff(savings.ends(found, found.host)).mean() == pytest.approx(np.diff(timeline.left[0]).mean(), rel=0.01)
    assert _saved(found, 6.0) == pytest.approx(_longer(timeline, run(own, 5.0, waits=waits)), rel=0.1)


@pytest.mark.parametrize(("gpu", "launches"), [(5.0, True), (5.0, False), (60.0, True)])
def test_hosts_pace_gpus_that_idle(gpu: float, launches: bool) -> None:
    """With and without the times of launches; GPUs that need 60 ms a step are paced by no host, however slow."""
    own = work(4, 120)
    own[INPUT, 2] += 6.0
    timeline = run(own, gpu, waits="before", launches=launches)
    assert self_time.paced_by_hosts(timeline, self_time.build_lanes(timeline)) == (gpu < 60.0)


@pytest.mark.parametrize("waits", WAITS)
def test_a_slow_host_is_found_with_its_phase_and_its_onset(waits: str) -> None:
    """Rank 1's forward takes 5 ms longer from step 60 on; no other rank changes."""
    own = work(4, 160, noise=0.05)
    own[FORWARD, 1, 60:] += 5.0
    (found,) = host_work.find_delays(self_time.build_lanes(run(own, 5.0, waits=waits)), 0.8 * MS, 8 * MS)
    assert (found.row, found.phase, found.stop) == (1, "forward", 160)
    assert abs(found.first - 60) <= 3
    assert found.delay == pytest.approx(5.0 * MS, rel=0.1)


#: Each of two hosts was slower for a while before: ms, for so many steps.
DRIFTED = {INPUT: ([5.0, 1.0, -5.0, 9.0], [34, 64, 50, 110])}


@pytest.mark.parametrize(
    ("waits", "hosts", "longer", "since", "until"),
    [
        ("step", 2, DRIFTED, 148, 258),
        ("before", 2, DRIFTED, 148, 258),
        ("step", 4, {FORWARD: ([0.0, 5.0], [60, 100]), BACKWARD: ([0.0, 1.5], [60, 100])}, 60, 160),  # for one cause
        ("step", 2, {FORWARD: ([0.0, 12.0, 0.0], [160, 30, 310])}, 160, 190),  # it ended
        ("step", 2, {INPUT: ([6.0, -3.0, 6.0], [199, 12, 49])}, 0, 260),  # a pause is no end
    ],
)
def test_a_slow_host_is_found_once(waits: str, hosts: int, longer: dict[int, Any], since: int, until: int) -> None:
    """By the phase that takes most of it, from its own step on."""
    steps = sum(longer[min(longer)][1])
    own = work(hosts, steps)
    for phase, (ms, lengths) in longer.items():
        own[phase, 1] += np.repeat(ms, lengths)
    (found,) = host_work.find_delays(self_time.build_lanes(run(own, 5.0, waits=waits)), 0.8 * MS, 8 * MS)
    assert (found.row, found.phase) == (1, PHASES[min(longer)])
    assert (found.first, found.stop) == (pytest.approx(since, abs=3), pytest.approx(until, abs=3))


@pytest.mark.parametrize(("faster", "level"), [(4.0, None), (1.0, 3.0)])
def test_a_host_is_slower_by_no_more_than_its_whole_step(faster: float, level: float | None) -> None:
    """What its forward takes longer and its backward less keeps no other host waiting."""
    own = work(2, 160, noise=0.05)
    own[FORWARD, 1] += 4.0
    own[BACKWARD, 1] -= faster
    found = host_work.find_delays(self_time.build_lanes(run(own, 5.0, waits="step")), 0.8 * MS, 8 * MS)
    assert [(one.row, one.delay / MS) for one in found] == ([(1, pytest.approx(level, rel=0.1))] if level else [])


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_a_slow_host_is_found_although_the_speeds_of_cores_drift_by_more(seed: int) -> None:
    """Each core is up to 40 % slower for tens of steps, in all phases; rank 0's input takes 6 ms longer since 150."""
    draws = np.random.default_rng(seed)
    own = work(2, 260, noise=0.05, seed=seed) * (1.0 + 0.4 * np.repeat(draws.random((2, 13)), 20, axis=1))
    own[INPUT, 0, 150:] += 6.0
    (found,) = host_work.find_delays(self_time.build_lanes(run(own, 5.0, waits="step")), 0.8 * MS, 8 * MS)
    assert (found.row, found.phase, found.first, found.stop) == (0, "input", pytest.approx(150, abs=3), 260)


@pytest.mark.parametrize(
    ("ranks", "steps", "seed", "longer", "drift"),
    [(2, 160, 0, 0.25, 0.0), (2, 500, 0, 0.3, 0.15), (8, 500, 1, 0.3, 0.15)],
)
def test_a_slow_core_is_one_slowdown(ranks: int, steps: int, seed: int, longer: float, drift: float) -> None:
    """One host takes longer for everything; each core may be up to 15 % slower for tens of steps."""
    own = work(ranks, steps, noise=0.05, seed=seed)
    own *= 1.0 + drift * np.repeat(np.random.default_rng(seed).random((ranks, steps // 20)), 20, axis=1)
    own[:, 1] *= 1.0 + longer
    (found,) = host_work.find_delays(self_time.build_lanes(run(own, 5.0, waits="step")), 0.8 * MS, 8 * MS)
    assert (found.row, found.delay / MS) == (1, pytest.approx(longer * 39.0, rel=0.2 if drift else 0.1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("waits", WAITS)
def test_no_rank_is_found_where_hosts_are_alike(waits: str, seed: int) -> None:
    """Two hosts with noise that goes on from step to step."""
    own = work(2, 200, seed=seed)
    drift = np.random.default_rng(seed).standard_normal((2, 200))
    for step in range(1, 200):
        drift[:, step] = 0.8 * drift[:, step - 1] + 0.6 * drift[:, step]
    own[INPUT] += drift
    assert host_work.find_delays(self_time.build_lanes(run(own, 5.0, waits=waits)), 0.8 * MS, 8 * MS) == []


def test_hosts_that_a_node_slows_together_are_slow_in_turn_with_those_of_another() -> None:
    """Another job takes CPUs of eight ranks for 20 steps, then of the other eight. No rank is at fault."""
    own = work(16, 150)
    for node, first in ((0, 10), (1, 90)):
        own[FORWARD, 8 * node : 8 * node + 8, first : first + 20] += 6.0
    lanes = self_time.build_lanes(run(own, 5.0, waits="step"))
    assert host_work.find_delays(lanes, 0.8 * MS, 8 * MS) == []
    own[FORWARD, 12, 60:] += 6.0
    (found,) = host_work.find_delays(self_time.build_lanes(run(own, 5.0, waits="step")), 0.8 * MS, 8 * MS)
    assert (found.row, found.first) == (12, 60)
