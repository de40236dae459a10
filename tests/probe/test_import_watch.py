"""Probes wait for their frameworks: each is imported with its package, and called with the modules that it names."""

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hindmost.probes import ImportWatch


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package ``drill`` with a module ``hammer``; neither has been imported."""
    (tmp_path / "drill").mkdir()
    (tmp_path / "drill/__init__.py").write_text("ready = True\n")
    (tmp_path / "drill/hammer.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "drill"
    for name in ("drill", "drill.hammer"):
        sys.modules.pop(name, None)


@pytest.fixture
def watch() -> Iterator[Callable[..., ImportWatch]]:
    """Makes watches, and takes them away in the end."""
    made: list[ImportWatch] = []

    def make(*args: Any, **kwargs: Any) -> ImportWatch:
        made.append(ImportWatch(*args, **kwargs))
        made[-1].install()
        return made[-1]

    yield make
    for one in made:
        one.remove()


def test_a_module_that_a_probe_names_is_acted_on_once_it_is_ready(package: str, watch: Any) -> None:
    """The probe is loaded before its package is; its action gets the module when its body has run."""
    events: list[str] = []

    def probe(name: str) -> dict[str, Any]:
        events.append(f"loads the probe of {name}, imported: {name in sys.modules}")
        return {"drill.hammer": lambda module: events.append(f"{module.__name__} {module.ready}")}

    watch(lambda *_: None, packages={package: probe})
    importlib.import_module("drill")
    assert events == ["loads the probe of drill, imported: False"]
    importlib.import_module("drill.hammer")
    assert events[1:] == ["drill.hammer True"]


def test_a_package_that_is_there_already_is_acted_on_at_once(package: str, watch: Any) -> None:
    """The probe of an attached process comes after the imports."""
    importlib.import_module(package)
    acted: list[Any] = []
    watch(lambda *_: None, packages={package: lambda _: {"drill": acted.append}})
    assert acted == [sys.modules["drill"]]


def test_how_long_an_import_took_is_said(package: str, watch: Any) -> None:
    """Once it has been made; of a module that is there already nothing is known."""
    took: list[tuple[str, int, int]] = []
    begins = time.monotonic_ns()
    watch(lambda *_: None, {"drill": lambda _: None}, took=lambda *one: took.append(one))
    importlib.import_module("drill")
    watch(lambda *_: None, {"drill": lambda _: None}, took=lambda *one: took.append(one))
    ((name, start, end),) = took
    assert name == "drill"
    assert begins <= start <= end <= time.monotonic_ns()


def test_a_probe_that_cannot_be_imported_is_named_and_stops_no_import(package: str, watch: Any) -> None:
    """The job imports its framework as if there were no probe."""
    failed: list[str] = []
    watch(lambda name, error: failed.append(f"{name}: {error!r}"), packages={package: lambda _: {}[_]})
    assert importlib.import_module(package).ready
    assert failed == ["drill: KeyError('drill')"]


def test_no_probe_is_imported_before_its_framework() -> None:
    """A process that trains with nothing that is known pays for no probe."""
    program = """
import sys
from hindmost import probes
from hindmost.recorder import Recorder
probes.install(Recorder(ring=None))
import json, decimal
print(sorted(name for name in sys.modules if name.startswith("hindmost.probes.")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['hindmost.probes.guard']\n"
