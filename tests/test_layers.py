"""Packages import downwards only; imports for types and inside functions count."""

import ast
import graphlib
import re
import sys
from functools import cache
from pathlib import Path

import hindmost_judge
import pytest

ROOT = Path(__file__).parents[1]
#: What each package may import of the others. The probe and the judge know none of them.
BELOW = {
    "agent/hindmost": set(),
    "proto/hindmost_proto": set(),
    "collector/hindmost_judge": set(),
    "agent/hindmost_agent": {"hindmost", "hindmost_judge", "hindmost_proto"},
    "collector/hindmost_collector": {"hindmost", "hindmost_judge", "hindmost_proto"},
    "agent/hindmost_cli": {"hindmost", "hindmost_agent", "hindmost_collector", "hindmost_judge", "hindmost_proto"},
}
#: ``python -m hindmost`` is the command line.
STARTS = {("__main__.py", "hindmost_cli")}


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a module, wherever in it."""
    every = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in every if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    """No module imports one of a package above its own."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in imports(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            tops = {name.partition(".")[0] for name in names}
            found |= {(path.name, top) for top in tops if top.startswith("hindmost") and top != Path(package).name}
    assert not {one for one in found if one[1] not in BELOW[package]} - STARTS


@pytest.mark.parametrize("package", sorted(BELOW))
def test_modules_of_a_package_import_each_other_in_one_direction(package: str) -> None:
    """No module needs, for its types either, one that needs it."""
    top = ROOT / package
    paths = {path.relative_to(top.parent).with_suffix(""): path for path in top.rglob("*.py")}
    modules = {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}
    graph = {}
    for module, path in modules.items():
        nodes = imports(path)
        named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {name if name in modules else str(node.module) for name in full}
        graph[module] = named & modules.keys() - {module}
    graphlib.TopologicalSorter(graph).prepare()


def test_a_report_needs_no_running_job() -> None:
    """Modules of ``report`` import none of ``live``."""
    nodes = [node for path in (ROOT / "collector/hindmost_collector/report").rglob("*.py") for node in imports(path)]
    named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    named |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert "hindmost_collector.report" in named
    assert not {name for name in named if name.startswith("hindmost_collector.live")}


def test_the_page_on_architecture_says_so_too() -> None:
    """Each package's row names those that it may import; the command line may import all."""
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(hindmost\w*)`[^|]*\| (.*) \|$", page, re.MULTILINE))
    may = {Path(package).name: names for package, names in BELOW.items()}
    assert {name: set(re.findall(r"`(hindmost\w*)`", row)) for name, row in rows.items()} == {
        **may,
        "hindmost_cli": set(),
    }


def test_no_test_imports_another() -> None:
    """What two tests share has a module of its own."""
    imported = re.compile(r"^\s*(?:from|import) (?:tests)?\.[\w.]*\btest_\w+", re.MULTILINE)
    files = (ROOT / "tests").rglob("*.py")
    assert [str(path) for path in files if imported.search(path.read_text(encoding="utf-8"))] == []


ALLOWED = {"hindmost_judge", "numpy", *sys.stdlib_module_names}
#: Arrow hashes columns, where a run is large enough for it.
LATER = {("encoding.py", "pyarrow")}


def test_the_judge_imports_numpy_only() -> None:
    """No module of it imports the collector, the agent, the probe or another library."""
    found = set()
    for path in Path(hindmost_judge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {(path.name, name) for name in names if name.partition(".")[0] not in ALLOWED} - LATER
    assert not found
