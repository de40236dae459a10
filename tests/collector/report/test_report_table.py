"""The table of ranks under a verdict says what its numbers are, and nothing where there are none."""

from typing import Any

import pytest
from hindmost_collector.report import columns, markdown, text, verdict_lines


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


def test_the_caption_stands_on_one_line_and_explains_only_what_is_shown() -> None:
    """However narrow the table, its caption is whole, and names no column that is not there."""
    last = text.render(report(step_ms=2.0)).splitlines()[-1]
    assert last == "ms per step, medians of all steps after warm-up"
    shown = columns.caption(["rank", "step", "caused wait"], report(step_ms=2.0))
    assert shown.endswith("caused wait: the others' wait for this rank")
    assert "(means: caused wait)" in shown
    assert "last to arrive" not in shown


def test_the_caption_says_that_the_table_begins_before_a_verdict_does() -> None:
    """A verdict since step 27 has numbers of its own, which the medians of all steps do not repeat."""
    late = report(step_ms=2.0) | {"verdicts": [{"kind": "straggler", "since_step": 27, "cost_ms_per_step": 0.5}]}
    shown = columns.caption(["rank", "step"], late)
    assert shown == "ms per step, medians of all steps after warm-up, also those before step 27 (means: COST)"


def test_advice_is_given_once() -> None:
    """A rank that was slow in two periods is to be looked at once; what another verdict advises stays."""
    slow = {"kind": "straggler", "cause": "compute", "ranks": [1], "advice": ["look at rank 1"]}
    other = slow | {"ranks": [0], "advice": ["look at rank 1", "look at rank 0"]}
    found = verdict_lines.rendered(report() | {"verdicts": [slow, {**slow, "since_step": 40}, other]})
    assert [one.do for one in found] == [("look at rank 1",), (), ("look at rank 0",)]


@pytest.mark.parametrize(("share", "first"), [(0.03, "LIMITED BY"), (0.4, "SLOW")])
def test_what_takes_most_of_the_step_stands_first(share: float, first: str) -> None:
    """A rank that costs 3 % is no headline where every rank waits for a CPU in 85 % of the time."""
    slow = {"kind": "straggler", "cause": "compute", "ranks": [1], "cost_ratio": share, "cost_ms_per_step": share}
    found = report() | {"verdicts": [slow]}
    found["job"]["bound"] = {"by": "cpu", "evidence": "every rank waits for a CPU for at least 85 % of the time"}
    lines = text.render(found).splitlines()
    assert lines[1].startswith(first)
    assert sum(line.startswith(("SLOW", "LIMITED BY")) for line in lines) == 2


def test_commands_have_the_path_of_the_recording() -> None:
    """In text and in Markdown: a reader at another machine has no RUN and no PATH."""
    advised = {"kind": "insufficient_data", "ranks": [], "evidence": ["a", "b"], "advice": ["`hindmost report RUN`"]}
    found = report() | {"verdicts": [advised]}
    for shown in (text.render(found, path="'my run'"), markdown.render(found, path="'my run'")):
        assert "`hindmost report 'my run'`" in shown
        assert "all evidence: hindmost report 'my run' --explain" in shown


def test_the_title_of_a_markdown_report_stands_once() -> None:
    """However long it is: its second line is not the first of the verdict."""
    found = report()
    found["job"] |= {"command": f"python {'long' * 30}.py", "duration_s": 43.2}
    shown = markdown.render(found)
    assert shown.count("43.2 s") == 1
    assert shown.splitlines()[0].endswith("ran 43.2 s")


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
