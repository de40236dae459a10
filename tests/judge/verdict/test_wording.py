"""The sentences of a report agree with its numbers, and with each other."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import table
from hindmost_collector.report import text
from hindmost_collector.report.verdict_lines import decisive, of_verdict
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.blocks import Slowdown
from hindmost_judge.causes import cpu_sharing
from hindmost_judge.causes.table import Cause
from hindmost_judge.detect import straggler
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT, Settings
from hindmost_judge.timeline import build_blocks
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.wording import duration, ms, shares, why

from tests.recordings import OURS
from tests.runs import MS, blocks_of, call, made
from tests.scenarios.loads import Load, hang, make


def test_a_job_s_name_is_taken_as_it_is() -> None:
    """Whatever it is: of a backslash nothing is made."""
    run = made(1, id=r"a\d\1", ended_ns=1)
    assert wording.for_job("`hindmost run --job-id NAME`", run) == r"`hindmost run --job-id a\d\1`"


def _report(*faults: dict[str, float], kind: str = "mpi", ranks: int = 4, compute: float = 10.0) -> str:
    run = make(Load(kind=kind, ranks=ranks, steps=200, compute=compute, faults=list(faults)))
    return " ".join(text.render(judge(run).to_dict(), width=400, explain=True).split())


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({}, "per step (2"),
        ({}, "WHY CPU time"),
        ({"from": 60}, "per step since step 60 (2"),
        ({"from": 60}, "WHY since step 60, CPU time"),
        ({"from": 60, "until": 120}, "per step in these steps (2"),
        ({"from": 60, "until": 120}, "WHY in these steps, CPU time"),
        ({"from": 60, "until": 120}, "others wait longest for rank 1 in 60 of 60 steps"),
    ],
)
def test_cost_and_evidence_say_of_which_steps_they_are(when: dict[str, float], said: str) -> None:
    """Of the whole job only where the fault acted in all of it; the table is of all steps, and differs."""
    assert said in _report({"rank": 1, "compute": 3.0, **when})


def test_the_cost_of_stalls_is_a_share_of_the_time_in_which_they_came() -> None:
    """Stalls of the whole run are counted over all of it, those that began late over the steps since then."""
    stalls = {"rank": 3, "blocked": 9.0, "every": 10}
    assert "since" not in _report(stalls)
    assert "per step since step 33 (" in _report(stalls | {"from": 30})


def test_the_decisive_evidence_comes_first() -> None:
    """What the cause is measured by, of the rank against its cohort: the one line that a reader sees."""
    slow = judge(make(Load(ranks=4, steps=200, compute=10.0, faults=[{"rank": 1, "compute": 3.0}]))).verdicts[0]
    assert re.fullmatch(r"CPU time between collectives: rank 1 1[23]\.\d ms, others (9|10)\.\d ms", slow.evidence[0])
    queued = judge(make(Load(ranks=4, steps=200, compute=10.0, faults=[{"rank": 1, "runqueue": 3.0}]))).verdicts[0]
    assert queued.evidence[0].startswith("CPU queue between collectives: rank 1 3.0 ms, others 0.0")
    assert "WHY file read: rank 1 3.0 ms, others 0.0 ms" in _report({"rank": 1, "input": 3.0})  # marked by no script


def test_of_several_ranks_one_delay_is_taken_apart() -> None:
    """Their typical delay and the delay that causes add up to are two numbers, and neither follows a rank's number."""
    shown = _report(*({"rank": rank, "compute": 3.0 + rank / 10} for rank in (2, 6)), ranks=8)
    assert re.search(r"CPU time between collectives: [\d.]+ ms on ranks 2 and 6, others", shown)
    assert "rank 6: 3.6 ms delay per step, all of it computing" in shown


@pytest.mark.parametrize("cpus", [0, 4])
def test_what_is_called_computing_is_most_of_the_delay(cpus: int) -> None:
    """A rank that computes longer queues longer, too, as its peers do for the same work: both are of its computing."""
    alike = [{"rank": rank, "runqueue": 8.0} for rank in range(8)]
    run = make(Load(ranks=8, cpus=cpus, faults=[*alike, {"rank": 1, "compute": 4.0, "runqueue": 4.0}]))
    (found,) = judge(run).verdicts
    assert (found.ranks, found.cause) == ((1,), "compute")
    (line,) = (line for line in found.evidence if " delay per step" in line)
    said = re.match(
        r"(.*) ms delay per step(?:, all of it computing|: computing (.*) ms) \((.*) ms more CPU time;", line
    )
    assert said is not None
    assert [float(said[2] or said[1]), float(said[3])] == pytest.approx([8.0, 4.0], abs=0.2)


def test_parts_of_a_delay_add_up_to_it() -> None:
    """What is computed inside a file call is measured twice, and is said once."""
    found = shares(10e6, Cause("compute", 0.9, None, (("compute", 9e6), ("checkpoint", 3e6), ("cpu_contention", 1e6))))
    assert found == ["10.0 ms delay per step: computing 6.0 ms, checkpoints 3.0 ms, waiting for a CPU 1.0 ms"]


def test_too_little_for_a_cause_is_given_as_its_share() -> None:
    """An unknown cause says how much the best measurement explains."""
    half = Cause("unknown", 0.5, "compute", (("compute", 2e6), ("gc", 0.5e6)))
    run = simulate(Scenario(4, 40, faults=(Fault("compute", (1,), 0.1),))).run
    blocks = blocks_of(run)
    lines = why(blocks, straggler.find(blocks, DEFAULT), half)
    assert "no single cause: the largest explains 50 % of the delay" in lines


def test_a_link_of_several_ranks_is_one() -> None:
    """What is repaired is the link."""
    scenario = Scenario(8, 120, layout="tp_dp", tensor=2, faults=(Fault("network", (3,), 0.2),))
    shown = of_verdict(judge(simulate(scenario).run).to_dict()["verdicts"][0])
    assert shown.sentence.startswith("SLOW link of ranks 1, 3, 5 and 7")
    assert "ms remain" in shown.cost


def test_a_pipeline_is_not_counted_by_who_is_last_in_collectives() -> None:
    """There the others wait in sends and receives: a count of collectives would contradict the verdict."""
    slow = Scenario(16, 80, layout="pp_dp", pipeline=4, faults=(Fault("compute", (5,), 0.1),))
    found = judge(simulate(slow).run).verdicts[0]
    assert (found.kind, found.ranks) == ("straggler", (5,))
    assert not any("others wait longest" in line for line in found.evidence)


@pytest.mark.parametrize(("steps", "reported"), [(3, "3 steps with start-up, of 4"), (5, "4 steps after warm-up")])
def test_steps_are_after_warm_up_only_where_some_were_left_out(steps: int, reported: str) -> None:
    """Of a job of three steps all are shown, and so is what they begin with."""
    assert reported in judge(simulate(Scenario(4, steps)).run).verdicts[0].evidence[0]


def test_two_causes_at_once_have_advice_each() -> None:
    """Where input and computing explain together what neither does alone, both are named and both have advice."""
    run = make(Load(kind="mpi", ranks=8, steps=200, compute=10.0, faults=[{"rank": 1, "compute": 2.0, "input": 2.0}]))
    found = judge(run).verdicts[0]
    assert {*found.causes} == {"compute", "input"}
    doing = of_verdict(found.__dict__).what.removeprefix("rank 1: ").removesuffix(", since step 0")
    assert {*doing.split(" and ")} == {"computing", "waiting for input"}
    assert len(found.advice) == 2
    assert sum("see what rank 1 does" in line for line in found.advice) == 1


def test_what_is_off_the_cpu_is_no_second_cause() -> None:
    """Time off the CPU says that a cause is not known; it is none."""
    assert "two causes" not in _report({"rank": 1, "compute": 2.0, "blocked": 2.0}, ranks=8)


def test_the_evidence_is_no_smaller_than_the_cost_that_is_counted_from_it() -> None:
    """A slow GPU shows a part of its delay during backward: its longer computing is given in full."""
    found = judge(simulate(Scenario(8, 100, faults=(Fault("compute", (2,), 0.2),))).run).verdicts[0]
    (longer,) = [line for line in found.evidence if line.startswith("computing takes ")]
    assert found.cost_ms_per_step is not None
    assert float(longer.split()[2]) >= found.cost_ms_per_step - 0.05


def test_the_last_rank_on_shared_cpus_is_the_schedulers_doing() -> None:
    """A delay says nothing there: what ranks need comes first, and that they wait, as in the table."""
    report = judge(make(Load(ranks=4, steps=300, compute=2.0, cpus=2, jostle=3.0)))
    (line,) = [line for line in text.render(report.to_dict(), 200).splitlines() if "ranks wait" in line]
    assert line.endswith("per step for the last to arrive, a different rank each time")
    found = report.verdicts[0]
    assert found.kind == "balanced"
    assert re.fullmatch(r"ranks need the same CPU time, within [\d.]+ ms", found.evidence[0])
    assert "ranks wait" in found.evidence[1]
    assert "the scheduler's doing" in found.evidence[2]


@pytest.mark.parametrize(("seen", "by", "head"), [(True, "checkpoint", "OK"), (False, None, "SLOW")])
def test_files_that_the_first_rank_writes_leave_no_doubt(seen: bool, by: str | None, head: str) -> None:
    """What it does for all every twenty steps is said in a line of its own; at such a cost only if it was seen."""
    run = make(Load(ranks=2, steps=200, faults=[{"rank": 0, "blocked": 350.0, "every": 20}]))
    calls = run.collectives
    flushed = (calls["rank"] == 0) & (calls["self_ns"] > 300 * MS)
    start, took = calls["start_ns"][flushed] - 350 * MS, np.full(np.count_nonzero(flushed), 350 * MS)
    intervals = table("intervals", rank=np.zeros(len(took)), name="file_sync", start_ns=start, duration_ns=took)
    report = judge(replace(run, intervals=intervals) if seen else run).to_dict()
    assert [of_verdict(one).head for one in report["verdicts"]] == [head]
    assert (report["job"]["bound"] or {"by": None})["by"] == by


def test_a_save_holds_what_it_runs_and_queues_for() -> None:
    """Four fifths of it are writes, in which it hardly sleeps: its CPU is shared. That is said once, of the save."""
    queues = [{"rank": rank, "runqueue": 30.0} for rank in range(2)]
    saves = {"rank": 0, "compute": 60.0, "runqueue": 270.0, "blocked": 20.0, "every": 20}
    run = make(Load(ranks=2, steps=200, faults=[saves, *queues]))
    calls = run.collectives
    flushed = (calls["rank"] == 0) & (calls["self_ns"] > 300 * MS)
    start, took = calls["start_ns"][flushed] - 350 * MS, np.full(np.count_nonzero(flushed), 270 * MS)
    intervals = table("intervals", rank=np.zeros(len(took)), name="file_sync", start_ns=start, duration_ns=took)
    report = judge(replace(run, intervals=intervals)).to_dict()
    assert [of_verdict(one).head for one in report["verdicts"]] == ["OK"]
    assert report["job"]["bound"]["by"] == "checkpoint"


def test_the_head_says_which_rank_pauses_and_what_that_costs() -> None:
    """It may be a fault, or save: a user is to see which rank, how often and at what cost."""
    run = make(Load(ranks=4, steps=200, compute=10.0, faults=[{"rank": 0, "blocked": 30.0, "every": 20}]))
    (found,) = judge(run).to_dict()["verdicts"]
    assert re.fullmatch(
        r"UNSURE rank 0 pauses \(.*\) in 10 of \d+ steps: others wait .* \(12 %\)", of_verdict(found).sentence
    )


@pytest.mark.parametrize(("written", "head"), [(220, "OK"), (100, "UNSURE")])
def test_long_steps_that_are_mostly_for_files_leave_no_doubt(written: int, head: str) -> None:
    """Rank 0 computes in between what it writes, in no regular steps: where files take most of that, they are why."""
    at = (40, 97, 130)
    run = make(Load(ranks=2, steps=200, faults=[{"rank": 0, "blocked": 350.0, "from": s, "until": s + 1} for s in at]))
    calls = run.collectives
    start = calls["start_ns"][(calls["rank"] == 0) & (calls["self_ns"] > 300 * MS)] - 350 * MS
    took, who = np.full(len(at), written * MS), np.zeros(len(at))
    intervals = table("intervals", rank=who, name="file_sync", start_ns=start, duration_ns=took)
    found = judge(replace(run, intervals=intervals)).to_dict()["verdicts"]
    assert [of_verdict(one).head for one in found] == [head]


def test_a_large_part_of_little_work_makes_no_rank_suspected() -> None:
    """A third more than 0.4 ms, in steps of more than ten: nothing would be gained there."""
    busy = Load(ranks=4, steps=300, compute=0.2, cpus=2, jostle=10.0, faults=[{"rank": 1, "compute": 0.15}])
    found = judge(make(busy)).to_dict()["verdicts"][0]
    assert of_verdict(found).head == "OK"
    assert found["evidence"][0] == "ranks need the same CPU time, within 0.2 ms"


def test_a_rank_that_nearly_always_comes_last_is_not_excused_by_shared_cpus() -> None:
    """A scheduler delays one rank now and another then: of one that is late in every step the report says so."""
    run = make(Load(ranks=3, steps=300, compute=3.0, cpus=2, faults=[{"rank": 1, "blocked": 5.0}]))
    found = judge(run).to_dict()["verdicts"][0]
    assert of_verdict(found).head == "UNSURE"
    assert found["evidence"][0].startswith("rank 1 is last to arrive in 100 % of the collectives")
    assert not any("the scheduler's doing" in line for line in found["evidence"])


def test_a_rank_that_is_waited_for_is_no_different_one_each_time() -> None:
    """Where thresholds keep a late rank from being named, no rank is cleared."""
    run = simulate(Scenario(4, 60, faults=(Fault("compute", (2,), 0.2),))).run
    found = judge(run, Settings(min_spread_ratio=900)).to_dict()["verdicts"][0]
    assert of_verdict(found).head == "UNSURE"
    said = r"rank 2 typically comes last, \d+(\.\d)? % of a step after its peers: suspected"
    assert re.match(said, found["evidence"][0])
    assert any("for the last to arrive, mostly rank 2" in line for line in found["evidence"])


def test_a_delay_below_the_threshold_is_not_called_unsure() -> None:
    """Who asks for names from 90 % of a step on reads that a rank is late by less."""
    run = simulate(Scenario(4, 60, faults=(Fault("compute", (2,), 0.2),))).run
    found = judge(run, Settings(min_effect=0.9)).to_dict()["verdicts"][0]
    assert of_verdict(found).head == "OK"
    assert re.match(r"rank 2 typically comes last, .*: below the threshold of 90 %", found["evidence"][0])


def test_uneven_work_clears_no_rank_beside_one_that_is_named() -> None:
    """The work is uneven, and one rank is slow among it: no line says that none is."""
    slow = Fault("gpu_contention", (2,), 0.12)
    run = simulate(Scenario(4, 120, 9853868, step_ms=50, varying_lengths=0.2, faults=(slow,))).run
    report = judge(run).to_dict()
    assert {of_verdict(verdict).head for verdict in report["verdicts"]} == {"UNEVEN", "SLOW"}
    assert "no rank is slow" not in text.render(report, explain=True)


@pytest.mark.parametrize(
    ("length_ms", "shown"),
    [(0.0, "0.0 ms"), (0.004, "0.004 ms"), (0.04, "0.04 ms"), (0.06, "0.1 ms"), (9999, "9999 ms"), (45_289, "45.3 s")],
)
def test_a_duration_has_as_many_digits_as_can_be_read(length_ms: float, shown: str) -> None:
    """45289 ms is hard to read, and a wait of 4 microseconds is no wait of 0."""
    assert duration(length_ms) == ms(length_ms * 1e6) == shown


STALLS = {"rank": 3, "blocked": 9.0, "every": 10}


@pytest.mark.parametrize("faults", [[{"rank": 1, "compute": 3.0}], [STALLS]], ids=["straggler", "stalls"])
def test_title_cost_and_share_are_of_one_mean_step(faults: list[dict[str, float]]) -> None:
    """What a reader can divide agrees: the title's step, the cost a step, its share, and the step as repaired."""
    shown = _report(*faults)
    title = re.search(r"steps, mean ([\d.]+) ms", shown)
    cost = re.search(r"COST ([\d.]+) of ([\d.]+) ms per step \(([\d.]+) %\); ([\d.]+) ms remain WHY", shown)
    assert title is not None
    assert cost is not None
    saved, mean, share, fixed = (float(group) for group in cost.groups())
    assert mean == float(title[1])
    assert saved / mean == pytest.approx(share / 100, abs=0.006)
    assert fixed == pytest.approx(mean - saved, abs=0.01)


def test_the_median_is_reported_where_the_mean_step_differs() -> None:
    """Stalls lengthen the mean and leave the typical step, of which the table speaks, as it was."""
    assert re.search(r"200 steps, mean 13\.\d ms, median 10\.\d ms", _report(STALLS | {"blocked": 30.0}))
    assert "(median " not in _report({"rank": 1, "compute": 3.0})


#: Jobs that no single rank holds back, and the kind that says so.
OF_ALL = {
    "input_bound": Scenario(4, 80, faults=(Fault("input", (0, 1, 2, 3), 0.6),)),
    "uneven_workload": Scenario(16, 120, varying_lengths=0.3),
    "slow_link": Scenario(16, 80, layout="tp_dp", tensor=4, faults=(Fault("network", (1, 5, 9, 13), 0.5),)),
}
HOST_BOUND = OURS / "ddp-hang-rank1.tar.xz"


@pytest.mark.parametrize("kind", [*OF_ALL, "host_bound"])
def test_a_cost_that_names_no_rank_is_a_share_of_the_same_step(kind: str) -> None:
    """A reader need not know which verdict counts how: the base is the mean step."""
    report = judge(simulate(OF_ALL[kind]).run if kind in OF_ALL else load(HOST_BOUND))
    (found,) = (verdict for verdict in report.verdicts if verdict.kind == kind)
    mean = report.job.step_ms["mean"]
    assert mean is not None
    assert found.cost_ms_per_step == pytest.approx((found.cost_ratio or 0.0) * mean, rel=1e-6)


@pytest.mark.parametrize(
    ("ranks", "stall"), [([4], "rank 4: stalls now and then"), ([4, 5], "ranks 4 and 5: stall now and then")]
)
def test_several_ranks_stall_and_one_stalls(ranks: list[int], stall: str) -> None:
    """A verb agrees with how many there are. What comes and goes is not said to last since the first step."""
    assert not of_verdict({"kind": "intermittent", "ranks": ranks, "since_step": 0}).what.endswith("since step 0")
    assert of_verdict({"kind": "intermittent", "ranks": ranks}).what.startswith(stall)


@pytest.mark.parametrize("lengths", [0.0, 0.15])
def test_a_cost_far_below_the_delay_is_explained_among_uneven_work(lengths: float) -> None:
    """Next to 10 ms of delay and a cost of 2.5 ms the report says what hides the rest; elsewhere nothing does."""
    job = Scenario(8, 120, 4, varying_lengths=lengths, faults=(Fault("input", (1,), 0.1),))
    named = next(verdict for verdict in judge(simulate(job).run).verdicts if verdict.ranks)
    assert named.cost_ms_per_step is not None
    hidden = [line for line in named.evidence if "longer batches elsewhere" in line]
    left = duration(named.cost_ms_per_step)
    saved = f"{left} of its 10.1 ms delay can be saved: longer batches elsewhere hide the rest"
    assert hidden == ([saved] if lengths else [])


@pytest.mark.parametrize("other", [(), (Fault("input", (9,), 0.1),), (Fault("gpu_throttle", (9,), 0.06),)])
def test_of_batches_that_are_all_alike_none_is_longer(other: tuple[Fault, ...]) -> None:
    """What another rank's delay or jitter hides of a cost is not put on work that no rank has more of."""
    ranks, seed, row, size = (16, 3, 2, 0.1) if other else (8, 18, 3, 0.015)
    job = Scenario(ranks, 100, seed=seed, faults=(Fault("compute", (row,), size), *other))
    verdicts = [verdict for verdict in judge(simulate(job).run).verdicts if verdict.ranks]
    assert any((verdict.cost_ms_per_step or 0.0) < 0.5 * size * 100 for verdict in verdicts)
    assert not [line for verdict in verdicts for line in verdict.evidence if "batches" in line]


def test_a_rank_that_is_waited_for_no_more_than_any_is_not_said_to_be() -> None:
    """Nor is it in its evidence: by chance each of four is waited for longest in a quarter of the steps."""
    blocks: Any = SimpleNamespace(
        ranks=np.arange(4),
        steps=np.arange(8),
        collectives=4,
        evidence="collectives",
        pipeline=None,
        overlapped=True,
        lanes=None,
        self_time=np.full((4, 8), np.nan),
        delay=np.full((4, 8), 1e6),
        parts={},
        caused=np.eye(4)[:, [3, 0, 0, 0, 0, 1, 1, 1]],
    )
    slowdown: Any = SimpleNamespace(row=3, first=0, stop=8, delay=1e6, outer=None, phase=None)
    waited = "others wait longest for rank 3 in 4 of 8 steps"
    assert why(blocks, [slowdown], Cause("unknown"))[0] == "rank 3 arrives 1.0 ms later than the other ranks per step"
    assert waited not in why(blocks, [slowdown], Cause("unknown"))
    blocks.caused = np.eye(4)[:, [3, 3, 3, 3, 0, 1, 1, 1]]
    assert waited in why(blocks, [slowdown], Cause("unknown"))


def test_a_stall_is_reported_with_its_own_length_not_a_step_s() -> None:
    """What it exceeds a usual step by is not what all steps do; that its GPU idles meanwhile is no second cause."""
    cause = Cause("input", 1.0, shares_ns=(("idle", 4e7), ("input", 1.16e8)))
    assert wording.shares(4e7, cause, per="in such a step")[0] == "40.0 ms delay in such a step, all of it input"
    assert wording.shares(4e7, cause)[1].startswith("input takes 116 ms longer per step, 40.0 ms of it costs time")


def test_in_how_few_steps_a_rank_is_waited_for_is_reported() -> None:
    """Two long waits are not persistent: the report explains the mean that they make."""
    caused = np.full((3, 100), 1e4)
    caused[1, [40, 80]] = 9e8
    blocks: Any = SimpleNamespace(ranks=np.arange(3), caused=caused)
    assert wording.last_in_turn(blocks)[0] == "mostly rank 1, in 2 of 100 steps"
    caused[1] = 1e7
    assert wording.last_in_turn(blocks)[0] == "mostly rank 1"
    blocks.caused = np.full((8, 100), 1e6)
    blocks.caused[1, 3::20] = 1.02e8  # all of the few stalls
    assert wording.last_in_turn(blocks)[0] == "46 % of it for rank 1"


@pytest.mark.parametrize("of", ["-i 3`", "-i GPU-5c2e9f50-1d1f-4c29-9d6a-0f0a7c5b7a11 --filename=/var/log/smi.txt`"])
def test_a_command_is_on_one_line(of: str) -> None:
    """A command that two lines hold cannot be copied, even if it is longer than the page is wide."""
    page = text.console(60, color=False)
    command = f"`nvidia-smi -q -d PERFORMANCE,TEMPERATURE {of}"
    page.print(text.labelled("DO", f"check the GPU of rank 3 on node17: {command}"))
    assert any(line.strip() == command for line in text.written(page).splitlines())


def test_of_a_stopped_job_only_the_stop_is_news() -> None:
    """Who was slow before, and the table, are shown with all of the report; what limits its steps never is."""
    report = judge(hang(Load(ranks=4, steps=60, faults=[{"rank": 1, "compute": 4.0}]), [2])).to_dict()
    assert [one["kind"] for one in report["verdicts"]] == ["hang", "straggler"]
    report["job"]["bound"] = {"by": "cpu", "evidence": "so it is"}
    short, whole = text.render(report), text.render(report, explain=True)
    assert [word in short for word in ("SLOW", "ms per step", "LIMITED BY")] == [False] * 3
    assert ["SLOW" in whole, "LIMITED BY" in whole] == [True, False]
    assert "ms per step, medians before the job stopped" in whole


def test_where_cpus_are_shared_no_phase_with_waits_for_a_cpu_is_evidence() -> None:
    """A forward that queues for 10 ms is not 10 ms of computing: what the rank needs is what the cost is of."""
    run = make(Load(ranks=4, cpus=2, faults=[{"rank": 1, "compute": 4.0}]))
    needs = cpu_sharing.on_needs(build_blocks.build(run, DEFAULT))
    assert needs is not None
    forward = needs.parts["self_cpu"] + np.array([0.0, 10e6, 0.0, 0.0])[:, None]
    needs = replace(needs, parts={**needs.parts, "forward": forward})
    late = Slowdown(1, 0, len(needs.steps), 4e6, 9.0, 1.0, 1.0, 4e6)
    first, *_ = why(needs, [late], Cause("compute", 1.0))
    assert first.startswith("CPU time between collectives: rank 1 12.")


def test_a_rank_is_not_said_to_come_last_by_nothing() -> None:
    """0.0 % of a step says nothing."""
    (verdict,) = judge(make(Load(kind="torch", ranks=2, steps=200, seed=0))).verdicts
    assert (verdict.kind, verdict.evidence) == ("balanced", ("no rank typically comes last",))


def test_ok_begins_with_why_no_rank_is_named() -> None:
    """How long transfers take is no reason, and comes after it."""
    (verdict,) = judge(make(Load(ranks=4, steps=200, transfer=8.0))).verdicts
    assert verdict.kind == "balanced"
    assert [line.startswith("transfers: ") for line in verdict.evidence] == [False, True]


@pytest.mark.parametrize(("share", "lines"), [(0.5, 0), (0.6, 1)])
def test_a_rank_is_said_to_come_last_only_where_no_other_does_so_as_often(share: float, lines: int) -> None:
    """Of two that take turns neither is typically the last."""
    blocks = blocks_of(make(Load(ranks=2, steps=200, faults=[{"rank": 1, "compute": 0.1}])))
    second = np.arange(len(blocks.steps)) % 10 < 10 * share
    said, _ = wording.balanced(replace(blocks, last=np.stack([~second, second]) * 1.0), 0.0, 0.1)
    assert sum(line.startswith("ranks keep pace: rank 1 typically comes last, ") for line in said) == lines


def test_ranks_that_each_hold_up_a_group_of_their_own_are_not_cleared() -> None:
    """Of a grid whose rows and columns reduce, half of the ranks take longer: by design, or not."""
    own, now, calls = np.array([10.0, 10.0, 15.0, 15.0]), np.zeros(4), []
    for seq in range(100):
        for comm in (np.array([1, 1, 2, 2]), np.array([3, 4, 3, 4])):
            came = now + own / 2 + np.random.default_rng(seq).normal(0.0, 0.1, 4)
            now = 0.1 + np.where(comm[:, None] == comm, came, 0.0).max(axis=1)
            calls.append(call("all_reduce", seq, came, now, comm=comm))
    (verdict,) = judge(made(4, collectives=calls)).verdicts
    assert (verdict.kind, verdict.confidence) == ("balanced", 0.5)
    suspected = [line.partition(": ")[0] for line in verdict.evidence if "suspected" in line]
    assert suspected == ["ranks 2 and 3 are suspected"]


@pytest.mark.parametrize("name", ["mpi_collectives.py:4", "/x/collectives/a.py", "collectives.py:7", "run_collectives"])
def test_names_that_contain_collectives_stay_as_they_are(name: str) -> None:
    """Ranks that meet in messages alone wait in exchanges, at a line of a file that keeps its name."""
    assert wording.as_exchanges(f"in 9 of 9 collectives, at {name}; collectives.") == (
        f"in 9 of 9 exchanges, at {name}; exchanges."
    )


def test_the_line_at_which_a_rank_hangs_is_shown_first() -> None:
    evidence = ("1 rank waited in all_reduce", "rank 1 is at job.py:51", "that all_reduce is number 220")
    hung = {"kind": "hang", "ranks": [1], "victims": [0], "cause": "unknown", "waited_s": 15.2, "confidence": 0.99}
    assert decisive(of_verdict({**hung, "cost_ms_per_step": None, "evidence": evidence})) == evidence[:2]
