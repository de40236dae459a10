"""How bench/gpu/live_faults.py grades what a running job's verdicts said of a fault that was put into it."""

from typing import Any

import fault_cases
import fault_effect
import fault_grade
import host_paced
import numpy as np
import pytest

MS = 1_000_000


def a_case(name: str, ranks: int = 2) -> Any:
    return fault_cases.placed(next(case for case in fault_cases.CASES if case.name == name), ranks)


def verdict(kind: str, ranks: list[int], **more: Any) -> dict[str, Any]:
    return {"kind": kind, "ranks": ranks, "cause": None, "since_step": None, "until_step": None, "evidence": []} | more


def steps_of(*lengths_ms: int) -> list[tuple[int, int]]:
    """A log of steps that took so long each."""
    return [(step, sum(lengths_ms[: step + 1]) * MS) for step in range(len(lengths_ms))]


def test_a_fault_s_effect_is_the_mean_step_s_growth_over_whole_periods() -> None:
    """Of a stall every seventh step none is counted that is not followed by its six others."""
    steps = steps_of(*[10] * 100, *[30 if step % 7 == 0 else 10 for step in range(70)])
    found = fault_effect.effect(steps, steps[99][1], 1 << 62, 7)
    assert found["step_ms_before"] == pytest.approx(10)
    assert found["effect_ms"] == pytest.approx(20 / 7)


def test_too_few_steps_tell_no_effect() -> None:
    """A job that stopped when it was struck has no mean step after it."""
    steps = steps_of(*[10] * 100)
    found = fault_effect.effect(steps, steps[90][1], 1 << 62, 1)
    assert found["step_ms_before"] == pytest.approx(10)
    assert found["effect_ms"] is None


def test_costs_of_segments_add_up_over_all_steps_since_the_strike() -> None:
    """Two ranks that cost 8 ms in a half of the steps each cost 8 ms a step."""
    case = a_case("taking-turns")
    verdicts = [
        verdict("straggler", [0], cost_ms_per_step=8.0, since_step=100, until_step=180),
        verdict("straggler", [1], cost_ms_per_step=8.0, since_step=180),
    ]
    found = fault_effect.judged(case, verdicts, 100, 259, 10.0)
    assert found["cost_told_ms"] == pytest.approx(8)
    assert (found["cost_off"], found["cost_right"]) == (pytest.approx(-0.2), True)
    assert (found["onset_off_steps"], found["onset_right"]) == (0, True)


def test_steps_after_the_fault_is_over_cost_nothing_and_are_not_counted() -> None:
    """A fault ends when the job is asked to end: a verdict that ends with it is right, however many steps follow."""
    case, steps = a_case("compute-25"), steps_of(*[10] * 100, *[18] * 60, *[10] * 40)
    one = verdict("straggler", [1], cost_ms_per_step=8.0, since_step=100, until_step=160)
    report = {"verdicts": [one], "notes": []}
    found = fault_grade.grade(AJob(case, steps, 99, []), steps[99][1], steps[159][1], report)
    assert (found["effect_ms"], found["cost_told_ms"]) == (pytest.approx(8), pytest.approx(8, rel=0.02))


def test_an_onset_long_before_the_strike_is_wrong() -> None:
    """A rank that is said to be slow since the start was not."""
    verdicts = [verdict("straggler", [1], cost_ms_per_step=8.0, since_step=0)]
    found = fault_effect.judged(a_case("compute-25"), verdicts, 100, 199, 8.0)
    assert (found["onset_off_steps"], found["onset_right"]) == (-100, False)


def test_both_ranks_that_take_turns_have_to_be_reported() -> None:
    """One of two culprits is half of the truth."""
    case = a_case("taking-turns")
    one, other = (verdict("straggler", [rank], cause="compute") for rank in (0, 1))
    assert not fault_cases.all_right(case, [one])
    assert fault_cases.all_right(case, [one, other])


def test_of_two_ranks_it_is_unknown_which_diverged() -> None:
    """A desync of two ranks may have no name; that of four ranks has to."""
    assert fault_cases.all_right(a_case("mismatch", 2), [verdict("desync", [])])
    assert not fault_cases.all_right(a_case("mismatch", 2), [verdict("desync", [0])])
    assert not fault_cases.all_right(a_case("mismatch", 4), [verdict("desync", [])])


class AJob:
    """A job that ran, and of which that much was said."""

    def __init__(self, case: Any, steps: list[tuple[int, int]], struck: int, said: list[tuple[int, dict[str, Any]]]):
        self.case, self._steps, self._struck = case, steps, struck
        self._said = [{"time_ns": steps[at][1] + 1, "event": "opened", "verdict": one} for at, one in said]

    def steps(self) -> list[tuple[int, int]]:
        return self._steps

    def struck(self) -> dict[str, int]:
        return {"time_ns": self._steps[self._struck][1], "step": self._struck}

    def events(self) -> list[dict[str, Any]]:
        return self._said


def graded(name: str, lengths: list[int], said: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Struck at step 100; what is said last is said in the end, too."""
    job = AJob(a_case(name), steps_of(*lengths), 100, said)
    final = [one for _, one in said[-1:] if one["until_step"] is None]
    found: dict[str, Any] = fault_grade.grade(job, 0, 1 << 62, {"verdicts": final, "notes": []})
    return found


@pytest.mark.parametrize(("until", "right"), [(90, True), (None, False)])
def test_what_was_over_before_the_strike_is_no_answer_to_it(until: int | None, right: bool) -> None:
    """It counts as a false alarm before it, however late it is said."""
    reported = verdict("straggler", [0], since_step=80, until_step=until, cost_ms_per_step=3.0)
    found = graded("uneven-lengths", [10] * 200, [(110, reported)])
    assert found["as_expected"] is right
    assert (len(found["false_alarms"]), len(found["others"])) == ((1, 0) if right else (0, 1))


@pytest.mark.parametrize(("longer", "right"), [(13, True), (10, False)])
def test_slow_hosts_are_borne_out_by_steps_that_took_longer(longer: int, right: bool) -> None:
    """Where all steps are alike nothing held them up."""
    reported = verdict("host_bound", [], since_step=0, cost_ms_per_step=1.0)
    found = graded("clean-1", [10] * 100 + [longer] * 100, [(199, reported)])
    assert (found["as_expected"], len(found["borne_out"])) == (right, int(right))


@pytest.mark.parametrize(("longer", "right"), [(11, True), (10, False)])
def test_an_input_that_is_not_hidden_is_rightly_named(longer: int, right: bool) -> None:
    """Where steps are as long as before it costs nothing, and names no rank."""
    reported = verdict("intermittent", [1], cause="input", since_step=110, cost_ms_per_step=1.0)
    found = graded("hidden-input", [10] * 100 + [longer] * 100, [(199, reported)])
    assert found["as_expected"] is right


def test_who_will_go_wrong_has_not_yet() -> None:
    """A name before the strike is a false alarm, whichever rank it is."""
    reported = verdict("straggler", [1], since_step=40, cost_ms_per_step=3.0)
    found = graded("every-7th", [10] * 200, [(60, reported)])
    assert (len(found["false_alarms"]), found["as_expected"]) == (1, False)


@pytest.mark.parametrize(
    ("since", "until", "right"), [(100, None, True), (0, None, False), (100, 150, True), (0, 100, False)]
)
def test_a_named_host_works_longer_where_a_verdict_is(since: int, until: int | None, right: bool) -> None:
    """Rank 1 of an undisturbed job works 4 ms longer from step 100 of 200 on: 4 ms there, less of all."""
    work = np.array([[3.0] * 200, [3.0] * 100 + [7.0] * 100])
    log = host_paced.Hosts(work, np.zeros(work.shape), ahead=1, step_ms=10.0)
    reported = verdict("straggler", [1], since_step=since, until_step=until, cost_ms_per_step=4.0)
    assert host_paced.grade({"share": 0}, {"verdicts": [reported]}, [], log)["right"] is right


@pytest.mark.parametrize(("varies", "within"), [(0.1, 3.0), (4.0, 11.0)])
def test_an_onset_is_found_within_what_steps_vary_by(varies: float, within: float) -> None:
    """Of a fault of 4 ms from step 100 on."""
    work, spun = np.zeros((2, 400)), np.zeros((2, 400))
    spun[1, 100:] = 4.0
    work[1] = spun[1] + varies * np.random.default_rng(0).standard_normal(400)
    found = host_paced.Hosts(work, spun, ahead=1).onset_within(1, slice(100, 400))
    assert found == pytest.approx(within, rel=0.1)


@pytest.mark.parametrize(("ahead", "step", "cost"), [(1, 8.5, 1.5), (100, 8.0, 1.0)])
def test_a_fault_costs_what_the_replay_is_longer_by(ahead: int, step: float, cost: float) -> None:
    """Hosts work 5 and 9 ms in turn, and 8 ms, of which the fault takes 4. Far ahead, their means count."""
    turns = np.tile([5.0, 9.0], 150)
    work, spun = np.stack([turns, np.full(300, 8.0)]), np.stack([np.zeros(300), np.full(300, 4.0)])
    log, about = host_paced.Hosts(work, spun, ahead), slice(100, 200)
    assert log.step(0.0, about) == pytest.approx(step)
    assert log.step(0.0, about) - log.step(spun, about) == pytest.approx(cost, abs=0.05)


def test_the_log_says_what_hosts_work_where_one_of_them_waits() -> None:
    """Rank 1's input takes 4 ms longer; rank 0 waits for that in its forward."""
    columns = ("began", "fetched", "copied", "forward", "backward", "optimizer", "read", "spun")
    ends = [(0, 10, 11, 16, 18, 20, 20), (0, 14, 15, 16, 18, 20, 20)]
    ranks = [[[*((20 * step + ms) * MS for ms in one), 0] for step in range(60)] for one in ends]
    found = host_paced.hosts({"columns": columns, "ranks": ranks}, "conv-none")
    assert found.work.mean(axis=1) == pytest.approx([16.0, 20.0])
    assert (found.longer(1, slice(40, 60)), found.step_ms) == pytest.approx((4.0, 20.0))
