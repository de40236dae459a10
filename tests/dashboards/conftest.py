"""Boards and rules over given series, as promtool evaluates them: no server, and time is a number."""

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = [ROOT / "dashboards" / name for name in ("recording.yml", "alerts.yml")]
INTERVAL_S, TICKS = 15, 24

#: What Grafana puts in place of its variables: all nodes and ranks, and the intervals of a fresh short job.
VARIABLES = {"$node": ".*", "$gpu": ".*", "$__rate_interval": "60s", "$__range": "5m"}


class Target(NamedTuple):
    """One query of a panel."""

    board: str
    title: str
    kind: str
    ref: str
    expression: str

    def filled(self, **variables: str) -> str:
        """The query as Grafana sends it."""
        expression = self.expression
        chosen = {"$rank": ".*", **VARIABLES, **{f"${name}": value for name, value in variables.items()}}
        for variable, value in chosen.items():
            expression = expression.replace(variable, value)
        return expression


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a parsed board that show data, those of folded rows too."""
    for panel in board["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels") or ()


def targets(name: str) -> list[Target]:
    """The queries of a board's file."""
    board = json.loads((ROOT / "dashboards" / f"hindmost-{name}.json").read_text(encoding="utf-8"))
    return [
        Target(name, panel["title"], panel["type"], target["refId"], target["expr"])
        for panel in panels(board)
        for target in panel["targets"]
    ]


class Case(NamedTuple):
    """Series in promtool's notation, and what expressions must be at their ends: value by labels."""

    series: Mapping[str, str]
    expected: list[tuple[str, float, dict[str, float]]]


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[[Iterable[Case]], None]:
    """Let promtool evaluate rules and expressions; what differs fails the test in promtool's own words."""

    def run(cases: Iterable[Case]) -> None:
        cases = list(cases)
        alerts = any("ALERTS" in expression for case in cases for expression, _, _ in case.expected)
        rules = [str(path) for path in (RULES if alerts else RULES[:1])]
        tests = [
            {
                "interval": f"{INTERVAL_S}s",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": f"{at:g}s",
                        "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
                    }
                    for expression, at, samples in case.expected
                ],
            }
            for case in cases
        ]
        written = {"rule_files": rules, "evaluation_interval": f"{INTERVAL_S}s", "tests": tests}
        path = tmp_path / "cases.yml"
        path.write_text(yaml.dump(written, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)), encoding="utf-8")
        promtool = subprocess.run(["promtool", "test", "rules", path], check=False, capture_output=True, text=True)
        assert promtool.returncode == 0, promtool.stdout + promtool.stderr

    return run
