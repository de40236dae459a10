"""What a fault costs among ranks whose work differs from step to step."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.detect import uneven
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.settings import DEFAULT
from hindmost_judge.whatif.hidden_delay import shown, work_delay_of

from tests.runs import blocks_of


def _uncounted(run: Run) -> Run:
    return replace(run, steps=run.steps | {"work": np.zeros_like(run.steps["work"])})


def _cost_over_truth(job: Scenario, counted: bool = True) -> float:
    """What the verdict says that a repair saves in the steps in which the fault acts, over what it does save."""
    simulated = simulate(job)
    run = simulated.run if counted else _uncounted(simulated.run)
    (verdict,) = [one for one in judge(run).verdicts if one.kind == "straggler"]
    assert verdict.ranks == job.faults[0].ranks
    truth = simulated.truth
    return (verdict.cost_ms_per_step or 0.0) * 1e6 * len(truth.active[0]) / (truth.total_ns - truth.repaired_ns)


@pytest.mark.parametrize(
    ("fault", "ranks", "seeds"),
    [
        (Fault("input", (3,), 0.2), 16, (1, 2)),
        (Fault("gc", (3,), 0.3), 64, (1, 2)),
        # By its time alone its work became more: work comes and goes, and a slow GPU stays.
        (Fault("compute", (3,), 0.25, onset=60), 4, (1,)),
        (Fault("compute", (3,), 0.25, onset=60), 16, (1, 2, 4)),
    ],
)
def test_where_work_is_not_counted_the_gpus_time_stands_for_it(
    fault: Fault, ranks: int, seeds: tuple[int, ...]
) -> None:
    """It tells how late longer batches make others, though not whether a GPU is slow or has more to do."""
    jobs = [Scenario(ranks, 130, seed, varying_lengths=0.18, faults=(fault,)) for seed in seeds]
    assert [_cost_over_truth(job, counted=False) for job in jobs] == pytest.approx([1.0] * len(jobs), abs=0.2)


@pytest.mark.parametrize("counted", [True, False])
def test_uneven_work_costs_what_work_of_one_size_would_save(counted: bool) -> None:
    """All that a long batch adds to the step, and not what shows before the first gradients."""
    job = Scenario(16, 130, 1, varying_lengths=0.18)
    run = simulate(job)
    (verdict,) = judge(run.run if counted else _uncounted(run.run)).verdicts
    saved = (run.truth.total_ns - simulate(replace(job, varying_lengths=0.0)).truth.total_ns) / 1e6 / job.steps
    assert verdict.kind == "uneven_workload"
    assert verdict.cost_ms_per_step == pytest.approx(saved, rel=0.25)


@pytest.mark.parametrize(
    "job",
    [
        Scenario(16, 107, 111_010, "fsdp", stretches=3, varying_lengths=0.13, faults=(Fault("h2d", (6,), 0.14, 31),)),
        Scenario(8, 119, 5110163, "fsdp", stretches=3, varying_lengths=0.13, faults=(Fault("h2d", (1,), 0.14),)),
        Scenario(8, 136, 5110025, "fsdp", stretches=3, varying_lengths=0.07, faults=(Fault("compute", (1,), 0.16),)),
    ],
)
def test_uneven_work_does_not_make_collectives_overlapped(job: Scenario) -> None:
    """A rank with a long batch is late for every gather of the step, though each waits for it anew."""
    found = blocks_of(simulate(job).run)
    assert not found.overlapped
    assert _cost_over_truth(job) == pytest.approx(1.0, abs=0.2)


def test_steps_in_which_all_have_more_to_do_tell_what_work_makes_due() -> None:
    """The longest batch is less beyond the typical one where that is long: steps would seem to grow by a fifth less."""
    job = Scenario(16, 125, 8110067, stretches=4, step_ms=60, varying_lengths=0.139)
    found = blocks_of(simulate(job).run)
    due = uneven.in_full(found, DEFAULT).work_delay
    assert due is not None
    assert due.slope / 1e6 == pytest.approx(0.92 * job.step_ms, rel=0.1)  # the optimizer comes after the last gradients


@pytest.mark.parametrize("whole", np.linspace(0.4, 0.95, 7).tolist())
def test_what_a_whole_step_s_work_makes_due_is_known_to_a_hundredth_of_the_step(whole: float) -> None:
    """Ranks show three tenths of it before their first gradients; steps grow by all of it."""
    more = 0.15 * np.random.default_rng(5).standard_normal((8, 200))
    blocks: Any = SimpleNamespace(delay=30.0 * more, overlapped=True, step_ns=100.0)
    blocks.period = 80.0 + 100.0 * whole * more.max(axis=0)
    due = work_delay_of(blocks, more, np.zeros(200), DEFAULT)
    assert due is not None
    assert due.slope == pytest.approx(100.0 * whole, abs=1.0)


def test_a_long_batch_now_and_then_is_due_in_full_and_a_stall_is_not() -> None:
    """Six times the delay's changes from step to step is work; a stall of hundreds of times says little."""
    more = np.tile([0.01, -0.01], 60)
    more[5::20] = 0.13
    due = shown(10.0 * more[None], more[None], overlapped=True)
    assert due[0, 0] == pytest.approx(10.0)
    late = 10.0 * more
    late[25] += 100.0
    assert shown(late[None], more[None], overlapped=True)[0, 0] == pytest.approx(10.0, rel=0.1)


def test_of_each_ranks_work_counts_what_shows_at_its_place_of_the_step() -> None:
    """Late in its input a rank is seen before its backward, and the others at its end: there more of a batch shows."""
    job = Scenario(16, 141, 5110110, stretches=3, varying_lengths=0.087, faults=(Fault("input", (2,), 0.13),))
    found = blocks_of(simulate(job).run)
    assert found.work is not None
    share = shown(found.delay, uneven.more_work(found.work), overlapped=True)[:, 0] / 1e6 / job.step_ms
    assert share[2] == pytest.approx(0.51, abs=0.05)
    assert float(np.median(np.delete(share, 2))) > 0.57


@pytest.mark.parametrize(
    ("seed", "since", "from_the_start"),
    [
        (1, Fault("compute", (1,), 0.15, onset=60), Fault("compute", (2,), 0.1)),
        (1, Fault("compute", (1,), 0.2, onset=60), Fault("compute", (0,), 0.15)),
        (2, Fault("compute", (1,), 0.2, onset=60), Fault("compute", (0,), 0.15)),
    ],
)
def test_gpus_that_become_slow_are_no_work_of_uneven_size(seed: int, since: Fault, from_the_start: Fault) -> None:
    """Of four ranks they move what each is compared with, so that all seem to have more to do since, or less. Nothing
    of the delay is taken for work, and made longer to fit the steps."""
    simulated = simulate(Scenario(4, 120, seed, faults=(since, from_the_start)))
    run, truth = _uncounted(simulated.run), simulated.truth
    found = blocks_of(run)
    assert uneven.in_full(found, DEFAULT).work_delay is None
    assert not uneven.find(found, DEFAULT)
    (verdict,) = [one for one in judge(run).verdicts if one.ranks == (1,)]
    adds = (truth.repaired_each_ns[1] - truth.repaired_ns) / 1e6 / len(truth.active[0])
    assert verdict.cost_ms_per_step == pytest.approx(adds, rel=0.06)


@pytest.mark.parametrize(("ranks", "stages"), [(4, 2), (8, 4), (6, 2)])
def test_uneven_work_of_a_pipelines_replicas_is_reported(ranks: int, stages: int) -> None:
    """A rank is late against the replicas of its stage, by what it has more than these, even with two of them."""
    job = Scenario(ranks, 80, 7, "pp_dp", pipeline=stages, varying_lengths=0.15)
    (verdict,) = judge(simulate(job).run).verdicts
    assert (verdict.kind, verdict.ranks) == ("uneven_workload", ())
    alike = simulate(replace(job, varying_lengths=0.0)).truth.total_ns
    lost = (simulate(job).truth.total_ns - alike) / 1e6 / 80
    assert 0.25 * lost < (verdict.cost_ms_per_step or 0.0) <= lost  # stages of one replica are uneven among each other
