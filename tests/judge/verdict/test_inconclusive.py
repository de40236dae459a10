"""What is said where measurements are missing: launches, phases, collectives, or all but a log of steps."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.recordings.tables import table
from hindmost_collector.report import csv as report_csv
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.store.parquet.store import ParquetStore, read_run
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, GPU_TIME, METRICS, RUNNING, STEPS, Run, empty
from hindmost_judge.verdict.inconclusive import without_lost_leads
from hindmost_judge.verdict.schema import Verdict

from tests.runs import blocks_of, made, named, only, rows_of, with_job
from tests.scenarios import loads


def phase(run: Run, name: str) -> list[str]:
    """One phase's column of the CSV, as its cells are written."""
    rows = list(csv.DictReader(io.StringIO(report_csv.render(judge(run).to_dict()))))
    return [row[f"phase_{name}_ms"] for row in rows]


def test_an_unsampled_run_queue_is_no_zero() -> None:
    """A rank whose gaps were too short to sample has an empty cell; one that never queued has a 0."""
    run = loads.make(loads.Load())
    calls = dict(run.collectives)
    calls["runqueue_ns"] = np.where(calls["rank"] == 2, -1, 0)
    found = phase(replace(run, collectives=calls), "self_runqueue")
    assert found == ["0", "0", "", "0"]


def test_a_rank_without_any_file_read_is_no_zero() -> None:
    """Whether its reads were watched is unknown."""
    run = loads.make(loads.Load())
    first = run.collectives["rank"] == 1
    starts = run.collectives["start_ns"][first] - 3_000_000
    reads = table("intervals", rank=1, name="file_read", start_ns=starts, duration_ns=2_000_000, value=0.0)
    assert phase(replace(run, intervals=reads), "file_read") == ["", "2", "", ""]


def bare(slow_ms: float) -> Run:
    """Steps of 20 ms without anything in them; rank 1 takes longer."""
    run = loads.make(loads.Load(kind="torch", cpu=False, noise=0.02))
    steps = {name: np.where(name == "kind", column, -1) if name.endswith("_ns") else column
             for name, column in run.steps.items()}  # fmt: skip
    longer = (steps["rank"] == 1) * int(slow_ms * 1e6)
    jitter = np.random.default_rng(3).normal(0, 1e5, len(longer)).astype(np.int64)
    steps |= {"duration_ns": 20_000_000 + longer + jitter, "start_ns": run.steps["start_ns"]}
    return replace(run, steps=steps, collectives=empty(COLLECTIVES))


def test_bare_steps_alike_long_say_nothing() -> None:
    """Ranks that wait for each other take equally long: the job is not called balanced for that."""
    (verdict,) = judge(bare(0)).verdicts
    assert verdict.kind == "insufficient_data"
    assert verdict.evidence[0].startswith("a step takes 20")


def test_bare_steps_that_one_rank_takes_longer_over_name_it() -> None:
    """Where the others do not wait inside their steps, the longest steps are the slow rank's."""
    (verdict,) = judge(bare(8)).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))


def test_a_stray_file_among_the_segments_is_reported_in_one_line(tmp_path: Path) -> None:
    """It is left out, and the reader knows."""
    store = ParquetStore(tmp_path, single=True)
    store.write_meta("j", {"job_id": "j"})
    store.close()
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "notes.txt").write_bytes(b"\0garbage")
    assert "segments/ holds what is no segment, left out: notes.txt" in read_run(tmp_path).notes


@pytest.mark.parametrize("alone", [5, 30], ids=["a few", "a fifth"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_steps_that_only_one_rank_recorded_hide_no_rank(alone: int, end: str) -> None:
    """Recordings begin and end ragged: where no other rank was seen, a rank's delay is unknown, not zero."""
    run = loads.make(loads.Load(faults=[{"rank": 2, "compute": 3.0}]))
    gpu = {**run.collectives, "start_ns": np.full_like(run.collectives["start_ns"], -1)}
    gpu |= {"flags": np.full_like(gpu["flags"], GPU_TIME)}
    missing = gpu["seq"] < alone if end == "first" else gpu["seq"] >= 150 - alone
    kept = (gpu["rank"] == 2) | ~missing
    terse = only(Run(run.job, ranks=run.ranks, collectives=gpu), collectives=kept)
    verdict = judge(with_job(terse, pace_ns=12e6)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.since_step) == ("straggler", (2,), 0)


@pytest.mark.parametrize(
    ("late_ms", "more_ms", "every", "queued_ms", "reported"),
    [
        # The torch probe spares its time where steps are long on it: what it saw in a tenth of them speaks for all.
        (4.0, 0.0, 10, 4.0, True),
        # Parts are read in typical steps: of those that were sampled, too, though all of them happen to be slower ones.
        (4.0, 2.0, 40, 6.0, True),
        # A fifth of the step in one measured step is no noise, a tenth may be.
        (1.0, 0.0, 100, 1.0, False),
        (4.0, 0.0, 100, 4.0, True),
    ],
)
def test_a_run_queue_that_few_steps_sampled_is_no_short_one(
    late_ms: float, more_ms: float, every: int, queued_ms: float, reported: bool
) -> None:
    faults = [{"rank": 2, "blocked": late_ms}, {"rank": 2, "blocked": more_ms, "every": 40}]
    run = loads.make(loads.Load(kind="torch", faults=faults[: 2 if more_ms else 1]))
    sampled = run.steps["step"] % every == (60 if every == 100 else 3)
    queued = np.where(run.steps["rank"] == 2, int(queued_ms * 1e6), 0)
    clocks = {"cpu_ns": np.where(sampled, 8_000_000, -1), "runqueue_ns": np.where(sampled, queued, -1)}
    verdict = judge(replace(run, steps={**run.steps, **clocks})).verdicts[0]
    assert (verdict.ranks, verdict.cause == "cpu_contention") == ((2,), reported)


@pytest.mark.parametrize("unmarked", [[149], [70, 71], [0, 148, 149]], ids=["last", "middle", "both ends"])
def test_an_unmarked_step_does_not_spread_samples_over_all_steps(unmarked: list[int]) -> None:
    """Of a job that runs the newest step's collectives are there before its mark: samples keep to their steps."""
    run = loads.make(loads.Load(kind="torch"))
    ends = int((run.steps["start_ns"] + run.steps["duration_ns"]).max())
    times = np.linspace(0, ends, 40).astype(np.int64)
    memory = {"name": "hindmost_process_resident_memory_bytes", "labels": '{"job": "made", "rank": "1"}'}
    samples = table("metrics", node="node0", **memory, time_ns=times, value=np.where(times > ends / 2, 2.0, 1.0))
    found = blocks_of(only(replace(run, metrics=samples), steps=~np.isin(run.steps["step"], unmarked)))
    late = np.arange(len(found.steps) * 2 // 3, len(found.steps))
    assert tuple(found.gauge("rss", steps)[1] for steps in (late, late - late[0])) == (2.0, 1.0)


def in_phases(**shown: slice) -> Run:
    """40 steps of 30 ms, 25 ms of them forward on every rank; of ranks named like ``r1`` only these are recorded."""
    rank, step = np.repeat(np.arange(4), 40), np.tile(np.arange(40), 4)
    seen = [np.arange(40)[shown.get(f"r{one}", slice(None))] for one in range(4)]
    held = np.concatenate([np.isin(np.arange(40), one) for one in seen])
    jitter = np.random.default_rng(3).integers(-20_000, 20_000, len(rank))
    columns = {"duration_ns": np.full(len(rank), 30_000_000), "forward_ns": 25_000_000 + jitter}
    part = table("steps", rank=rank, step=step, kind="train", start_ns=step * 30_000_000, **columns)
    return only(made(4, steps=[part], world_size=None), steps=held)


def test_a_step_that_a_rank_did_not_record_is_no_step_of_nothing() -> None:
    """Peers of a rank whose recording begins later are not late for the steps that it lacks."""
    built = blocks_of(in_phases(r2=slice(15, None), r3=slice(15, None)))
    first = np.flatnonzero(built.steps < 15)
    assert np.isnan(built.self_time[2:, first]).all()
    assert np.nanmax(np.abs(built.delay[:2, first])) < 100_000
    assert judge(in_phases(r2=slice(15, None), r3=slice(15, None))).verdicts[0].kind == "balanced"


@pytest.mark.parametrize(("cpu_ms", "kind"), [((29, 5), "insufficient_data"), ((29, 60), "balanced")])
def test_phases_in_which_a_rank_did_nothing_clear_no_rank(cpu_ms: tuple[int, int], kind: str) -> None:
    """Steps and their phases alike long, but rank 1 used 5 ms of CPU in 30: it may have waited inside its forward."""
    run = in_phases()
    used = np.where(run.steps["rank"] == 1, cpu_ms[1], cpu_ms[0]) * 1_000_000
    phases = {"forward_ns": run.steps["forward_ns"] + 9_000_000, "cpu_ns": np.where(run.steps["step"] % 4, -1, used)}
    (verdict,) = judge(replace(run, steps=run.steps | phases)).verdicts
    assert verdict.kind == kind


def test_input_of_all_ranks_is_no_wait_for_another() -> None:
    """A rank that waits for its input uses no CPU either, and no other rank takes part in that."""
    run = in_phases()
    phases = {"input_ns": np.full(160, 9_000_000), "cpu_ns": np.full(160, 20_000_000)}
    assert judge(replace(run, steps=run.steps | phases)).verdicts[0].kind != "insufficient_data"


def test_a_job_whose_phases_say_little_learns_what_to_mark() -> None:
    """It was recorded whole already: hindmost does not know what it computes in a step."""
    run = in_phases()
    bare = replace(run, steps=run.steps | {"forward_ns": np.full(160, 300_000)})
    assert judge(bare).verdicts[0].advice == ('write `with hindmost.phase("forward"):` around what it computes',)


def test_ranks_that_share_no_step_are_not_compared() -> None:
    """Each recorded ten steps of its own: nothing tells whose are longer."""
    apart = {f"r{one}": slice(10 * one, 10 * one + 10) for one in range(4)}
    (verdict,) = judge(in_phases(**apart)).verdicts
    assert verdict.kind == "insufficient_data"
    assert "no step, no collective that repeats on two of them" in verdict.evidence[0]


def test_a_master_and_its_workers_are_said_to_be_that() -> None:
    """A task farm has no step that could be marked."""
    run, rank = in_phases(), np.repeat(np.arange(4), 2)
    waits = np.where(rank == 0, 49_000_000, 1_000_000)
    begun = np.tile([0, 50_000_000], 4)
    calls = table("collectives", rank=rank, comm=0, seq=range(8), start_ns=begun, duration_ns=waits)
    farm = with_job(replace(run, steps=empty(STEPS), collectives=calls), ended_ns=10**12)
    (verdict,) = judge(farm).verdicts
    said = "; rank 0 waits in calls for 99 % of the time, as a master does; ranks 1 to 3 work"
    assert verdict.evidence[0].endswith(said)
    assert "compare the workers" in verdict.advice[0]


@pytest.mark.parametrize(
    ("ended", "why", "do"),
    [
        (None, "4 ranks, no step yet", "wait for the first 10 steps; if none come, "),
        (10**12, "4 ranks, but no step", ""),
    ],
)
def test_a_job_that_starts_is_asked_for_patience_before_marks(ended: int | None, why: str, do: str) -> None:
    """Of one that is over no step will come."""
    (verdict,) = judge(with_job(replace(in_phases(), steps=empty(STEPS)), ended_ns=ended)).verdicts
    assert verdict.evidence[0].startswith(why)
    assert verdict.advice[0].startswith(f"{do}write `for batch in hindmost.steps(loader):`")


def without_steps(job: Run, pattern: bool) -> Run:
    """The job's collectives alone; of sizes that never come again in one order, as where many were missed."""
    columns = dict(job.collectives)
    sizes = np.random.default_rng(1).integers(0, 50, int(columns["seq"].max()) + 1)
    if not pattern:
        columns["bytes"] = sizes[columns["seq"]]
    columns["step"] = np.full(len(columns["rank"]), -1)
    return replace(job, collectives=columns, steps=empty(STEPS), metrics=empty(METRICS))


def test_collectives_without_a_pattern_tell_who_came_last_and_name_no_rank() -> None:
    """The report says what was seen: it did repeat on all ranks, and no step can be recognised."""
    job = simulate(Scenario(4, 60, faults=(Fault("compute", (2,), 0.2),))).run
    assert judge(without_steps(job, pattern=True)).verdicts[0].ranks == (2,)
    (verdict,) = judge(without_steps(job, pattern=False)).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
    assert verdict.evidence[0].endswith("collectives of 4 ranks, in no regular pattern: where a step ends is not known")
    assert verdict.evidence[1].startswith("rank 2 is last in ")


def test_a_job_without_a_pattern_that_failed_says_that_it_failed() -> None:
    """What ended it is worth more than what repeats in it."""
    run = without_steps(simulate(Scenario(4, 60)).run, pattern=False)
    (verdict,) = judge(with_job(run, exit_code=1)).verdicts
    assert "before the job failed" in verdict.evidence[0]
    assert verdict.advice == ("read the job's own output",)


def test_no_rank_came_last_where_that_was_now_one_and_now_another() -> None:
    """An even job without a pattern has no such sentence."""
    (verdict,) = judge(without_steps(simulate(Scenario(8, 60)).run, pattern=False)).verdicts
    assert (verdict.kind, len(verdict.evidence)) == ("insufficient_data", 1)


def test_a_gap_in_the_recording_is_no_step() -> None:
    """Of a segment that is torn no collective is left: the time until the next one is not the length of a step."""
    run = simulate(Scenario(4, 60, faults=(Fault("compute", (2,), 0.2),))).run
    whole, lost = judge(run), (run.collectives["step"] >= 20) & (run.collectives["step"] < 35)
    torn = judge(only(run, collectives=~lost))
    assert torn.job.step_ms["mean"] == pytest.approx(whole.job.step_ms["mean"], rel=0.02)
    assert torn.verdicts[0].cost_ratio == pytest.approx(whole.verdicts[0].cost_ratio, rel=0.05)


LAUNCHED = 100


def of(*, gathers: bool = False, starts: bool = False, unsure: float | None = None) -> Any:
    """As much as is looked at of the blocks of three ranks; rank 1 is late by 10, and its host ``unsure``."""
    start = np.full((3, LAUNCHED), 5.0 if starts else np.nan)
    joined = SimpleNamespace(gpu_time=True, start=start, gathers=np.full(LAUNCHED, gathers))
    doubt = None if unsure is None else np.array([0.0, unsure, 0.0])
    delay = np.repeat([[0.0], [10.0], [0.0]], LAUNCHED, axis=1)
    return SimpleNamespace(joined=joined, steps=np.arange(LAUNCHED), ranks=np.arange(3), unsure=doubt, delay=delay)


def late(rank: int, since: int = 0, until: int | None = None, *, kind: str = "straggler") -> Verdict:
    return Verdict(kind=kind, ranks=(rank,), since_step=since, until_step=until, cause="unknown")


#: So do hosts that set the pace, whichever of them has no lead: rank 0 until step 60, rank 1 from there on.
IN_TURN = [late(0, 0, 60), late(1, 61)]
LINK = Verdict(kind="slow_link")
PAUSING = [late(1, 0, 60), late(1, 74)]


@pytest.mark.parametrize(
    ("found", "seen", "left"),
    [
        pytest.param([late(0, 23), late(1, 0, 27)], {}, None, id="it took over from another"),
        pytest.param([late(2, 30, 39)], {}, None, id="ten steps of a hundred"),
        pytest.param([late(2, 28, 68)], {"gathers": True}, None, id="for a while, where parameters are gathered"),
        pytest.param([late(2, 8)], {"gathers": True}, [late(2, 8)], id="from step 8 on, where parameters are gathered"),
        pytest.param([late(2, 28, 68)], {}, [late(2, 28, 68)], id="for a while, where hosts launch little"),
        pytest.param([late(0), late(1, 30, 50)], {}, [late(0)], id="throughout, whatever another does for a while"),
        pytest.param([late(0), late(1, 0, kind="intermittent")], {}, [late(0)], id="throughout, another now and then"),
        pytest.param([late(0), late(2)], {}, [late(0), late(2)], id="two throughout"),
        pytest.param(IN_TURN, {"starts": True}, IN_TURN, id="in turn, and their launches were seen"),
        pytest.param(IN_TURN, {"starts": True, "unsure": 0.0}, IN_TURN, id="in turn, and nothing is unsure"),
        pytest.param(
            [late(1, 30, 50)], {"starts": True, "gathers": True, "unsure": 7.0}, None, id="its host marked nothing"
        ),
        pytest.param([late(1, 0, 20)], {"starts": True, "unsure": 4.0}, [late(1, 0, 20)], id="its host was slower"),
        pytest.param([late(1, 0, 20)], {"starts": True, "unsure": 6.0}, None, id="by no more than hosts differ by"),
        pytest.param(PAUSING, {"gathers": True}, PAUSING, id="in 87 of 100 steps, with a pause"),
        pytest.param([*PAUSING, late(2, 30, 50)], {}, PAUSING, id="with a pause, and another for a while"),
        pytest.param([*IN_TURN, LINK], {}, [LINK], id="a slow link is certain, ranks in turn are not"),
    ],
)
def test_no_rank_is_named_that_may_have_lost_a_lead(
    found: list[Verdict], seen: dict[str, Any], left: list[Verdict] | None
) -> None:
    """No lead lasts for all of a run; where launches were not seen, a rank late for a while may only have lost one."""
    after = without_lost_leads(found, of(**seen))
    assert (
        after == left if left is not None else [(one.kind, one.ranks) for one in after] == [("insufficient_data", ())]
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (IN_TURN, "ranks are late in turn: rank 0 from step 0 to 60; rank 1 from step 61 on"),
        ([late(2, 28, 68)], "one rank is late in a part of the steps: rank 2 from step 28 to 68"),
    ],
)
def test_ranks_that_may_have_lost_a_lead_are_listed(found: list[Verdict], said: str) -> None:
    (verdict,) = without_lost_leads(found, of(gathers=True))
    assert verdict.evidence[0] == said


STEPS_EACH = 60


def _logged(forward: list[float], backward: float = 20.0, groups: list[list[int]] | None = None) -> Run:
    """Ranks with these forward times, ms, that end backward together; ``groups`` have untimed collectives."""
    count = len(forward)
    noise = np.random.default_rng(1).normal(0, 0.03, (count, STEPS_EACH))
    ahead = np.array(forward)[:, None] + noise
    behind = ahead.max(axis=0) - ahead + backward
    took = ahead + behind + 1.0
    phases = {"input_ns": 0.1, "gpu_forward_ns": ahead, "gpu_backward_ns": behind, "gpu_optimizer_ns": 1.0}
    steps = rows_of("steps", kind="train", start_ns=np.cumsum(took, axis=1) - took, duration_ns=took, **phases)
    members = np.array([(comm, rank) for comm, group in enumerate(groups or [], 1) for rank in group]).reshape(-1, 2)
    comm, member = members.T
    return replace(
        made(count, steps=[steps], source="a log"),
        communicators=table("communicators", comm=comm, rank=member),
        collectives=table("collectives", comm=comm, rank=member, op="all_reduce"),
    )


@pytest.mark.parametrize(
    ("forward", "groups", "slow"),
    [
        # Ranks that share a model take equally long: a single longer one is slow itself.
        ([8.0, 8.0, 8.0, 11.0], None, (3,)),
        # A rank that waits takes as long as the one it waits for: unequal ranks are both slow.
        ([8.0, 8.0, 10.0, 16.0], None, (2, 3)),
        # No part of a model has a communicator of its own: no rank waits in forward for some of the others only.
        ([8.0, 8.0, 11.0, 11.0], [[0, 1, 2, 3]], (2, 3)),
    ],
)
def test_ranks_of_longer_forwards_are_named(
    forward: list[float], groups: list[list[int]] | None, slow: tuple[int, ...]
) -> None:
    assert [found[:2] for found in named(_logged(forward, groups=groups))] == [("straggler", slow)]


@pytest.mark.parametrize(("second", "groups"), [(10.6, None), (13.0, None), (11.0, [[0, 1, 2, 3], [0, 1], [2, 3]])])
def test_two_ranks_of_forwards_as_long_are_not_named(second: float, groups: list[list[int]] | None) -> None:
    """One may only look slow, because it waits for the other in forward."""
    (verdict,) = judge(_logged([8.0, 8.0, 11.0, second], groups=groups)).verdicts
    assert verdict.kind == "insufficient_data"
    assert "ranks 2 and 3 take up to" in verdict.evidence[1]


def test_a_forward_is_no_measure_where_steps_are_mostly_waiting() -> None:
    """All ranks, the late one too, are in backward for ten times as long as in forward: others' launches, or stages."""
    (verdict,) = judge(_logged([2.0, 2.0, 2.0, 4.0], backward=20.0)).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())


def test_no_rank_is_cleared_by_a_log_of_the_steps_alone() -> None:
    """All ranks wait for one that is slow in backward, and all take as long over it."""
    (verdict,) = judge(_logged([8.0, 8.0, 8.0, 8.0])).verdicts
    assert verdict.kind == "insufficient_data"
    assert "backward, 69 % of a step of 29.0 ms" in verdict.evidence[0]


@pytest.mark.parametrize(
    ("lost", "kind", "sure"),
    [(0, "balanced", 0.91), (12_000, "balanced", 0.8), (54_465, "insufficient_data", None)],
)
def test_what_was_overwritten_unread_clears_no_rank(lost: int, kind: str, sure: float | None) -> None:
    """The verdict is as sure as events were read; of a rank most of whose events were lost, nothing is known."""
    run = loads.make(loads.Load(ranks=4, steps=150))
    states = [(rank, 10**9, RUNNING, 60_000, lost * (rank == 2), -1, -1, "") for rank in range(4)]
    report = judge(replace(run, rank_states=from_rows("rank_states", states)))
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.confidence) == (kind, pytest.approx(sure, abs=0.01) if sure else None)
    seen = f"{lost:,} of 60,000 events of rank 2 ({lost / 600:.0f} %) were overwritten before the agent read them"
    assert any(seen in line for line in (*verdict.evidence, *report.notes)) == (lost > 0)
    assert any("HINDMOST_RING_CAPACITY" in line for line in (*verdict.advice, *report.notes)) == (lost > 0)


def test_a_slow_rank_is_named_by_what_was_read_of_it() -> None:
    """And less surely, as more of it was lost."""
    run = loads.make(loads.Load(ranks=4, steps=150, faults=[{"rank": 1, "compute": 5.0}]))
    states = [(rank, 10**9, RUNNING, 1000, 400, -1, -1, "") for rank in range(4)]
    (verdict,) = judge(replace(run, rank_states=from_rows("rank_states", states))).verdicts
    assert (verdict.kind, verdict.ranks, verdict.confidence) == ("straggler", (1,), pytest.approx(0.6))


@pytest.mark.parametrize(("ran", "spun", "sure"), [(0.9, 1.0, False), (1.0, 1.0, True), (0.9, 0.9, True)])
def test_a_rank_that_neither_runs_nor_queues_while_others_poll_is_not_cleared(
    ran: float, spun: float, sure: bool
) -> None:
    """It is stopped in collectives as well, where all ranks leave late alike; sleepers show nothing."""
    shares = (("cpu_seconds", 0.4), ("runqueue_seconds", 0.6))
    rows = [row for name, of in shares for row in loads.counters(name, {0: of * spun, 1: of * ran}, range(6))]
    run = loads.make(loads.Load(ranks=2, transfer=6.0))
    (found,) = judge(replace(run, metrics=loads.metrics(rows))).verdicts
    assert (found.kind == "balanced") == sure
    assert sure or found.evidence[0].startswith("rank 1 neither ran nor waited for a CPU for 10 % of the time")
