"""An input that waits for storage, or for a CPU, is no slow loader."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.causes.loading import input_share
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

from tests.runs import blocks_of, only_verdict
from tests.scenarios.loads import Load, make, metrics


def sampled(run: Run, *, workers: int, rank: int, **rates: float) -> Run:
    """The same job with so many workers a rank; of ``rank``'s these rates, s per s, the others' idle."""
    samples: list[tuple[str, str, int, float]] = []
    for each in range(run.job.world_size or 0):
        own = rates if each == rank else {}
        labels = {"job": "made", "rank": str(each)}
        gauges = {
            "children": float(workers),
            "children_blocked": own.get("storage", 0.0) if workers else 0.0,
            "blocked": 0.0 if workers else own.get("storage", 0.0),
        }
        counters = (
            {"children_cpu": own.get("cpu", 0.02), "children_runqueue": own.get("queued", 0.0)} if workers else {}
        )
        counters = {f"{name}_seconds": rate for name, rate in counters.items()}
        counters["children_read_bytes" if workers else "read_bytes"] = own.get("read", 50e6)
        for second in (0, 1, 2):
            text = json.dumps(labels)
            samples += [(f"hindmost_process_{name}", text, second, value) for name, value in gauges.items()]
            samples += [
                (f"hindmost_process_{name}_total", text, second, rate * second) for name, rate in counters.items()
            ]
        if own.get("storage"):
            mount = json.dumps(labels | {"device": "nas:/data", "mountpoint": "/data"})
            samples.append(("hindmost_process_mount_blocked", mount, 1, 1.0))
    return replace(run, metrics=metrics(samples))


def late(**load: object) -> Run:
    """Rank 1's input takes 12 ms more."""
    return make(Load(kind="torch", ranks=2, steps=150, faults=[{"rank": 1, "input": 12.0}], **load))  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "storage"), [(0, 0.55), (2, 1.1)])
def test_input_that_waits_for_storage_is_file_io(workers: int, storage: float) -> None:
    """The rank itself, or its workers, in state D; the evidence has that time per step, the mount, then MB/s."""
    report = judge(sampled(late(), workers=workers, rank=1, storage=storage, read=12e6))
    (found,) = report.verdicts
    assert (found.kind, found.ranks, found.cause) == ("straggler", (1,), "io")
    who = "all workers of rank 1 together" if workers else "rank 1"
    mount = "nas:/data, mounted on /data"
    blocked = re.fullmatch(
        rf"blocked by storage \(state D\) per step: {who} ([\d.]+) ms, others 0.0 ms; {mount}", found.evidence[0]
    )
    assert blocked is not None
    assert float(blocked[1]) == pytest.approx(storage * (report.job.step_ms["mean"] or 0.0), rel=0.02)
    assert found.evidence[1] == f"reads: {who} 12.0 MB/s, others 50.0 MB/s"
    assert "disk or mount" in found.advice[0]


@pytest.mark.parametrize("storage", [0.0, 0.55])
@pytest.mark.parametrize(("read", "do"), [(2000e6, "balance the shards"), (60e6, "check the disk or mount")])
def test_who_reads_many_times_as_much_has_no_slow_disk(read: float, do: str, storage: float) -> None:
    """All take as many steps: a slow disk makes a rank read for longer, and not more."""
    (advice,) = only_verdict(sampled(late(), workers=0, rank=1, storage=storage, read=read)).advice
    assert do in advice
    assert ("rank 1 reads 40 times as many bytes as the others" in advice) == (read > 1e9)


@pytest.mark.parametrize("rates", [{"cpu": 1.0}, {"storage": 0.1}, {}])
def test_input_stays_input_where_storage_does_not_explain_it(rates: dict[str, float]) -> None:
    """Workers that compute, that are hardly blocked, or that sleep, as on a web server."""
    assert only_verdict(sampled(late(), workers=2, rank=1, **rates)).cause == "input"


@pytest.mark.parametrize(
    ("rates", "storage"), [({}, False), ({"storage": 0.2}, True), ({"read": 2e6}, True), ({"read": 1.3e5}, False)]
)
def test_storage_is_named_only_where_it_was_used(rates: dict[str, float], storage: bool) -> None:
    """A Dataset that sleeps or computes reads next to nothing: its stacks show what it does."""
    (do,) = only_verdict(sampled(late(), workers=0, rank=1, **{"read": 0.0, **rates})).advice
    assert ("check the disk or mount" in do) == storage
    assert ("see what rank 1 does" in do and "hindmost attach --stacks" in do) != storage


def test_workers_without_a_cpu_are_contention() -> None:
    """They are in the run queue for most of the time for which their rank waits."""
    found = only_verdict(sampled(late(), workers=2, rank=1, cpu=0.2, queued=0.6))
    assert found.cause == "cpu_contention"
    assert "waiting for a CPU per step: all workers of rank 1" in found.evidence[0]


def all_wait(**parts: float) -> Run:
    """Every rank's input takes most of each step."""
    return make(Load(kind="torch", ranks=4, steps=150, faults=[{"rank": rank, "input": 30.0} for rank in range(4)]))


def test_a_job_whose_workers_lack_cpus_is_not_limited_by_input() -> None:
    """Loaders that run are the input; loaders that queue are the node's want of CPUs. Of some of both the evidence
    says why the cost is less than the wait."""
    run, kinds, said = all_wait(), [], ""
    for queued in (0.0, 0.3, 0.7):
        made = run
        for rank in range(4):
            one = sampled(run, workers=2, rank=rank, cpu=0.1, queued=queued).metrics
            mine = [f'"rank": "{rank}"' in label for label in one["labels"].tolist()]
            parts = {name: values[mine] for name, values in one.items()}
            made = replace(made, metrics={name: np.concatenate([made.metrics[name], parts[name]]) for name in parts})
        found = judge(made).verdicts[0]
        kinds.append(found.kind)
        said = said or next((line for line in found.evidence[:1] if "waiting for a CPU" in line), "")
    assert kinds == ["input_bound", "input_bound", "balanced"]
    assert said.endswith("per step for input on average; 39 % of that is waiting for a CPU, which COST leaves out")


def fed_by_workers(
    loads: list[float], workers: int = 2, steps: int = 200, noise: float = 0.01, seed: int = 0
) -> tuple[Run, float]:
    """Ranks whose workers take so many ms a batch, each two ahead, and ms a step. All ranks meet after 8 ms more."""
    ranks, now = len(loads), 0.0
    varies = np.random.default_rng(seed).normal(1.0, noise, (steps, ranks))
    ready, taken, waits = (np.zeros((steps, ranks)) for _ in range(3))
    for step in range(steps):
        begun = ready[step - workers] if step >= workers else np.zeros(ranks)
        if step >= 2 * workers:
            begun = np.maximum(begun, taken[step - 2 * workers])
        ready[step] = begun + np.array(loads) * varies[step]
        taken[step] = np.maximum(ready[step], now)
        waits[step] = taken[step] - now
        now = float(taken[step].max()) + 8.5
    faults = [
        {"rank": rank, "from": step, "until": step + 1, "input": waits[step, rank]}
        for step in range(steps)
        for rank in range(ranks)
    ]
    return make(Load(kind="torch", ranks=ranks, steps=steps, faults=faults)), now / steps


@pytest.mark.parametrize("seed", range(3))
def test_slow_workers_cost_what_the_others_workers_are_faster(seed: int) -> None:
    """Those are ahead after some steps, and their ranks wait no more: not for all that the slow one waits."""
    run, took = fed_by_workers([30.0, 30.0, 32.0, 30.0], seed=seed)
    _, clean = fed_by_workers([30.0] * 4, seed=seed)
    found = [verdict for verdict in judge(run).verdicts if verdict.ranks]
    assert {verdict.ranks for verdict in found} == {(2,)}
    assert sum(verdict.cost_ms_per_step or 0.0 for verdict in found) == pytest.approx(took - clean, rel=0.25)


def test_workers_that_are_slower_by_little_name_no_rank() -> None:
    """Rank 2's take 0.7 % longer. In the end it is the only one that waits, and for half of each step."""
    run, _ = fed_by_workers([30.0, 30.0, 30.2, 30.0], steps=400, noise=0.0)
    assert not [verdict for verdict in judge(run).verdicts if verdict.ranks]


def test_phases_of_gpus_that_wait_for_others_hide_no_input() -> None:
    """Only the last rank's phases hold no wait: its GPU works for 40 % of a step in which all fetch for 60 %."""
    built = blocks_of(simulate(Scenario(4, 60)).run)
    of_step = np.broadcast_to(built.period, built.wait.shape)
    waits = np.array([0.0, 0.5, 0.5, 0.5])[:, None] * of_step
    phases = {"gpu_forward": 0.4 * of_step + waits, "gpu_backward": 0.0 * waits, "gpu_optimizer": 0.0 * waits}
    assert input_share(0.6 * of_step, replace(built, wait=waits, parts=phases)) == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize(("queued_by_peers", "cause"), [(0.0, "cpu_contention"), (0.6, "input")])
def test_queueing_that_peers_suffer_alike_comes_with_what_is_read(queued_by_peers: float, cause: str) -> None:
    """Where no core is free, who reads more queues longer for it."""
    made = sampled(late(), workers=2, rank=1, cpu=0.2, queued=0.6)
    peers = made.metrics["name"] == "hindmost_process_children_runqueue_seconds_total"
    peers &= np.array(['"rank": "0"' in label for label in made.metrics["labels"].tolist()])
    values = np.where(peers, queued_by_peers * made.metrics["time_ns"] / 1e9, made.metrics["value"])
    assert only_verdict(replace(made, metrics=made.metrics | {"value": values})).cause == cause
