"""bench/ablation.py: a module with switches does what it did, until one of them is thrown."""

import ast
from typing import Any

import pytest

from bench import ablation

SOURCE = """
LEAST, _MOST = 3, 8.0
NAMES = ("a",)

def gated(value):
    if value < LEAST:
        return "small"
    return "large"

def several(values):
    return [one for one in values if one > LEAST and one < _MOST]

def both(value):
    return value > LEAST and value < _MOST

def called(name):
    return name in NAMES

def without(found: list[int], least: int) -> list[int]:
    return found[least:]

def late(row: int) -> float | None:
    return float(row)
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a module of this source defines, and its switches."""
    switches = ablation.Switches()
    monkeypatch.setattr(ablation, "SWITCHES", switches)
    tree = ast.parse(SOURCE)
    code = compile(ablation.Switched("example.py", tree).visit(tree), "example", "exec")
    defined: dict[str, Any] = {
        "_gate_": switches.gate,
        "_number_": switches.number,
        "_function_": switches.function,
    }
    exec(code, defined)  # noqa: S102 - the source above
    return defined, switches


def thrown(module: Any, place: str, factor: float = 0.0) -> None:
    """Throw the switch whose place begins so."""
    switches = module[1]
    (switches.changed,) = [n for n, one in enumerate(switches.places) if one.startswith(place)]
    switches.factor = factor


def test_with_no_switch_thrown_nothing_changes(module: Any) -> None:
    """The same values, and what was read or shut is known."""
    defined, switches = module
    assert defined["gated"](2) == "small"
    assert defined["several"](range(10)) == [4, 5, 6, 7]
    used = {switches.places[n] for n in switches.used}
    assert "example.py:6 leaves if value < LEAST" in used
    assert "example.py LEAST" in used
    assert "example.py:14 and value > LEAST" not in used  # it was not asked


@pytest.mark.parametrize(
    ("place", "name", "value", "found"),
    [
        ("example.py:6 leaves if", "gated", 2, "large"),
        ("example.py:11 only where", "several", [1, 9], [1, 9]),
        ("example.py:14 and value > LEAST", "both", 1, True),
        ("example.py:14 and value < _MOST", "both", 9, True),
    ],
)
def test_a_gate_switched_off_lets_all_pass(module: Any, place: str, name: str, value: Any, found: Any) -> None:
    """An ``if`` never holds; a condition of a comprehension or of a result always does."""
    thrown(module, place)
    assert module[0][name](value) == found


def test_a_function_switched_off_finds_nothing_or_changes_nothing(module: Any) -> None:
    """One that returns what it was given, changed, returns it as it was."""
    assert (module[0]["without"]([1, 2], 1), module[0]["late"](3)) == ([2], 3.0)
    thrown(module, "example.py:19 function without")
    assert module[0]["without"]([1, 2], 1) == [1, 2]
    thrown(module, "example.py:22 function late")
    assert module[0]["late"](3) is None


@pytest.mark.parametrize(("factor", "found"), [(2.0, "small"), (0.5, "large")])
def test_a_number_is_doubled_or_halved(module: Any, factor: float, found: str) -> None:
    """A whole number stays one, and is never zero."""
    thrown(module, "example.py LEAST", factor)
    assert module[0]["gated"](5 if factor > 1 else 2) == found


def test_what_is_no_number_has_no_switch(module: Any) -> None:
    """Names of texts are left alone."""
    assert not any("NAMES" in place for place in module[1].places)


def test_what_is_shut_together_finds_nothing_at_once(module: Any) -> None:
    """Functions and branches alike; and how many lines each of them has is known."""
    defined, switches = module
    switches.shut = {n for n, one in enumerate(switches.places) if " function late" in one or " leaves if " in one}
    assert (defined["late"](3), defined["gated"](2), defined["without"]([1, 2], 1)) == (None, "large", [2])
    assert [switches.lines[n] for n in sorted(switches.shut)] == [2, 2]


def test_those_that_decide_a_run_are_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone; and of two that stand in for each other the later one."""
    monkeypatch.setattr(ablation, "_alike", lambda _run, _before, off: not {3, 7} & set(off))
    assert ablation._needed(0, [], list(range(10))) == [3, 7]
    monkeypatch.setattr(ablation, "_alike", lambda _run, _before, off: not {3, 7} <= set(off))
    assert ablation._needed(0, [], list(range(10))) == []
    assert ablation._last_needed(0, [], list(range(10))) == 7
