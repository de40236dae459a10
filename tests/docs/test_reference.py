"""The reference says what the code says: generated pages, metrics, and what shows each cell of what is measured."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest
from hindmost_agent import samplers
from hindmost_agent.sampler import REGISTRY, Metric

from docs.generate.__main__ import PAGES, written


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_fresh(name: str) -> None:
    """Renew it with ``make reference``."""
    assert PAGES[name]() == written(name), f"docs/reference/{name} is stale: run make reference"


ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MARKDOWN = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])

#: A metric's whole name: prefix, subject, what it measures; what rules record has colons before and after.
METRIC = re.compile(
    r"(?<![:\w])hindmost_(?:job|rank|verdict|node|process|gpu|agent|collector)_[a-z0-9_]*[a-z0-9]\b(?![./:])"
)
#: What pages that tell of an older release name.
RENAMED = {"hindmost_job_step_seconds"}


def test_every_metric_that_is_named_exists() -> None:
    """Pages, dashboards and alerts name only metrics that an agent declares or the collector's code has."""
    source = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("collector/**/*.py"))
    known = set(re.findall(r"\bhindmost_[a-z0-9_]+", source)) | {metric.name for metric in declared()}
    # The guide's example of a sampler declares metrics of its own, which no agent has.
    guide = (ROOT / "docs/how-to/extend.md").read_text(encoding="utf-8")
    known |= RENAMED | {f"{name}_bucket" for name in known}
    known |= set(re.findall(r'= (?:gauge|counter)\("(hindmost_\w+)"', guide))
    users = [*MARKDOWN, *(ROOT / "dashboards").glob("*.json"), *(ROOT / "dashboards").glob("*.yml")]
    named = set().union(*(METRIC.findall(path.read_text(encoding="utf-8")) for path in users))
    assert {name for name in named if name not in known and name.removesuffix("_total") not in known} == set()


def test_every_metric_of_the_collector_has_a_row() -> None:
    """A metric that the collector's code names is on its generated page: no module of metrics was forgotten there."""
    source = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("collector/**/*.py"))
    named = set(re.findall(r'"(hindmost_(?:job|rank|verdict|collector)_\w+)"', source)) - {"hindmost_collector"}
    page = (DOCS / "reference/collector-metrics.md").read_text(encoding="utf-8")
    assert len(named) > 30
    assert named - set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set()


def declared() -> list[Metric]:
    """Every metric that a sampler of the agent declares."""
    for module in pkgutil.iter_modules(samplers.__path__):
        importlib.import_module(f"{samplers.__name__}.{module.name}")
    return [metric for sampler in REGISTRY.values() for metric in sampler.metrics]


PAGE = (DOCS / "reference/coverage.md").read_text(encoding="utf-8")
NOTE = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+")


def table_after(heading: str) -> list[list[str]]:
    """The cells of the first table after these words, a row each, without its head."""
    lines = PAGE.partition(heading)[2].lstrip("\n").splitlines()
    rows = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


MEASURED = table_after("code might do.")
SHOWN = table_after("`tests/native/`.")


def test_each_filled_cell_says_what_shows_it() -> None:
    """No cell of frameworks and launchers is without a note."""
    assert [(row[0], cell) for row in MEASURED for cell in row[1:] if cell and not NOTE.search(cell)] == []


def test_each_note_is_of_a_cell_and_names_a_test_or_a_commit() -> None:
    """What is pointed to stands below, once, and is a test or the commit of a run; and nothing else stands there."""
    used = {note for row in MEASURED for cell in row[1:] for note in NOTE.findall(cell)}
    assert sorted(note for note, _ in SHOWN) == sorted(used)
    assert [note for note, by in SHOWN if not re.search(r"`(tests|…)[/:]|of commit [0-9a-f]{8}", by)] == []
