"""What a running job's series and its page say once every verdict on it has been closed."""

from typing import Any

import pytest
from hindmost_collector.live.jobs import Contact, LiveJob
from hindmost_collector.live.window import Window
from hindmost_collector.report.verdict_lines import with_rendered
from hindmost_collector.serve.job_metrics import JobPage
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT

ONSET, END, STEPS = 40, 100, 160


@pytest.fixture(scope="module")
def over() -> dict[str, Any]:
    """The report on 4 ranks of which rank 2 was slow for a while."""
    fault = Fault("compute", (2,), 0.15, onset=ONSET, end=END)
    return judge(simulate(Scenario(4, STEPS, faults=(fault,))).run).to_dict()


def live(report: dict[str, Any], last_step: int) -> LiveJob:
    """A job of this report, whose ranks have come so far."""
    job = LiveJob("a", 0)
    job.report, job.window = report, WindowOfSteps(last_step)
    return job


class WindowOfSteps(Window):
    """A window of which the newest step is known, and nothing else."""

    def __init__(self, last_step: int) -> None:
        super().__init__()
        self._last_step = last_step

    @property
    def last_step(self) -> int:
        return self._last_step


def test_a_job_that_is_well_again_is_served_as_balanced(over: dict[str, Any]) -> None:
    """An alert tells "well again" from "gone": one series says balanced, since the step at which the verdict ended."""
    assert [verdict["kind"] for verdict in over["verdicts"]] == ["straggler"]
    until = over["verdicts"][0]["until_step"]
    text = JobPage().text([live(over, STEPS - 1)], Contact([], 0))
    (line,) = [splitline for splitline in text.splitlines() if splitline.startswith("hindmost_verdict_info{")]
    assert 'kind="balanced"' in line
    assert f'since_step="{until}"' in line
    assert "hindmost_verdict_cost_ratio{" not in text  # what is not measured is left out


def test_of_too_few_steps_since_nothing_is_said(over: dict[str, Any]) -> None:
    """With fewer steps than a judgement needs, how they are is unknown."""
    until = over["verdicts"][0]["until_step"]
    assert live(over, until + DEFAULT.min_steps - 1).verdicts() == []
    assert [verdict["kind"] for verdict in live(over, until + DEFAULT.min_steps).verdicts()] == ["balanced"]


def test_a_verdict_that_holds_is_served_alone(over: dict[str, Any]) -> None:
    """If one has ended, the one that holds is the only current one."""
    held = {**over["verdicts"][0], "ranks": [1], "until_step": None}
    report = {**over, "verdicts": [*over["verdicts"], held]}
    assert live(report, STEPS - 1).verdicts() == [held]
    assert [one["kind"] for one in with_rendered(report)["rendered"]] == ["straggler", "straggler"]


def test_the_page_does_not_begin_with_what_is_over(over: dict[str, Any]) -> None:
    """It says first that nothing holds any more; what was so follows, with its steps."""
    first, second = with_rendered(over)["rendered"]
    until = over["verdicts"][0]["until_step"]
    assert (first["head"], first["what"]) == ("OK", f"no rank is slow since step {until}")
    assert second["what"].endswith(f"to {until}")
