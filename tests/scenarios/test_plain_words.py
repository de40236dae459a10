"""Every report, of whatever job: short sentences in the field's words, whole at any width, with its deciding column."""

import argparse
import importlib
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.page import document
from hindmost_collector.report import columns, text
from hindmost_collector.report.verdict_lines import rendered
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

from style_check import rules
from tests.pages import inside
from tests.recordings import here, judged

from .expected import RECORDINGS
from .loads import Load, hang, make
from .scenario_files import report_of, scenarios

ROOT = Path(__file__).parents[2]


def findings(report: Mapping[str, Any]) -> list[str]:
    """Each sentence of a report that is too long, or has a word that the field does not use, and why."""
    every = _rules()
    return [
        f"{message}: {text}" for text in sentences(report) for _, message in every.findings(text, list(every.finds))
    ]


def sentences(report: Mapping[str, Any]) -> Iterator[str]:
    """All that a report says, in any format."""
    yield columns.title(report)
    yield columns.bound(report)
    yield from columns.waste(report)
    yield from report["notes"]
    yield report["job"].get("ended") or ""
    yield columns.caption(columns.table(report["ranks"], deciding=columns.deciding(report))[0], report)
    for one in rendered(report):
        yield from (f"{one.sentence} {one.sure}", one.cost, *one.why, one.where, *one.do)


@cache
def _rules() -> rules.Rules:
    return rules.load(ROOT)


ALL = tuple(range(4))
#: Jobs that neither a scenario nor a recording is of.
JOBS: dict[str, Callable[[], Run]] = {
    "input-bound": lambda: simulate(Scenario(4, 80, faults=(Fault("input", ALL, 0.6),))).run,
    "uneven": lambda: simulate(Scenario(16, 120, varying_lengths=0.3)).run,
    "slow link": lambda: (
        simulate(Scenario(8, 120, layout="tp_dp", tensor=2, faults=(Fault("network", (3,), 0.2),))).run
    ),
    "slow network": lambda: simulate(Scenario(8, 120, faults=(Fault("network", (1,), 0.2, onset=50),))).run,
    "slow stage": lambda: (
        simulate(Scenario(8, 80, layout="pp_dp", pipeline=4, faults=(Fault("compute", (2, 3), 0.3),))).run
    ),
    "all slower": lambda: simulate(Scenario(4, 140, faults=(Fault("compute", ALL, 0.2, 60),))).run,
    "most slower": lambda: simulate(Scenario(8, 140, faults=(Fault("compute", tuple(range(6)), 0.1),))).run,
    "too few steps": lambda: simulate(Scenario(4, 3)).run,
    "one rank": lambda: make(Load(ranks=1, steps=40)),
    "checkpoints": lambda: simulate(Scenario(8, 200, checkpoint_every=50)).run,
    "gc": lambda: simulate(Scenario(4, 120, faults=(Fault("gc", (2,), 0.2),))).run,
    "throttled": lambda: simulate(Scenario(8, 120, faults=(Fault("gpu_throttle", (2,), 0.2),))).run,
    "shared GPU": lambda: simulate(Scenario(8, 120, faults=(Fault("gpu_contention", (2,), 0.3),))).run,
    "two causes": lambda: make(Load(ranks=8, steps=150, compute=10, faults=[{"rank": 1, "compute": 2, "input": 2}])),
    "shared CPUs": lambda: make(Load(ranks=4, steps=150, compute=2, cpus=2, jostle=3)),
    **{
        f"six ranks, {cause}": lambda cause=cause: (
            simulate(Scenario(32, 120, faults=(Fault(cause, (1, 4, 9, 14, 20, 25), 0.3, duty=0.3),))).run
        )
        for cause in ("compute", "input", "h2d", "cpu_contention", "checkpoint", "gpu_contention")
    },
    "hang of all": lambda: hang(Load(ranks=4, steps=40), []),
    "hang of two": lambda: hang(Load(ranks=4, steps=40), [2, 3]),
}


SCENARIOS = [one.values[0] for one in scenarios()]
#: By name. Each is made once, and read by all tests.
REPORTS: dict[str, Callable[[], Mapping[str, Any]]] = {
    **{name: cache(lambda make=make: judge(make()).to_dict()) for name, make in JOBS.items()},
    **{name: cache(lambda path=path: judged(path).to_dict()) for name in RECORDINGS if (path := here(name))},
    **{f"{lines}": cache(lambda lines=lines: report_of(*lines).to_dict()) for lines in SCENARIOS},
}


def test_every_sentence_is_short_and_in_the_fields_words() -> None:
    """No sentence has more than 25 words, and none has a word that styles/ has another for."""
    assert {name: found for name, report in REPORTS.items() if (found := findings(report()))} == {}


def test_work_is_counted_in_items_as_the_pace_is() -> None:
    """One word for samples and tokens in all that reports say of their jobs."""
    said = {text for report in REPORTS.values() for text in sentences(report())}
    assert [text for text in said if "or tokens" in text] == []


_STALLS = re.compile(r"stall\D* in (\d+) of (\d+) steps")
_EACH = re.compile(r"(?:, |Each such step takes )([\d.]+) (m?s) (?:each|longer)")


def test_stalls_times_what_each_takes_are_their_cost() -> None:
    """A reader who multiplies the numbers of the sentence gets the cost, within a tenth and their digits."""
    for name, verdict in ((name, verdict) for name, report in REPORTS.items() for verdict in report()["verdicts"]):
        said = next((line for line in verdict["evidence"] if _STALLS.search(line)), None)
        if said is None:
            continue
        count, steps = _STALLS.search(said).groups()  # type: ignore[union-attr]
        ((value, unit),) = _EACH.findall(said)
        total = int(count) / int(steps) * float(value) * (1 if unit == "ms" else 1000)
        assert total == pytest.approx(verdict["cost_ms_per_step"], rel=0.12, abs=0.05), name


def test_nothing_is_lost_at_sixty_columns() -> None:
    """Each line but a command's fits, each word of each verdict is there, and so is each column that decided one."""
    for name in [*REPORTS][::3]:
        found = REPORTS[name]()
        shown = text.render(found, 60, explain=True, path="RUN")
        wide = [line for line in shown.splitlines() if len(line) > 60 and not line.lstrip().startswith("`")]
        assert wide == [], name
        words = "".join(shown.split())
        said = [said for one in rendered(found) for said in (one.head, one.what, one.cost, *one.why, *one.do)]
        assert [one for one in said if not all(word in words for word in one.split())] == [], name
        titles, _ = columns.table(columns.choose(found)[0], 60, columns.deciding(found))
        assert set(columns.deciding(found)) <= set(titles), name


def test_what_columns_mean_takes_three_lines() -> None:
    """Below the table, at 80 columns."""
    for name, report in REPORTS.items():
        titles, _ = columns.table(columns.choose(found := report())[0], 80, columns.deciding(found))
        legend = textwrap.wrap(columns.caption(titles, found, explain=False), 80)
        assert len(legend) <= 3, (name, legend)


def test_a_named_rank_has_a_cost_or_a_hang_a_reason_and_something_to_do() -> None:
    """Who names a rank says why and what to do; and whether it is sure, unless it is a hang without a known rank."""
    for name, report in REPORTS.items():
        for one, verdict in zip(rendered(found := report()), found["verdicts"], strict=True):
            assert one.head in ("SLOW", "HUNG", "DESYNC", "UNEVEN", "LIMITED BY", "OK", "UNSURE"), name
            assert one.why or one.head == "UNSURE", name  # whose head may be the reason
            if verdict["ranks"]:
                assert set(verdict["advice"][:1]) <= {text for said in rendered(found) for text in said.do}, name
                assert verdict["advice"], name
                assert one.sure, name
                assert one.cost or one.head in ("HUNG", "DESYNC"), name


def test_each_command_that_is_advised_can_be_typed() -> None:
    """Its subcommand takes these options, and asks for no other."""
    said = {line for report in REPORTS.values() for one in rendered(report()) for line in (*one.why, *one.do)}
    advised = {found for line in said for found in re.findall(r"`hindmost (\w+)([^`]*)`", line)}
    assert advised
    for name, words in advised:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"hindmost_cli.{name}").configure(parser)
        parser.parse_args(shlex.split(words))


def test_html_says_what_the_text_says() -> None:
    """With all evidence: the page shows the words that its data holds."""
    for name in JOBS:
        found = REPORTS[name]()
        shown = inside(document.of_report(found, path="RUN"))["report"]
        assert shown["title"] == columns.title(found)
        assert shown["bound"].startswith(columns.bound(found))
        assert (shown["waste"], shown["notes"]) == (columns.waste(found), list(found["notes"]))
        assert shown["job"] == json.loads(json.dumps(found["job"]))
        assert shown["rendered"] == [json.loads(json.dumps(asdict(one))) for one in rendered(found)]
