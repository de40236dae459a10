"""Tables under a verdict: what their numbers are, what is in no phase, and nothing where there are none."""

import re
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.page import document
from hindmost_collector.recordings.load import load
from hindmost_collector.report import brief, columns, csv, machine_tables, markdown, text, verdict_lines
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import PHASES
from hindmost_judge.timeline.phases import unnamed
from hindmost_judge.verdict.wording import ALONE, OTHERS_USE, STOP_OTHERS

from tests.pages import inside
from tests.recordings import OURS
from tests.scenarios import loads

HANG: dict[str, Any] = {
    "kind": "hang",
    "ranks": [1],
    "victims": [0],
    "cause": "unknown",
    "since_step": 60,
    "until_step": None,
    "confidence": 0.99,
    "evidence": ["1 rank waited"],
    "advice": [],
}


def report(**row: Any) -> dict[str, Any]:
    blank = {"rank": 0, "node": "n", "step_ms": None, "self_ms": None, "wait_ms": None, "caused_wait_ms": None}
    return {
        "job": {
            "id": "j",
            "command": "x",
            "world_size": 2,
            "nodes": 1,
            "steps": 0,
            "step_ms": {"p50": None, "p99": None},
        },
        "verdicts": [],
        "ranks": [blank | {"rank": rank} | row for rank in range(2)],
        "what_if": {},
        "notes": [],
    }


def test_no_table_is_drawn_of_rank_numbers_alone() -> None:
    """Ranks of which nothing was measured make no table and no caption."""
    shown = text.render(report())
    assert "ms per step" not in shown
    assert not any(line.strip() == "rank" for line in shown.splitlines())


def test_the_caption_says_that_the_table_begins_before_a_verdict_does() -> None:
    """A verdict since step 27 has numbers of its own, which the medians of all steps do not repeat."""
    late = report(step_ms=2.0) | {"verdicts": [{"kind": "straggler", "since_step": 27, "cost_ms_per_step": 0.5}]}
    shown = columns.caption(["rank", "input"], late)
    assert shown == "ms per step, medians after warm-up, also before step 27"


def test_the_length_of_a_step_is_in_the_title_and_no_column_of_one_number() -> None:
    """The mean, and the median where that is another; ranks that differ in it have their own, under its name."""
    alike = report(step_ms=2.0, self_ms=1.0, phases_ms={})
    alike["job"] |= {"steps": 10, "step_ms": {"p50": 2.0, "mean": 2.5, "p99": 3.0}}
    assert text.render(alike).splitlines()[0].endswith("10 steps, mean 2.5 ms, median 2.0 ms")
    assert columns.table(alike["ranks"])[0] == ["rank", "self time"]
    differing = [row | {"step_ms": 2.0 + row["rank"]} for row in alike["ranks"]]
    assert columns.table(differing)[0] == ["rank", "median step", "self time"]
    assert csv.render(alike).splitlines()[0].split(",")[3] == "median_step_ms"


def test_a_job_that_stopped_is_limited_by_nothing_else() -> None:
    """What the steps before waited for is in no format the limit of a job that hangs."""
    found = report(self_ms=1.0) | {"verdicts": [HANG]}
    found["job"]["bound"] = {"by": "cpu", "evidence": "the typical rank waits for a CPU 56 % of the time"}
    assert "LIMITED BY" not in text.render(found, explain=True)
    assert brief.of(found)["bound"] is None
    assert inside(document.of_report(found))["report"]["bound"] == ""


@pytest.mark.parametrize("first", [[], [{"kind": "input_bound", "ranks": [], "cost_ms_per_step": 99.0}]])
@pytest.mark.parametrize(("cost", "explained"), [(20.0, True), (96.0, False)])
def test_the_caption_reconciles_caused_wait_with_cost(cost: float, explained: bool, first: list[Any]) -> None:
    """By both figures, where they differ: without the fault ranks still wait for the next one."""
    slow = {"kind": "straggler", "ranks": [1], "cost_ms_per_step": cost}
    shown = columns.caption(["rank", "caused wait"], report(caused_wait_ms=100.0) | {"verdicts": [*first, slow]})
    assert (
        "COST is 20.0 of the 100.0 ms that others wait for rank 1. The rest overlaps computing" in shown
    ) == explained


@pytest.mark.parametrize(("caused", "wait", "a_part"), [(35.6, 30.0, False), (9.0, 30.0, True)])
def test_the_caption_is_of_the_steps_of_the_fault(caused: float, wait: float, a_part: bool) -> None:
    """A rank that is slow in few steps causes most of the wait in these, and little of that in the whole run."""
    slow = {"kind": "straggler", "ranks": [1], "cost_ms_per_step": 20.0, "since_step": 150}
    of = {"since_step": 150, "until_step": None}
    fault = [of | {"measure": name, "rank": 1, "ms": ms} for name, ms in (("caused wait", caused), ("wait", wait))]
    found = report(caused_wait_ms=0.2, wait_ms=9.0) | {"verdicts": [slow], "sections": {"phases": {"fault": fault}}}
    shown = columns.caption(["rank", "caused wait", "caused wait since 150"], found)
    assert ("the part of the others' wait that" in shown) == a_part
    assert ("COST is 20.0 of the 35.6 ms that others wait for rank 1" in shown) != a_part


@pytest.mark.parametrize(("cost", "since", "explained"), [(5.6, 0, True), (5.0, 0, False), (199.0, 300, False)])
def test_the_caption_says_that_cost_counts_delays_outside_collectives(cost: float, since: int, explained: bool) -> None:
    """A rank that neighbours wait for in messages costs more than the waits in collectives, which the column has."""
    slow = {"kind": "straggler", "ranks": [1], "cost_ms_per_step": cost, "since_step": since}
    shown = columns.caption(["rank", "caused wait"], report(caused_wait_ms=5.0) | {"verdicts": [slow]})
    assert ("steps are also longer outside of these" in shown) == explained
    of_all = columns.caption(["rank", "caused wait"], report(caused_wait_ms=5.0) | {"verdicts": [slow | {"ranks": []}]})
    assert "outside of these" not in of_all


def test_of_a_wide_table_what_takes_least_goes_first() -> None:
    """Ranks that are in transfers for most of the step show it at 80 columns, before phases of 1 ms."""
    phases = dict.fromkeys(("input", "h2d", "forward", "backward", "optimizer", "checkpoint", "gc"), 1.0)
    found = report(phases_ms=phases, step_ms=40.0, self_ms=7.0, wait_ms=0.1, transfer_ms=30.0, caused_wait_ms=0.1)
    titles, _ = columns.table(found["ranks"], 60)
    assert "transfer" in titles
    assert "forward" not in titles


@pytest.mark.parametrize("cause", ["compute", "input", "runqueue", "blocked"])
def test_the_figure_that_decided_stands_in_the_table_under_its_name(cause: str) -> None:
    """Of the rank that is named, at 80 columns."""
    found = judge(loads.make(loads.Load(ranks=4, steps=200, compute=10.0, faults=[{"rank": 1, cause: 3.0}]))).to_dict()
    said = re.match(r"(.+?): rank 1 ([\d.]+) ms, others", found["verdicts"][0]["evidence"][0])
    assert said is not None
    label, figure = said.groups()
    titles, cells = columns.table(found["ranks"], 80, columns.deciding(found))
    (title,) = [title for title in titles if f"{label} ".startswith(f"{title} ")]
    assert cells[1][titles.index(title)] == figure


@pytest.mark.parametrize("long", [0, 1])
def test_the_input_that_limits_a_job_is_that_of_the_table(long: int) -> None:
    """COST and WHY are means over all steps; ranks' rows are medians. A long input makes these differ."""
    waits = [{"rank": rank, "input": 20.0} for rank in range(4)]
    waits += [{"rank": rank, "input": 60.0, "from": 30, "until": 31} for rank in range(4 * long)]
    found = judge(loads.make(loads.Load(kind="torch", ranks=4, steps=60, faults=waits))).to_dict()
    said = re.match(
        r"the typical rank waits ([\d.]+) ms of ([\d.]+) ms per step for input", found["verdicts"][0]["evidence"][0]
    )
    assert said is not None
    rows = found["ranks"]
    assert float(said[1]) - long == pytest.approx(np.median([row["phases_ms"]["input"] for row in rows]), abs=0.1)
    assert float(said[2]) == pytest.approx(found["job"]["step_ms"]["mean"], abs=0.6)


@pytest.mark.parametrize("onset", [0, 60])
def test_a_verdict_says_at_what_time_it_began(onset: int) -> None:
    """Of a recording by the wall's clock, in the reader's time zone; not where it held from the first step on."""
    run = simulate(Scenario(4, 120, faults=(Fault("compute", (2,), 0.3, onset),))).run
    began = run.collectives["start_ns"][run.collectives["step"] == onset].min() / 1e9
    run = replace(run, job=replace(run.job, started_ns=int(run.collectives["start_ns"].min())))
    (slow,) = verdict_lines.rendered(judge(run).to_dict())
    when = f" ({datetime.fromtimestamp(began, timezone.utc).astimezone():%b %d %H:%M})" if onset else ""
    assert slow.what.endswith(f"since step {onset}{when}")


def test_what_to_do_has_an_order() -> None:
    """About the costliest verdict first."""
    faults = (Fault("compute", (3,), 0.2), Fault("input", (5,), 0.3, 60))
    shown = text.render(judge(simulate(Scenario(8, 120, faults=faults)).run).to_dict())
    assert re.findall(r"^(DO|THEN) ", shown, re.MULTILINE) == ["DO", "THEN"]


def test_the_head_of_a_job_limited_by_its_hosts_says_by_what() -> None:
    """By launches of kernels, where no other cause is known."""
    limited = {"kind": "host_bound", "ranks": (), "since_step": 0}
    found = [verdict_lines.of_verdict({**limited, "cause": cause}).sentence for cause in (None, "gc")]
    assert found == ["LIMITED BY CPUs: GPUs wait for kernel launches", "LIMITED BY CPUs: garbage collection"]


def test_advice_is_given_once() -> None:
    """A rank that was slow in two periods is to be looked at once; what another verdict advises stays."""
    slow = {"kind": "straggler", "cause": "compute", "ranks": [1], "advice": ["look at rank 1"]}
    other = slow | {"ranks": [0], "advice": ["look at rank 1", "look at rank 0"]}
    found = verdict_lines.rendered(report() | {"verdicts": [slow, {**slow, "since_step": 40}, other]})
    assert [one.do for one in found] == [("look at rank 1",), (), ("look at rank 0",)]


@pytest.mark.parametrize(
    ("until", "do"), [(40, ("this is over. If it comes back:", "look at rank 1")), (None, ("look at rank 1",))]
)
def test_advice_on_what_is_over_says_so(until: int | None, do: tuple[str, ...]) -> None:
    """A rank that is well again needs nothing done now."""
    slow = {"kind": "straggler", "cause": "compute", "ranks": [1], "advice": ["look at rank 1"], "until_step": until}
    (found,) = verdict_lines.rendered(report() | {"verdicts": [slow | {"since_step": 3}]})
    assert found.do == do


@pytest.mark.parametrize(
    ("share", "used", "first"),
    [(0.03, "Ranks use", "LIMITED BY"), (0.4, "Ranks use", "SLOW"), (0.03, OTHERS_USE, "SLOW")],
)
def test_what_takes_most_of_the_step_stands_first(share: float, used: str, first: str) -> None:
    """A rank that costs 3 % is no headline where ranks wait for each other's CPUs in 85 % of the time: in text and on
    the page. What other processes take is nothing that the job can change, and comes after it."""
    slow = {"kind": "straggler", "cause": "compute", "ranks": [1], "cost_ratio": share, "cost_ms_per_step": share}
    found = report() | {"verdicts": [slow]}
    waits = f"the typical rank waits for a CPU 85 % of the time. {used} 1.6 of the 2 CPUs of n"
    found["job"]["bound"] = {"by": "cpu", "evidence": waits}
    assert inside(document.of_report(found))["report"]["bound_first"] is (first == "LIMITED BY")
    lines = text.render(found).splitlines()
    assert lines[1].startswith(first)
    assert sum(line.startswith(("SLOW", "LIMITED BY")) for line in lines) == 2


@pytest.mark.parametrize(("ranks", "by", "kind"), [(1, "compute", "insufficient_data"), (2, "cpu", "balanced")])
def test_what_limits_a_job_is_first_where_no_rank_is_compared_or_slow(ranks: int, by: str, kind: str) -> None:
    """One rank has no other to compare it with; of ranks that share too few CPUs that none is slow is no news."""
    found = report() | {"verdicts": [{"kind": kind, "ranks": [], "evidence": [ALONE], "confidence": 0.9}]}
    found["ranks"] = found["ranks"][:ranks]
    found["job"]["bound"] = {"by": by, "evidence": "so it is"}
    lines = text.render(found).splitlines()
    assert lines[1].startswith("LIMITED BY")
    assert not any(line.startswith("UNSURE") for line in lines)


def test_how_long_ranks_wait_for_a_cpu_stands_in_the_table() -> None:
    """Where that limits the job: the figure of the line is each rank's, under the same words."""
    found = report()
    found["job"]["bound"] = {"by": "cpu", "evidence": "the typical rank waits for a CPU 93 % of the time"}
    for row in found["ranks"]:
        row |= {"runqueue_ratio": 0.93, "cpu_ratio": 0.1, "self_ms": 9.0, "phases_ms": {"self_runqueue": 8.0}}
    titles, cells = columns.table(found["ranks"], 80, columns.deciding(found))
    assert cells[0][titles.index("waits for a CPU")] == "93 %"
    assert cells[0][titles.index("CPU queue")] == "8.0"


def test_two_causes_at_once_have_both_columns() -> None:
    """At 80 columns; off the CPU, where nothing is known of a cause, is neither."""
    slow = {"kind": "straggler", "cause": "unknown", "partial": "compute", "ranks": [1], "since_step": 0}
    found = report() | {"verdicts": [slow | {"causes": ["cpu_contention", "compute"]}]}
    for row in found["ranks"]:
        row["phases_ms"] = {"self_cpu": 2.0, "self_runqueue": 8.0, "self_blocked": 0.1}
    titles, _ = columns.table(found["ranks"], 80, columns.deciding(found))
    assert {"CPU time", "CPU queue"} <= {*titles}
    assert "off CPU" not in titles


def test_commands_have_the_path_of_the_recording() -> None:
    """In text, in Markdown and on the page: a reader at another machine has no RUN and no PATH."""
    advised = {"kind": "insufficient_data", "ranks": [], "evidence": ["a", "b"], "advice": ["`hindmost report RUN`"]}
    found = report() | {"verdicts": [advised]}
    for shown in (text.render(found, path="'my run'"), markdown.render(found, path="'my run'")):
        assert "`hindmost report 'my run'`" in shown
        assert "all evidence: hindmost report 'my run' --explain" in shown
    shown = text.render(found, path="run", program="bin/hindmost")
    assert "`bin/hindmost report run`" in shown
    assert "all evidence: bin/hindmost report run --explain" in shown
    page = inside(document.of_report(found, path="'my run'"))["report"]
    assert (page["path"], page["rendered"][0]["do"]) == ("'my run'", ["`hindmost report 'my run'`"])


def test_what_to_do_about_the_limit_is_not_said_twice() -> None:
    """Where the verdict advises it already."""
    unsure = {"kind": "insufficient_data", "ranks": [], "evidence": ["a"], "advice": [f"{STOP_OTHERS}; then see"]}
    found = report() | {"verdicts": [unsure]}
    found["job"]["bound"] = {"by": "cpu", "evidence": f"waits. {OTHERS_USE} 1.6 of the 2 CPUs of n, ranks 0.3"}
    assert text.render(found, width=200).count("stop the other processes") == 1


def test_a_report_without_verdicts_is_read() -> None:
    """Another program may have written it: what limits the job is the news then."""
    assert columns.limits_more(report() | {"verdicts": [], "job": {"bound": {"by": "cpu", "evidence": ""}}})


@pytest.mark.parametrize(("size", "every", "first"), [(0.35, 12, "SLOW"), (0.2, 7, "LIMITED")])
def test_checkpoints_stand_before_what_costs_less(size: float, every: int, first: str) -> None:
    """Whichever of the two takes more of the step is reported first."""
    job = Scenario(2, 150, 3, step_ms=100.0, checkpoint_every=every, faults=(Fault("compute", (1,), size),))
    assert text.render(judge(simulate(job).run).to_dict()).splitlines()[1].split()[0] == first


def test_a_fault_that_comes_again_is_one_verdict() -> None:
    """Its other steps and their costs stand with it; costs of different steps may be added."""
    slow = {"kind": "straggler", "cause": "compute", "ranks": [1], "cost_ms_per_step": 4.0, "cost_ratio": 0.4}
    since = [{"since_step": 60, "until_step": None}, {"since_step": 20, "until_step": 40}]
    found = report() | {"verdicts": [slow | steps for steps in since]}
    (one,) = verdict_lines.in_short(found)
    assert one.what == "rank 1 on n: computing, since step 60"
    assert one.also == "steps 20 to 40: 4.0 of 10.0 ms"
    assert not verdict_lines.overlap(found)
    assert verdict_lines.overlap(report() | {"verdicts": [slow | since[0], slow | since[0] | {"ranks": [0]}]})


def test_no_line_breaks_between_a_number_and_its_unit() -> None:
    """In title, notes and captions, however wide the page is."""
    long = report(step_ms=2.0) | {"notes": ["it waited 12.5 ms of 90.0 s, read 3.2 GiB/s and lost 4.1 % of it"]}
    long["job"] |= {"duration_s": 90.0, "steps": 100, "step_ms": {"p50": 2.0, "mean": 2.5, "p99": 3.0}}
    for width in range(60, 100):
        lines = text.render(long, width).partition("\nms per step")[0].splitlines()
        starts = [line.split()[0] for line in lines if line.strip()]
        assert not {"ms", "s", "GiB/s", "%"} & set(starts), width


def test_gpus_have_their_ranks_where_only_their_node_saw_these() -> None:
    """Ranks that did not say which GPU is theirs are in the table of GPUs all the same, with clocks and power."""
    gpus = machine_tables.of_run(load(OURS / "ddp-observed-late-hosts.tar.xz"))["gpus"]
    assert sorted(gpus["ranks"]) == [[0], [1], [2], [3]]
    assert {"clock", "power", "busy"} <= {column["name"] for column in gpus["columns"]}


MS = 1_000_000


def unnamed_ms(duration: float, **phases: float) -> float:
    """ms of one step in no phase."""
    found = unnamed({name: np.array([ms]) for name, ms in phases.items()}, np.array([duration]))
    assert found is not None
    return float(found[0])


HOST = {"input": 2.0, "forward": 3.0, "backward": 4.0, "sync": 1.0, "optimizer": 5.0, "checkpoint": float("nan")}
#: A copy outside the GPU's phases is inside forward on steps whose GPU was timed; one that the loop marks is a phase.
COPY = {"input": 2.0, "forward": 3.0, "h2d": 1.0, "optimizer": 5.0}


@pytest.mark.parametrize(
    ("duration", "phases", "left"),
    [
        (20.0, HOST, 5.0),
        (20.0, {**HOST, "cpu": 18.0, "runqueue": 1.0, "negotiation": 1.0, "gpu_backward": 7.0}, 5.0),
        (14.9, HOST, 0.0),
        (20.0, COPY, 9.0),
        (20.0, {**COPY, "gpu_forward": 3.0}, 10.0),
        (20.0, {**COPY, "gpu_forward": -1.0}, 9.0),
    ],
)
def test_it_is_what_phases_of_the_host_leave_of_a_step(duration: float, phases: dict[str, float], left: float) -> None:
    """GPU times, CPU time and negotiation are no part of the host's phases; what is unmeasured counts nothing."""
    assert unnamed_ms(duration, **phases) == left


def test_of_a_step_without_known_phases_it_is_unknown() -> None:
    """A loop of which only some phases are seen has no rest: missing, not everything."""
    assert unnamed({"input": np.array([2.0])}, np.array([20.0])) is None
    assert np.isnan(unnamed_ms(20.0, input=2.0, optimizer=float("nan")))
    assert np.isnan(unnamed_ms(20.0, input=2.0, optimizer=-1.0))


def test_counters_have_it() -> None:
    """Of the rank whose optimizer was seen; the other has none."""
    words, job = Words(), LiveJob("j", 0)
    table: dict[str, Any] = {f"{name}_ns": np.full(4, -1) for name in PHASES}
    table |= {
        "rank": np.array([0, 0, 1, 1], dtype=np.int32),
        "step": np.array([0, 1, 0, 1]),
        "kind": np.full(4, words.code("train"), dtype=np.int32),
        "start_ns": np.arange(4) * 20 * MS,
        "duration_ns": np.full(4, 20 * MS),
        "work": np.full(4, -1),
        "forward_ns": np.full(4, 6 * MS),
        "optimizer_ns": np.array([4 * MS, 4 * MS, -1, -1]),
    }
    job.add(Chunk({"steps": table}, {}, [], []), words, Definitions(), 1)
    counters = dict(job.counters())
    np.testing.assert_allclose(counters["phase:other"], [0.02, np.nan])


def test_the_table_shows_it_where_it_is_large() -> None:
    """From 2 % of a step on, as any phase."""
    row = {"rank": 0, "node": "n", "step_ms": 100.0, "self_ms": None, "wait_ms": None, "caused_wait_ms": None}
    for rest, shown in ((1.9, False), (12.0, True)):
        titles, cells = columns.table([row | {"phases_ms": {"forward": 60.0, "other": rest}}])
        assert ("other" in titles) is shown
    assert cells[0][titles.index("other")] == "12.0"


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.001, "0.00"), (0.001, "0.00"), (-0.02, "-0.02"), (-3.0, "-3.0"), (0.0, "0.0")]
)
def test_a_number_that_is_nothing_has_no_sign(value: float, shown: str) -> None:
    """A change of -0.00 ms is none."""
    assert columns.number(value) == shown


def test_brief_speaks_of_no_line_that_it_lacks() -> None:
    """Text has a COST line above what limits the job; the JSON of brief has none."""
    slow = {"kind": "straggler", "cause": "compute", "ranks": [1], "cost_ratio": 0.1, "cost_ms_per_step": 0.1}
    found = report() | {"verdicts": [slow | {"since_step": 0, "confidence": 0.9, "evidence": [], "advice": []}]}
    found["job"]["bound"] = {"by": "gpu_compute", "evidence": "SMs active 92 % of the time"}
    assert columns.bound(found).startswith("GPU computing, apart from the fault: ")
    assert brief.of(found)["bound"].startswith("GPU computing")
