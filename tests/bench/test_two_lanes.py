"""The second simulator's physics: which lane sets the pace, who waits where, and what a fault costs."""

from dataclasses import replace
from typing import Any

import pytest
from two_lanes import families, machine, programs, simulate
from two_lanes.job import Fault, Job, Noise
from two_lanes.noise import draw

QUIET = Noise((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), tail=0.0)


def simulated(*faults: tuple[Any, ...], **changes: Any) -> Any:
    """The truth of a job of four ranks without noise."""
    settings = {"ranks": 4, "steps": 30, "noise": QUIET, "written": "run"} | changes
    return simulate(Job(1, **settings, faults=tuple(Fault(*fault) for fault in faults)))


@pytest.mark.parametrize("synchronises", ["never", "step", "copy"])
def test_the_slower_lane_sets_the_pace(synchronises: str) -> None:
    """A step takes what its slower lane takes, and no more than both together."""
    for host, gpu in ((40.0, 20.0), (10.0, 50.0)):
        step = simulated(host=host, gpu=gpu, load=1.0, synchronises=synchronises).truth.total / 30
        assert max(host, gpu) <= step <= host + gpu + 8


@pytest.mark.parametrize(("host", "saved"), [(40.0, 5.0), (10.0, 0.0)])
def test_a_slow_host_costs_what_no_gpu_hides(host: float, saved: float) -> None:
    """5 ms more on one host: all of it where hosts set the pace, nothing where GPUs have work queued."""
    truth = simulated(("host", "forward", (2,), 5.0), host=host, gpu=25.0, synchronises="never").truth
    assert (truth.total - truth.repaired) / 30 == pytest.approx(saved, abs=0.3)


def test_workers_hide_a_slow_loader_until_their_batches_run_out() -> None:
    """Four workers that take 20 ms longer each cost 5 ms a step, and nothing where the GPU takes longer still."""
    for gpu, saved in ((20.0, 5.0), (120.0, 0.0)):
        fault = ("input", "input", (1,), 20.0)
        truth = simulated(fault, host=5.0, gpu=gpu, load=160.0, workers=4, steps=100).truth
        assert (truth.total - truth.repaired) / 100 == pytest.approx(saved, abs=0.5)


def test_a_host_is_ahead_by_at_most_its_launch_queue() -> None:
    """With 600 launches a step a host that never waits is less than three steps ahead of its GPU."""
    job = Job(1, ranks=2, steps=40, host=5.0, gpu=50.0, synchronises="never", noise=QUIET)
    history = machine.run(job, draw(job), [])
    ends = {step: float(call.end.max()) for call in history.calls for step in [call.step]}
    behind = [ends[one.step - 3] - float(one.begin.min()) for one in history.steps if one.step >= 3]
    assert max(behind) < 0
    assert ends[20] - float(history.steps[21].begin.min()) > 50  # and it is ahead by more than a step


@pytest.mark.parametrize("shape", ["ddp", "fsdp", "tensor", "moe", "pipeline"])
def test_members_leave_a_collective_together(shape: str) -> None:
    """And none before the last has come."""
    job = Job(1, ranks=8, steps=5, shape=shape, groups=2, micro_batches=4)
    for call in machine.run(job, draw(job), []).calls:
        if call.peers is None:
            group = programs.members(job)[call.kind][call.ranks]
            for one in set(group.tolist()):
                assert len(set(call.end[group == one].tolist())) == 1
                assert call.end[group == one].min() >= call.start[group == one].max()


@pytest.mark.parametrize("chunks", [1, 2])
def test_pipelines_end_and_bubbles_hide_a_part_of_a_slow_stage(chunks: int) -> None:
    """10 ms more of one stage cost no more than that; interleaved, its peers' bubbles take most of it."""
    shape = {"shape": "pipeline", "groups": 4, "ranks": 4, "micro_batches": 8, "chunks": chunks, "host": 8.0}
    truth = simulated(("gpu", "forward", (1,), 10.0), gpu=80.0, steps=10, **shape).truth
    assert 2 < (truth.total - truth.repaired) / 10 <= 11


@pytest.mark.parametrize("written", ["run", "traces"])
def test_a_recording_has_every_step_and_collective(written: str) -> None:
    """Both forms are read as one run of all ranks, whose steps last as long as the job."""
    found = simulated(written=written, evaluate_every=10, evaluate=2, noise=Noise())
    steps = found.run.steps
    assert sorted(set(steps["step"][steps["kind"] == "train"].tolist())) == list(range(30))
    assert len(set(found.run.collectives["rank"].tolist())) == 4
    lasted = steps["duration_ns"][steps["rank"] == 0].sum() / 1e6
    assert lasted == pytest.approx(found.truth.total, rel=0.05)


def test_every_regime_makes_a_job() -> None:
    """Of eight seeds two are clean, and the others' faults are on ranks that there are."""
    for name in families.FAMILIES:
        jobs = [families.job(name, seed) for seed in range(8)]
        assert all(rank < job.ranks for job in jobs for fault in job.faults for rank in fault.ranks)
        assert sum(bool(job.faults) for job in jobs) == {"hidden": 8, "unequal on purpose": 0}.get(name, 6)
        assert replace(jobs[0]) == families.job(name, 0)
