"""The checked-in dashboards: fresh, understood by Grafana's own types, and laid out for a reader."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info < (3, 11):
    pytest.skip("needs Python 3.11: grafana-foundation-sdk does", allow_module_level=True)

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.__main__ import DASHBOARDS, main

ROOT = Path(__file__).parents[2]
FILES = sorted(DASHBOARDS)


def board(name: str) -> dict[str, Any]:
    """One dashboard file, parsed."""
    parsed: dict[str, Any] = json.loads((ROOT / "dashboards" / name).read_text(encoding="utf-8"))
    return parsed


def data_panels(name: str) -> list[dict[str, Any]]:
    """Its panels, without the headings."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def test_checked_in_json_is_what_the_code_writes() -> None:
    """The JSON is not edited by hand, and always renewed."""
    assert main(["--check"]) == 0


def test_every_dashboard_file_has_its_code() -> None:
    """A JSON file that no code writes would rot."""
    assert {path.name for path in (ROOT / "dashboards").glob("*.json")} == set(DASHBOARDS)


@pytest.mark.parametrize("name", FILES)
def test_grafanas_own_types_read_the_file_without_loss(name: str) -> None:
    """Grafana's published schema types parse the file and write the same JSON back: no unknown or misplaced field."""
    parsed = board(name)
    again = json.loads(json.dumps(Dashboard.from_json(parsed), cls=JSONEncoder))
    assert again == parsed


@pytest.mark.parametrize("name", FILES)
def test_panels_do_not_overlap_and_fit_the_grid(name: str) -> None:
    """Each panel has its own place in the 24 columns, and its own id."""
    taken: set[tuple[int, int]] = set()
    for panel in board(name)["panels"]:
        place = panel["gridPos"]
        x, y = place.get("x", 0), place.get("y", 0)
        cells = {(column, line) for column in range(x, x + place["w"]) for line in range(y, y + place["h"])}
        assert max(column for column, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    identities = [panel["id"] for panel in board(name)["panels"]]
    assert len(identities) == len(set(identities))


@pytest.mark.parametrize("name", FILES)
def test_each_panel_says_what_it_shows_in_which_unit(name: str) -> None:
    """A reader at night finds a title, a description of at least a sentence, and a unit."""
    for panel in data_panels(name):
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


@pytest.mark.parametrize("name", FILES)
def test_every_query_goes_to_the_chosen_data_source(name: str) -> None:
    """The dashboard works on any Prometheus: no data source's identity is built in."""
    sources = {panel["datasource"]["uid"] for panel in data_panels(name)}
    assert sources == {"${datasource}"}


@pytest.mark.parametrize("name", FILES)
def test_queries_use_only_variables_that_exist(name: str) -> None:
    """A misspelt variable would be sent to Prometheus as text and find nothing."""
    known = {variable["name"] for variable in board(name)["templating"]["list"]}
    for panel in data_panels(name):
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used <= known | {"__rate_interval", "__range"}, panel["title"]
