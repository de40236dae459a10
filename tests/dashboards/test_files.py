"""The checked-in boards: fresh, understood by Grafana's own types, and by the rules of its dashboard-linter."""

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
from dashboards.board import OF_PROMETHEUS
from tests.dashboards.conftest import panels, targets

ROOT = Path(__file__).parents[2]
FILES = sorted(DASHBOARDS)
#: The largest object that Kubernetes stores, with room for its own fields.
MOST_BYTES = 900_000


def board(name: str) -> dict[str, Any]:
    """One dashboard file, parsed."""
    parsed: dict[str, Any] = json.loads((ROOT / "dashboards" / name).read_text(encoding="utf-8"))
    return parsed


def test_checked_in_files_are_what_the_code_writes() -> None:
    """No board or rule is edited by hand, and all are renewed."""
    assert main(["--check"]) == 0


def test_every_dashboard_file_has_its_code_and_its_place() -> None:
    """A JSON file that no code writes would rot; one that a wheel does not get would be missed there."""
    files = {path.name for path in (ROOT / "dashboards").glob("*.json")}
    assert files == set(DASHBOARDS)
    packed = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in files:
        assert f"hindmost_collector/dashboards/{name}" in packed
        assert (ROOT / "dashboards" / name).stat().st_size < MOST_BYTES


@pytest.mark.parametrize("name", FILES)
def test_grafanas_own_types_read_the_file_without_loss(name: str) -> None:
    """Grafana's published schema types parse the file and write the same JSON back: no unknown or misplaced field. The
    schema leaves what a data source reads of an annotation to that data source."""
    parsed = board(name)
    for one in parsed.get("annotations", {}).get("list", ()):
        for field in OF_PROMETHEUS:
            del one[field]
    again = json.loads(json.dumps(Dashboard.from_json(parsed), cls=JSONEncoder))
    assert again == parsed


@pytest.mark.parametrize("name", FILES)
def test_panels_do_not_overlap_and_fit_the_grid(name: str) -> None:
    """Each panel has its own place in the 24 columns, and its own id."""
    found = board(name)["panels"]
    identities = [panel["id"] for row in found for panel in (row, *(row.get("panels") or ()))]
    assert len(identities) == len(set(identities))
    for shown in (found, *(row["panels"] for row in found if row.get("panels"))):
        taken: set[tuple[int, int]] = set()
        for panel in shown:
            place = panel["gridPos"]
            x, y = place.get("x", 0), place.get("y", 0)
            cells = {(column, line) for column in range(x, x + place["w"]) for line in range(y, y + place["h"])}
            assert max(column for column, _ in cells) < 24, panel["title"]
            assert not cells & taken, panel["title"]
            taken |= cells


@pytest.mark.parametrize("name", FILES)
def test_each_panel_says_what_it_shows_in_which_unit(name: str) -> None:
    """A reader at night finds a title, a description of at least a sentence, a unit and a query."""
    for panel in panels(board(name)):
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]


@pytest.mark.parametrize("name", FILES)
def test_every_query_goes_to_the_chosen_data_source(name: str) -> None:
    """The board works on any Prometheus: no data source's identity is built in, and it is the first choice."""
    parsed = board(name)
    asked = [*panels(parsed), *parsed.get("annotations", {}).get("list", ())]
    asked += [one for one in parsed["templating"]["list"] if one["type"] == "query"]
    assert {one["datasource"]["uid"] for one in asked} == {"${datasource}"}
    first = parsed["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")


@pytest.mark.parametrize("name", FILES)
def test_choices_are_renewed_and_boards_cannot_be_edited(name: str) -> None:
    """Choices follow the time range, so that a job of yesterday is found; a change in Grafana would be lost."""
    parsed = board(name)
    assert parsed["editable"] is False
    for variable in parsed["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["refresh"] == 2, variable["name"]


@pytest.mark.parametrize("name", FILES)
def test_queries_use_only_variables_that_exist(name: str) -> None:
    """A misspelt variable would be sent to Prometheus as text and find nothing; links use the same."""
    parsed = board(name)
    known = {variable["name"] for variable in parsed["templating"]["list"]} | {"__rate_interval", "__range"}
    for target in targets(name.removeprefix("hindmost-").removesuffix(".json")):
        assert set(re.findall(r"\$(\w+)", target.expression)) <= known, target.title
    for panel in panels(parsed):
        for link in re.findall(r'"url": "([^"]+)"', json.dumps(panel)):
            own = {one for one in re.findall(r"\$\{(\w+)[:}]", link) if not one.startswith("__")}
            assert own <= known, (panel["title"], link)


@pytest.mark.parametrize("name", FILES)
def test_links_lead_to_boards_that_exist(name: str) -> None:
    """A click on a rank, a node or a job opens its board with a variable that this board has."""
    for place, variable in re.findall(r"/d/([\w-]+)\?var-(\w+)=", (ROOT / "dashboards" / name).read_text()):
        assert variable in {one["name"] for one in board(f"{place}.json")["templating"]["list"]}


@pytest.mark.parametrize("name", FILES)
def test_counters_are_rates_over_intervals_that_follow_the_zoom(name: str) -> None:
    """A counter is never drawn as it is, and no rate has an interval of its own."""
    for target in targets(name.removeprefix("hindmost-").removesuffix(".json")):
        spans = re.findall(r"(?:rate|increase)\([^\[]*\[([^\]]+)\]", target.expression)
        assert set(spans) <= {"$__rate_interval", "$__range"}, target.title
        bare = re.sub(r"(?:rate|increase)\([^\[]*\[[^\]]+\]\)", "", target.expression)
        assert not re.search(r"\w+_(?:total|bucket)\b", bare), target.title
