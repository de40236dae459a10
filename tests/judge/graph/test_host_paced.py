"""The lanes of a recorded job: which jobs have them, and what the report says of ranks that come last in these."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.graph.host_paced import by_work, usual_load
from hindmost_judge.judge import judge
from hindmost_judge.verdict import summary

from tests.recordings import OURS
from tests.runs import blocks_of


@pytest.mark.parametrize("name", ["ddp-observed-clean", "ddp-slow-forward-rank1", "fsdp-stalled-input-rank0"])
def test_jobs_whose_gpus_are_the_bottleneck_are_judged_by_delays(name: str) -> None:
    """Also if they gather parameters."""
    found = blocks_of(load(OURS / f"{name}.tar.xz"))
    assert by_work(found) is found


def test_a_rank_that_comes_last_and_is_not_named_gets_a_sentence() -> None:
    """It says what the rank's own work is longer by, and what that costs, as the table does."""
    built = blocks_of(load(OURS / "ddp-observed-late-hosts.tar.xz"))
    found = by_work(built)
    assert found.lanes is not None
    last = np.zeros(found.last.shape)
    last[2], wait = 1.0, np.full(found.wait.shape, found.step_ns)
    (reported,) = summary.last_rank_notes(replace(found, last=last, wait=wait), [])
    why = "only because its peers' CPUs launch kernels earlier: its work is no longer than theirs"
    assert reported == f"rank 2 is last in 100 % of collectives {why}"
    assert len(reported.split()) <= 25


def test_what_a_rank_makes_others_wait_is_what_its_work_costs() -> None:
    """No rank causes longer waits than it was waited for, and all together not more than the steps have."""
    report = judge(load(OURS / "ddp-observed-late-hosts.tar.xz"))
    caused = [row.caused_wait_ms or 0.0 for row in report.ranks]
    assert 0.0 <= sum(caused) < 0.5 * (report.job.step_ms["mean"] or 0.0)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("self_cpu", "its work is 2.0 ms longer"),
        ("self_runqueue", "it waits 2.0 ms longer for a CPU"),
        ("self_blocked", "it is off the CPU for 2.0 ms longer"),
    ],
)
def test_a_rank_that_comes_last_works_longer_only_if_its_cpu_time_says_so(part: str, said: str) -> None:
    """Ranks that share CPUs wait for each other: the last one may have the least work."""
    simulated = simulate(Scenario(ranks=3, steps=40)).run
    built = blocks_of(simulated)
    later = np.zeros(built.delay.shape)
    later[1] = 2e6
    parts = dict.fromkeys(("self_cpu", "self_runqueue", "self_blocked"), np.zeros(later.shape)) | {part: later}
    last, wait = (later > 0).astype(float), np.full(later.shape, built.step_ns)
    (note,) = summary.last_rank_notes(replace(built, delay=later, parts=parts, last=last, wait=wait), [])
    assert note == f"rank 1 is last in 100 % of collectives: {said}"


def test_clocks_that_jump_once_in_a_short_job_hide_no_slow_gpu() -> None:
    """From the middle of 40 steps on all clocks are 100 ms ahead: one step seems to last that much longer."""
    run = simulate(Scenario(ranks=16, steps=40, seed=5, faults=(Fault("gpu_throttle", (13,), 0.2),))).run
    middle = np.median(run.steps["start_ns"])
    tables = {}
    for name in ("steps", "collectives"):
        table = getattr(run, name)
        later = np.where(table["start_ns"] >= middle, 100_000_000, 0)
        tables[name] = table | {"start_ns": table["start_ns"] + later}
    (verdict,) = judge(replace(run, **tables)).verdicts
    assert (verdict.ranks, verdict.cause) == ((13,), "gpu_throttle")


@pytest.mark.parametrize("seed", range(5))
def test_what_loaders_usually_need_is_known_without_a_bias_to_those_that_are_waited_for(seed: int) -> None:
    """Sixteen loaders that vary by 12 %; at the pace of the slowest, all others' loads are hidden after some."""
    loads = 100.0 * (1.0 + 0.12 * np.random.default_rng(seed).standard_normal((16, 40)))
    ready, fetched = np.zeros((16, 40)), np.zeros((16, 40))
    asked = now = np.zeros(16)
    for batch in range(40):
        ready[:, batch] = now = now + loads[:, batch]
        fetched[:, batch] = np.maximum(now, asked)
        asked = np.full(16, fetched[:, batch].max())
    waits = fetched == ready
    usual, error, ranks = usual_load(fetched, waits, 0.12)
    assert usual == pytest.approx(100.0, abs=3 * error)
    assert (error < 3.0, ranks >= 14) == (True, True)
