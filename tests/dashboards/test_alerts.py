"""The alert rules, as Prometheus itself reads and evaluates them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "dashboards" / "alerts.yml"
CASES = Path(__file__).with_name("alerts_test.yml")

pytestmark = pytest.mark.needs("promtool")


def promtool(verb: str, rules: Path) -> subprocess.CompletedProcess[str]:
    """Run ``promtool VERB rules FILE``."""
    command = ["promtool", verb, "rules", str(rules)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_promtool_accepts_the_rules() -> None:
    """Prometheus would load the file."""
    checked = promtool("check", RULES)
    assert checked.returncode == 0, checked.stderr


def test_alerts_fire_where_they_must_and_stay_quiet_otherwise(tmp_path: Path) -> None:
    """The written cases hold, labels and texts included."""
    cases = tmp_path / "alerts_test.yml"
    cases.write_text(CASES.read_text().replace("RULES", str(RULES), 1))
    tested = promtool("test", cases)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_and_says_what_to_do() -> None:
    """No alert is untested, and none pages without a description."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tested = set(re.findall(r"alertname: (\w+)", CASES.read_text()))
    assert {rule["alert"] for rule in rules} == tested
    assert all(len(rule["annotations"]["description"].split()) > 15 for rule in rules)
