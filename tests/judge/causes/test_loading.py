"""Slow input: of storage, of workers, hidden in part or in full."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import select
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.causes import loading
from hindmost_judge.causes.loading import input_share
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Report

from tests.judge.buckets import BUCKETS, RANKS, STEPS, run, with_cost
from tests.runs import blocks_of, only_verdict, with_rows
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
    """Loaders that run are the input, loaders that queue the node's want of CPUs; of both the evidence says so."""
    run, kinds, said = all_wait(), [], ""
    for queued in (0.0, 0.3, 0.7):
        made = run
        for rank in range(4):
            one = sampled(run, workers=2, rank=rank, cpu=0.1, queued=queued).metrics
            mine = [f'"rank": "{rank}"' in label for label in one["labels"].tolist()]
            made = with_rows(made, metrics=select(one, np.array(mine)))
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


def fetching(ms: dict[int, float], *faults: Fault) -> Run:
    """A job on GPUs, run ahead by its hosts; these ranks wait so much longer for their input in each step."""
    run = simulate(Scenario(4, 80, run_ahead=2, faults=faults)).run
    longer = np.array([ms.get(rank, 0.0) * 1e6 for rank in run.steps["rank"].tolist()]).astype(np.int64)
    steps = {**run.steps, "input_ns": run.steps["input_ns"] + longer}
    return replace(run, steps=steps)


def reported(report: Report) -> list[str]:
    return [note for note in report.notes if "costs nothing now" in note]


def test_a_rank_with_hidden_slow_input_is_reported_and_not_named() -> None:
    """30 ms of a 100 ms step, without any waiting for it."""
    report = judge(fetching({1: 30.0}))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    (note,) = reported(report)
    assert note.startswith("rank 1 waits 30.0 ms longer per step for input than the rest")


@pytest.mark.parametrize("ms", [{}, {1: 2.0}])
def test_a_usual_input_is_not_reported(ms: dict[int, float]) -> None:
    """Less than a twentieth of the step is no news."""
    assert reported(judge(fetching(ms))) == []


def test_an_input_that_all_ranks_hide_is_reported_for_all() -> None:
    """It bounds how much faster the GPUs may become."""
    (note,) = reported(judge(fetching(dict.fromkeys(range(4), 40.0))))
    assert note.startswith("every rank waits ")


@pytest.mark.parametrize(("share", "part"), [(0.0, False), (0.2, True)])
def test_the_hidden_part_of_an_input_is_reported(share: float, part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it costs nothing where nearly all is covered; else a repair saves the rest."""
    monkeypatch.setattr(loading, "input_share", lambda *_: share)
    (note,) = reported(judge(fetching(dict.fromkeys(range(4), 40.0))))
    assert ("; 2" in note) == part


@pytest.mark.parametrize(("run_ahead", "reported"), [(0, False), (1, True)])
def test_the_hidden_part_of_a_slow_input_is_separate_from_its_cost(run_ahead: int, reported: bool) -> None:
    """A host ahead of its GPU hides the first half of a step of it: only the rest is worth repairing."""
    job = Scenario(8, 120, 3, run_ahead=run_ahead, faults=(Fault("input", (3,), 0.9),))
    (verdict,) = judge(simulate(job).run).verdicts
    assert (verdict.ranks, verdict.cause) == ((3,), "input")
    covered = [line for line in verdict.evidence if "of it costs time" in line or "hide the rest" in line]
    expected = "input takes 90.0 ms longer per step, 40.6 ms of it costs time"
    assert [line[: len(expected)] for line in covered] == ([expected] if reported else [])


NOTE = "queued work hides it in most steps"


def fetching_slowly(
    input_ms: float, late_ms: float, often: int, steps: int = STEPS, part: str = "input_ns"
) -> tuple[Run, float]:
    """A job whose rank 2 waits so long for its input in each step, and what that costs, ms a step. It is late by a part
    of it, and by all of it in every so many steps, as where its host waits for its GPU then."""
    delays = np.zeros((RANKS, steps, BUCKETS))
    delays[2, :, 0] = late_ms * 1e6
    delays[2, often - 1 :: often, 0] = input_ms * 1e6
    job, cost = with_cost(delays, timed=True)
    waits = np.where(job.steps["rank"] == 2, input_ms * 1e6, 1e5).astype(np.int64)
    return replace(job, steps={**job.steps, part: waits}), cost


def of_input(report: Report) -> list[str]:
    return [note for note in report.notes if NOTE in note]


@pytest.mark.parametrize("part", ["input_ns", "h2d_ns"])
@pytest.mark.parametrize(("input_ms", "late_ms"), [(12.0, 2.0), (30.0, 15.0)])
def test_steps_in_which_nothing_hides_it_are_repaired_too(input_ms: float, late_ms: float, part: str) -> None:
    """A host that waits for its GPU in every eighth step, to log a loss, has nothing queued in the next."""
    job, cost = fetching_slowly(input_ms, late_ms, 8, part=part)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (2,), part.removesuffix("_ns"))
    assert verdict.cost_ms_per_step == pytest.approx(cost, rel=0.05)
    assert any("nothing hid its" in line for line in verdict.evidence)


def test_stalls_that_the_input_is_too_short_for_are_not_repaired_with_it() -> None:
    """Whatever stalls a rank for 10 ms, it is no input that takes 3."""
    job, _ = fetching_slowly(3.0, 3.0, 8)
    extra = np.zeros((RANKS, STEPS, BUCKETS))
    extra[2, :, 0] = 3e6
    extra[2, 7::8, 0] += 10e6
    stalled = replace(job, collectives=run(extra)[0].collectives)
    (verdict,) = [one for one in judge(stalled).verdicts if one.cause == "input"]
    assert verdict.cost_ms_per_step == pytest.approx(3.0, rel=0.1)


def test_too_few_stalls_do_not_say_whether_an_input_costs_something() -> None:
    """Three in 40 steps may have met that rank by chance: it is not named, and not said to cost nothing."""
    report = judge(fetching_slowly(8.0, 0.0, 12, 40)[0])
    assert [verdict.ranks for verdict in report.verdicts if verdict.ranks] == []
    (note,) = of_input(report)
    assert note.startswith("rank 2 waits 7.9 ms")
    assert "costs nothing" not in note


def test_five_stalls_are_enough_of_the_one_rank_whose_input_is_slow() -> None:
    """By chance any of four ranks would have all five in one job of 250; this one in 1,000."""
    report = judge(fetching_slowly(8.0, 0.0, 8, 47)[0])
    (verdict,) = [one for one in report.verdicts if one.ranks]
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (2,), "input")
