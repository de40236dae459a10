"""What the documentation names exists, and what exists is documented."""

import argparse
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hindmost import __version__
from hindmost_agent import samplers
from hindmost_agent.sampler import REGISTRY, Metric
from hindmost_cli import COMMANDS, main
from hindmost_collector.options import JUDGE_PREFIX as OF_JUDGE
from hindmost_collector.options import Options, variable
from hindmost_collector.report import columns as of_ranks
from hindmost_judge.model import OTHER, PHASES, TABLES
from hindmost_judge.settings import Settings
from hindmost_judge.verdict.schema import CAUSES, KINDS
from hindmost_proto import telemetry_pb2

from docs.generate.__main__ import PAGES as GENERATED
from docs.generate.__main__ import written

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
#: Without templates of Helm: tests/kubernetes parses what they render.
DEPLOYED = sorted(
    path
    for path in (ROOT / "deploy").rglob("*")
    if path.is_file() and path.parent != ROOT / "deploy/helm/hindmost/templates"
)

#: ``hindmost SUBCOMMAND words``, up to the end of the line or to what ends a command in a shell or in Markdown.
INVOCATION = re.compile(rf"\bhindmost (?P<name>{'|'.join(COMMANDS)})\b(?P<words>[^\n`|;)\"]*)")


def test_every_link_leads_somewhere() -> None:
    """A relative link of any page names a file or a folder of this repository."""
    broken = [
        (page.name, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_anchor_is_a_heading() -> None:
    """What a link names after ``#`` is a heading of the page that it leads to."""
    wrong = [
        (page.name, target, anchor)
        for page in PAGES
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
        if anchor not in anchors((page.parent / target) if target else page)
    ]
    assert wrong == []


def test_every_page_is_listed() -> None:
    """The start page links each page."""
    start = DOCS / "README.md"
    targets = re.findall(r"\]\(([^)#]+)", start.read_text(encoding="utf-8"))
    assert set(DOCS.rglob("*.md")) - {start} - {(DOCS / target).resolve() for target in targets} == set()


def test_nothing_is_installed_from_where_it_is_not() -> None:
    """Pages install hindmost from a clone, or from a folder: no index of packages has it."""
    assert in_pages(r"pip install(?! --no-index)[^\n`]*\bhindmost(?:\[|\s|$)[^\n`]*") == []


def test_every_test_that_is_named_exists() -> None:
    """A page that says which test shows something names one that there is; ``…`` is the file named before it."""
    file, missing = "", []
    for page, (named, test) in in_pages(r"`(tests/[\w/]+\.py(?<!_NAME\.py)|…)(?:::(\w+))?`"):
        file = file if named == "…" else named
        code = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""
        if not code or (test and f"def {test}(" not in code):
            missing.append((page, f"{file}::{test}"))
    assert missing == []


def test_every_file_that_is_named_exists() -> None:
    """What a page names in code and is of this repository is a file or a folder of it; ``NAME`` stands for any."""
    named = in_pages(r"`((?:agent|bench|collector|dashboards|deploy|docs|examples|proto|tests)/[\w./-]+)")
    assert [(page, one) for page, one in named if "NAME" not in one and not (ROOT / one).exists()] == []


def test_every_option_that_is_shown_exists() -> None:
    """Each option after ``hindmost SUBCOMMAND`` in docs, units, scripts and containers is one that it takes."""
    unknown = [
        (path.name, command, option)
        for path in [*PAGES, *DEPLOYED]
        for command, words in invocations(path)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)
        if option not in options(command)
    ]
    assert unknown == []


def test_every_subcommand_that_is_shown_exists() -> None:
    """No page shows ``hindmost WORD`` in code where the command line has no such word."""
    shown = {
        word
        for page in PAGES
        for word in re.findall(r"(?:^|`)(?:\$ )?hindmost ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(shown) > 4
    assert shown - set(COMMANDS) == set()


def test_the_shown_commands_are_found_at_all() -> None:
    """The search above sees the places where commands stand: a unit, a container's arguments, a job script, a page."""
    found = {path.name for path in [*PAGES, *DEPLOYED] if any(words.strip() for _, words in invocations(path))}
    assert {"hindmost-agent.service", "compose.yaml", "mpirun.sbatch", "getting-started.md"} <= found


def test_every_variable_that_is_named_exists() -> None:
    """Environment variables on a page are read by the code or by a file under deploy."""
    known = variables([*ROOT.glob("agent/**/*.py"), *ROOT.glob("agent/**/*.[ch]"), *ROOT.glob("collector/**/*.py")])
    known |= {variable(field.name) for field in dataclasses.fields(Options)}
    known |= {OF_JUDGE + field.name.upper() for field in dataclasses.fields(Settings)}
    assert variables(PAGES) - known - variables(DEPLOYED) == set()


def test_every_variable_of_the_code_is_documented() -> None:
    """The table of variables has each that the code reads or sets; settings and thresholds have their own."""
    used = variables([*ROOT.glob("agent/**/*.py"), *ROOT.glob("collector/**/*.py")])
    assert {
        name
        for name in used - variables([DOCS / "reference/environment.md"])
        if not re.search("COLLECTOR_|JUDGE_", name)
    } == set()


def test_every_kind_and_cause_is_explained() -> None:
    """Reading a verdict: the tables have each kind and cause, and no other."""
    assert first_column("reference/reading-a-verdict.md", "## Kinds") == set(KINDS)
    assert first_column("reference/reading-a-verdict.md", "## Causes") == set(CAUSES)


def test_every_table_and_column_of_a_run_is_documented() -> None:
    """Run directory: each table with its columns; those of phases are named once as a kind."""
    text = (DOCS / "reference/run-directory.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|", text, re.MULTILINE))
    assert set(rows) == set(TABLES)
    for table, columns in TABLES.items():
        phases = {name for name in columns if name.endswith("_ns") and table == "steps"} - {"start_ns", "duration_ns"}
        assert {name for name in columns if name not in rows[table]} <= phases, table


def test_every_message_of_an_agent_on_its_credentials_is_in_the_code() -> None:
    """What a user finds in the agent's log is found on the page, word for word."""
    page = (DOCS / "how-to/secure.md").read_text(encoding="utf-8").partition("## When it does not work")[2]
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    sources = [
        path.read_text(encoding="utf-8") for top in ("agent", "collector") for path in (ROOT / top).rglob("*.py")
    ]
    beginnings = [re.split("'?…", message)[0] for message in messages]
    assert beginnings
    assert not [beginning for beginning in beginnings if not any(beginning in source for source in sources)]


def test_every_message_of_the_protocol_is_explained() -> None:
    """Wire: each message of telemetry.proto is named."""
    text = (DOCS / "reference/wire.md").read_text(encoding="utf-8")
    parts = {"AgentMessage", "CollectorMessage", "Series"}
    messages = set(telemetry_pb2.DESCRIPTOR.message_types_by_name) - parts
    assert [name for name in messages if not re.search(rf"\b{name}\b", text)] == []


def test_every_column_of_the_table_of_ranks_is_defined() -> None:
    """Each title that a report can print over its ranks is in the table that says what it is."""
    phases = dict.fromkeys((*PHASES, OTHER, "self_cpu", "self_runqueue", "self_blocked", "storage"), 50.0)
    figures = (
        "step_ms",
        "self_ms",
        "wait_ms",
        "transfer_ms",
        "caused_wait_ms",
        "share_last",
        "cpu_ratio",
        "runqueue_ratio",
        "rss_bytes",
        "calls_ratio",
    )
    hidden = ("CPU queue", "queue in step", "off CPU", "storage wait", "waits for a CPU")
    titles = set()
    for timed in (phases, {name: 50.0 for name in phases if not name.startswith("gpu_")}):
        one = {"phases_ms": timed, **dict.fromkeys(figures, 1.0)}
        both = [{"rank": rank, "node": f"n{rank}", **one, "step_ms": rank + 1.0} for rank in (0, 1)]
        titles.update(of_ranks.table(both, deciding=hidden)[0])
    rows = re.findall(
        r"^\| (`.*?) \|", section_of("reference/reading-a-verdict.md", "## The columns of the table"), re.MULTILINE
    )
    assert sorted(re.findall(r"`([^`]+)`", " ".join(rows))) == sorted(titles)


def in_pages(pattern: str) -> list[tuple[str, Any]]:
    """All that a pattern finds, with the page in which it stands."""
    return [(page.name, found) for page in PAGES for found in re.findall(pattern, page.read_text(encoding="utf-8"))]


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def section_of(page: str, heading: str) -> str:
    """What a page has under one heading."""
    return (DOCS / page).read_text(encoding="utf-8").split(heading)[1].split("\n## ", maxsplit=1)[0]


@cache
def options(command: str) -> set[str]:
    """The options that a subcommand takes."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"hindmost_cli.{command}").configure(parser)
    return set(re.findall(r"--[a-z][a-z-]*", parser.format_help()))


def invocations(path: Path) -> Iterator[tuple[str, str]]:
    """Each ``(subcommand, words after it)`` in a file, the words of the job after ``--`` left out."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for match in INVOCATION.finditer(text):
        yield match["name"], match["words"].split(" -- ")[0]
    if path.suffix == ".yaml":
        for document in yaml.safe_load_all(text):
            yield from arguments(document)


def arguments(node: Any) -> Iterator[tuple[str, str]]:
    """Each list in a YAML document that begins with a subcommand."""
    if isinstance(node, list) and node and str(node[0]) in COMMANDS:
        yield node[0], " ".join(node[1:])
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from arguments(child)


def variables(paths: list[Path]) -> set[str]:
    """Every environment variable of hindmost that some files name."""
    names = set().union(*(re.findall(r"\bHINDMOST_[A-Z][A-Z_]*\b", path.read_text(encoding="utf-8")) for path in paths))
    return {name for name in names if not name.endswith("_H")}


def first_column(page: str, heading: str) -> set[str]:
    """The code names in the first column of the table under a heading."""
    return set(re.findall(r"^\| `(\w+)` \|", section_of(page, heading), re.MULTILINE))


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """``hindmost --version`` is the version of the package."""
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"hindmost {__version__}\n"


def test_the_package_is_built_from_it() -> None:
    """pyproject.toml has no version of its own."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version *=", text, re.MULTILINE)


def test_the_citation_has_it() -> None:
    """CITATION.cff is read by machines that build nothing."""
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]) == __version__


def test_the_newest_entry_of_the_changelog_is_it() -> None:
    """A release has an entry with its date."""
    entries = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert entries[0] == __version__


def test_images_are_tagged_with_it() -> None:
    """What is deployed names the image of this version."""
    for path in (ROOT / "deploy/kubernetes").glob("*.yaml"):
        assert re.findall(r"image: hindmost:(\S+)", path.read_text(encoding="utf-8")) == [__version__], path.name


@pytest.mark.parametrize("name", GENERATED)
def test_the_page_is_fresh(name: str) -> None:
    """Renew it with ``make reference``."""
    assert GENERATED[name]() == written(name), f"docs/reference/{name} is stale: run make reference"


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
    known |= RENAMED | {f"{name}_bucket" for name in known}
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
