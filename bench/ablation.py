"""What decides what: each gate and threshold of the judge switched off, doubled or halved, over recordings and benches.

    python bench/ablation.py collect --out runs.pkl [--corpus DIR]...
    python bench/ablation.py ablate runs.pkl... --out ablation.json [--jobs N] [--minutes M] [--most RUNS]
    python bench/ablation.py table ablation.json
    python bench/ablation.py together runs.pkl... --out together.json [--minutes M]

``ablate`` goes on where it stopped, and with a larger ``--most`` it tries more runs where nothing changed so far.

``collect`` reads every recording and makes a few runs of each family of ``bench/accuracy``. ``ablate`` imports the
judge with a switch at every function and gate in its source. Switched off, a function finds nothing, or leaves what it
is given as it is; an ``if`` never holds; what a comprehension asks for, or a function returns as one of several
conditions, always does. Numbers that a module names are doubled and halved, and so are the settings. A change is tried
on runs in which it can make a difference: the function was called, the gate was shut, the number was read. ``table``
says how many decisions each of them changed, and of known truths how many for the better.

``together`` switches all functions and branches of three lines and more off at once. Those that a run's decisions need
are found by halves and switched on again, until no run is decided otherwise. What stays off decides nothing, also
where one rule takes the other's place.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import multiprocessing
import pickle
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench/accuracy")]

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, ModuleType

COLLECTOR = ROOT / "collector"
#: What decides, and not what words it, in the order in which it is tried.
FOLDERS = ("detect", "causes", "timeline", "verdict", "whatif", "graph", "stats")
FILES = ("judge.py",)
WORDS = ("wording", "advice", "summary", "schema.py")
#: A change is tried until so many runs were decided otherwise.
ENOUGH = 3
#: Runs of each family of the benches.
EACH = {"cohorts": 3, "lanes": 4, "injected": 6}
#: CPU seconds after which judging a run has no end: a loop without its gate.
LONGEST = 8.0
EXITS = (ast.Return, ast.Continue, ast.Break, ast.Raise)


# --- the judge with switches ------------------------------------------------------------------------------------------


class Switches:
    """Every gate and number of the judge by its place in the source; which were shut or read since :meth:`clear`."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.off: list[Any] = []
        self.lines: list[int] = []
        self.changed, self.factor = -1, 1.0
        self.shut: set[int] = set()
        self.used: set[int] = set()

    def add(self, place: str, off: Any, lines: int = 1) -> int:
        """The number of a new switch, and of how many lines it is of."""
        self.places.append(place)
        self.off.append(off)
        self.lines.append(lines)
        return len(self.places) - 1

    def gate(self, number: int, value: Any) -> Any:
        """A condition, or what it is without its gate."""
        if number == self.changed or number in self.shut:
            return self.off[number]
        if number not in self.used and _truth(value) is not self.off[number]:
            self.used.add(number)
        return value

    def function(self, number: int) -> bool:
        """Whether a function finds nothing."""
        self.used.add(number)
        return number == self.changed or number in self.shut

    def number(self, number: int, value: Any) -> Any:
        """A number, or that times the factor."""
        self.used.add(number)
        if number != self.changed:
            return value
        return type(value)(max(round(value * self.factor), 1)) if isinstance(value, int) else value * self.factor


def _truth(value: Any) -> bool | None:
    """Whether a condition holds; ``None`` of an array, in which it may for some."""
    try:
        return bool(value)
    except ValueError:
        return None


SWITCHES = Switches()


class Switched(ast.NodeTransformer):
    """Puts a switch at each gate and named number of a module."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name = name
        self.numbers = {
            target.id
            for one in tree.body
            if isinstance(one, (ast.Assign, ast.AnnAssign))
            for target in _names(one)
            if target.id.isupper()
        }
        self.switches: dict[str, int] = {}
        self.inside = False

    def _gate(self, node: ast.expr, text: str, what: str, off: bool, lines: int = 1) -> ast.expr:
        number = SWITCHES.add(f"{self.name}:{node.lineno} {what} {text}", off, lines)
        return _call("_gate_", number, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self.inside = self.inside, True
        node.body = [self.visit(one) for one in node.body]
        self.inside = outer
        nothing = _nothing(node)
        if nothing is not None:
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            number = SWITCHES.add(f"{self.name}:{node.lineno} function {node.name}", False, lines)
            shut = ast.Call(ast.Name("_function_", ast.Load()), [ast.Constant(number)], [])
            leave = ast.If(shut, [ast.Return(nothing)], [])
            node.body.insert(0, ast.fix_missing_locations(ast.copy_location(leave, node.body[0])))
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        text = ast.unparse(node.test)
        self.generic_visit(node)
        if self.inside and not _for_types(node.test):
            leaves = isinstance(node.body[-1], EXITS)
            lines = (node.body[-1].end_lineno or node.lineno) - node.lineno + 1
            node.test = self._gate(node.test, text, "leaves if" if leaves else "if", off=False, lines=lines)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        texts = [ast.unparse(one) for one in node.ifs]
        self.generic_visit(node)
        if self.inside:
            pairs = zip(node.ifs, texts, strict=True)
            node.ifs = [self._gate(one, text, "only where", off=True) for one, text in pairs]
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        conditions = node.value.values if isinstance(node.value, ast.BoolOp) else []
        texts = [ast.unparse(one) for one in conditions]
        self.generic_visit(node)
        if isinstance(node.value, ast.BoolOp) and isinstance(node.value.op, ast.And):
            pairs = zip(node.value.values, texts, strict=True)
            node.value.values = [self._gate(one, text, "and", off=True) for one, text in pairs]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not self.inside or node.id not in self.numbers or not isinstance(node.ctx, ast.Load):
            return node
        if node.id not in self.switches:
            self.switches[node.id] = SWITCHES.add(f"{self.name} {node.id}", None)
        return _call("_number_", self.switches[node.id], node)


def _nothing(node: ast.FunctionDef) -> ast.expr | None:
    """What a function returns that finds nothing, or leaves what it is given as it is."""
    if node.returns is None or any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in ast.walk(node)):
        return None
    kind, first = ast.unparse(node.returns), next(iter(node.args.args), None)
    if first is not None and first.annotation is not None and ast.unparse(first.annotation) == kind != "bool":
        return ast.Name(first.arg, ast.Load())
    if kind == "bool":
        return ast.Constant(False)
    if kind.endswith("| None"):
        return ast.Constant(None)
    return ast.List([], ast.Load()) if kind.startswith("list[") else None


def _names(one: ast.Assign | ast.AnnAssign) -> Iterator[ast.Name]:
    """Names that are numbers, also of a tuple of them."""
    targets = one.targets if isinstance(one, ast.Assign) else [one.target]
    for target in targets:
        pairs = [(target, one.value)]
        if isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
            pairs = list(zip(target.elts, one.value.elts, strict=False))
        for name, value in pairs:
            if isinstance(name, ast.Name) and value is not None and _is_number(value):
                yield name


def _is_number(node: ast.expr) -> bool:
    known = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    constants = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
    whole = all(isinstance(one, known) for one in ast.walk(node))
    return whole and bool(constants) and all(type(one) in (int, float) for one in constants)


def _for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _call(name: str, number: int, node: ast.expr) -> ast.expr:
    made = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number), node], [])
    return ast.fix_missing_locations(ast.copy_location(made, node))


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module of the judge with its switches."""

    def get_code(self, fullname: str) -> CodeType:
        """Never from a cache, which has no switches."""
        path = Path(self.get_filename(fullname))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        switched = Switched(_place(path), tree).visit(tree)
        code: CodeType = compile(switched, str(path), "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """With what its switches call."""
        vars(module).update(_gate_=SWITCHES.gate, _number_=SWITCHES.number, _function_=SWITCHES.function)
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules that decide."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """As the path finder does, with another loader."""
        if not fullname.startswith("hindmost_judge."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and _decides(Path(spec.origin)):
            spec.loader = Loader(fullname, spec.origin)
        return spec


def _place(path: Path) -> str:
    """A module by its path in the judge."""
    return path.relative_to(COLLECTOR / "hindmost_judge").as_posix()


def _decides(path: Path) -> bool:
    place = _place(path)
    part = place.split("/")[0]
    return (part in FOLDERS or place in FILES) and not path.name.startswith((*WORDS, "__"))


def _import_all() -> None:
    """All modules that decide, in one order, so that a switch has one number in each process."""
    sys.meta_path.insert(0, Finder())
    importlib.import_module("hindmost_judge.judge")
    for path in sorted(COLLECTOR.glob("hindmost_judge/**/*.py")):
        if _decides(path):
            importlib.import_module(".".join(path.relative_to(COLLECTOR).with_suffix("").parts))


# --- runs -------------------------------------------------------------------------------------------------------------


def collect(folders: list[Path], out: Path, only: str) -> None:
    """Every recording, and a few runs of each family of the benches, with what is true of them where that is known."""
    import injected  # noqa: PLC0415 - bench/accuracy, where it is asked for
    import numpy as np  # noqa: PLC0415
    import suite  # noqa: PLC0415
    from hindmost_collector.recordings.load import load  # noqa: PLC0415
    from hindmost_collector.simulate import simulate  # noqa: PLC0415
    from two_lanes import families  # noqa: PLC0415
    from two_lanes import simulate as two_lanes  # noqa: PLC0415

    from bench.golden import OURS, recordings  # noqa: PLC0415

    found: list[tuple[str, Any, Any]] = []
    for name, path in recordings([OURS, *folders]).items():
        if f"recording {name}".startswith(only):
            found.append((f"recording {name}", load(path), None))
    with np.errstate(all="ignore"):
        for family, share in suite.SHARES.items():
            asked = share and family != "large" and f"cohorts {family}".startswith(only)
            for seed in range(1000, 1000 + EACH["cohorts"]) if asked else ():
                job = suite.scenario(family, seed)
                if job.ranks <= 64:
                    made = simulate(job)
                    truth = sorted({rank for fault in job.faults for rank in fault.ranks})
                    found.append((f"cohorts {family} {seed}", made.run, truth if family not in NO_RANK else []))
        for family in families.FAMILIES:
            for seed in range(1000, 1000 + EACH["lanes"]) if f"lanes {family}".startswith(only) else ():
                lanes = families.job(family, seed)
                both = two_lanes(lanes)
                found.append((f"lanes {family} {seed}", both.run, (lanes, both.truth)))
        for family in injected.FAMILIES:
            for seed in range(1000, 1000 + EACH["injected"]) if f"injected {family}".startswith(only) else ():
                run, recording, truth = injected.made(family, seed)
                found.append((f"injected {family} {seed}", run, (recording, truth)))
    with out.open("wb") as stream:
        pickle.dump(found, stream, protocol=5)
    print(f"{len(found)} runs, {out.stat().st_size >> 20} MiB")


#: Families of the first simulator in which no rank is named.
NO_RANK = ("clean", "hidden", "link", "network", "stages")

#: What workers share: set before they start.
RUNS: list[tuple[str, Any, Any]] = []


def _decided(index: int, settings: Any = None) -> tuple[list[dict[str, Any]], bool | None]:
    """The decisions on a run, and whether they are right where that is known."""
    import numpy as np  # noqa: PLC0415
    from hindmost_judge.judge import judge  # noqa: PLC0415
    from hindmost_judge.settings import DEFAULT  # noqa: PLC0415
    from two_lanes.grade import compared  # noqa: PLC0415

    from bench.golden import as_decision  # noqa: PLC0415

    _, run, truth = RUNS[index]
    for cached in _cached():
        cached.cache_clear()
    signal.setitimer(signal.ITIMER_PROF, LONGEST, LONGEST)
    try:
        with np.errstate(all="ignore"):
            verdicts = judge(run, settings or DEFAULT).verdicts
        right = None
        if isinstance(truth, list):
            right = sorted({rank for one in verdicts if one.kind in NAMING for rank in one.ranks}) == truth
        elif truth is not None:
            right = bool(compared(truth[0], truth[1], verdicts)["exact"])
    except (Exception, NoEndError) as error:  # noqa: BLE001 - a judge without a gate may fail: it decides that
        return [{"kind": f"raised {type(error).__name__}", "ranks": []}], None if truth is None else False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return [as_decision(one) for one in verdicts], right


NAMING = ("straggler", "intermittent", "hang", "desync")


@cache
def _cached() -> list[Any]:
    """Functions of the judge that remember results: of another change these are wrong."""
    modules = [module for name, module in sys.modules.items() if name.startswith("hindmost_judge.")]
    return [one for module in modules for one in vars(module).values() if hasattr(one, "cache_clear")]


def _first(index: int) -> tuple[int, list[dict[str, Any]], bool | None, list[str], float]:
    """A run as it is: decisions, the switches and settings that it uses, and the seconds that judging takes."""
    from hindmost_judge.settings import Settings  # noqa: PLC0415

    names, read = {one.name for one in fields(Settings)}, set[str]()

    class Read(Settings):
        def changed(self) -> None:
            """Nothing, for which all would be read."""

        def __getattribute__(self, name: str) -> Any:
            if name in names:
                read.add(name)
            return super().__getattribute__(name)

    SWITCHES.used.clear()
    begun = time.process_time()
    found, right = _decided(index, Read())
    places = sorted({SWITCHES.places[number] for number in SWITCHES.used})
    return index, found, right, [*places, *sorted(read)], time.process_time() - begun


def _changed(change: tuple[str, int, float, list[int]]) -> tuple[str, float, list[tuple[int, bool | None]], int]:
    """A change, and the runs whose decisions it changes."""
    from hindmost_judge.settings import DEFAULT  # noqa: PLC0415

    from bench.golden import differences  # noqa: PLC0415

    name, number, factor, runs = change
    tried = 0
    settings = None
    if number < 0:
        value = getattr(DEFAULT, name)
        other = type(value)(value * factor) if factor else type(value)(0)
        settings = replace(DEFAULT, **{name: other})
    SWITCHES.changed, SWITCHES.factor = number, factor
    found = []
    for index in runs:
        tried += 1
        before, _ = BEFORE[index]
        now, right = _decided(index, settings)
        if differences({"a": before}, {"a": now}):
            found.append((index, right))
        if len(found) == ENOUGH or (now and now[0]["kind"] == f"raised {NoEndError.__name__}"):
            break
    SWITCHES.changed = -1
    return name, factor, found, tried


BEFORE: dict[int, tuple[list[dict[str, Any]], bool | None]] = {}


#: Between two times that unfinished results are written, s.
SAVED_S = 20.0


def _save(out: Path, results: dict[str, Any], apart_s: float = 0.0) -> None:
    """Write results, whole or not at all, unless they were written less than ``apart_s`` ago."""
    if out.exists() and time.time() - out.stat().st_mtime < apart_s:
        return
    unfinished = out.with_name(f"{out.name}.new")
    unfinished.write_text(json.dumps(results))
    unfinished.replace(out)


def _load(paths: list[Path]) -> None:
    """Make the switches, and read the runs."""
    logging.disable()
    signal.signal(signal.SIGPROF, _no_end)
    _import_all()
    for path in paths:
        with path.open("rb") as stream:
            RUNS.extend(pickle.load(stream))  # noqa: S301 - our own


def ablate(paths: list[Path], out: Path, jobs: int, minutes: float, most: int) -> None:
    """All changes, each on at most so many of the runs in which it can make a difference."""
    begun = time.monotonic()
    _load(paths)
    from hindmost_judge.settings import Settings  # noqa: PLC0415

    whole: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"before": {}, "results": {}}
    context = multiprocessing.get_context("fork")
    new = [index for index, one in enumerate(RUNS) if one[0] not in whole["before"]]
    with context.Pool(jobs) as pool:
        for index, *found in _until(pool.imap_unordered(_first, new), begun, minutes):
            whole["before"][RUNS[index][0]] = found
            _save(out, whole, SAVED_S)
    _save(out, whole)
    uses: dict[str, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for index, (name, _, _) in enumerate(RUNS):
        if name in whole["before"]:
            found, right, places, seconds[index] = whole["before"][name]
            BEFORE[index] = (found, right)
            for place in places:
                uses[place].append(index)
    print(f"{time.monotonic() - begun:.0f} s: {len(BEFORE)} of {len(RUNS)} runs, {len(uses)} switches used", flush=True)
    if len(BEFORE) < len(RUNS):
        return
    changes = [(place, n, f) for n, place in enumerate(SWITCHES.places) for f in _factors(n)]
    changes += [(one.name, -1, f) for one in fields(Settings) for f in (0.0, 0.5, 2.0)]
    changes.sort(key=lambda one: _turn(one[0]))
    results = whole["results"]
    waiting = []
    for place, n, factor in changes:
        runs = sorted(_chosen(uses.get(place, ()), most), key=seconds.__getitem__)
        earlier = results.get(f"{place} | {factor:g}", {"tried": -1, "changed": []})
        if earlier["tried"] < len(runs) and not earlier["changed"]:
            waiting.append((place, n, factor, runs))
    with context.Pool(jobs) as pool:
        for name, factor, other, tried in _until(pool.imap_unordered(_changed, waiting), begun, minutes):
            results[f"{name} | {factor:g}"] = {
                "tried": tried,
                "changed": [RUNS[index][0] for index, _ in other],
                "better": sum(now is True and BEFORE[index][1] is False for index, now in other),
                "worse": sum(now is False and BEFORE[index][1] is True for index, now in other),
            }
            _save(out, whole, SAVED_S)
    whole["right"] = Counter(str(one) for _, one in BEFORE.values())
    whole["unused"] = [place for place in SWITCHES.places if place not in uses]
    _save(out, whole)
    print(
        f"{time.monotonic() - begun:.0f} s: {len(results)} of {len(changes)} changes, {len(whole['unused'])} never used"
    )


#: Branches of fewer lines are not switched off together: most of them guard against what is missing.
FEWEST_LINES = 3


def together(paths: list[Path], out: Path, minutes: float) -> None:
    """The switches that can be off at once without another decision on any run."""
    begun = time.monotonic()
    _load(paths)
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"needed": {}, "runs": []}
    off = [n for n, lines in enumerate(SWITCHES.lines) if SWITCHES.off[n] is False and lines >= FEWEST_LINES]
    off = [n for n in off if SWITCHES.places[n] not in found["needed"]]
    late = False
    while not late:
        asked = len(off)
        for index, (name, _, _) in enumerate(RUNS):
            late = time.monotonic() - begun > 60 * minutes
            if name in found["runs"] or late:
                continue
            SWITCHES.shut = set()
            SWITCHES.used.clear()
            before, used = _decided(index)[0], set(SWITCHES.used)
            while not _alike(index, before, off):
                needed = _needed(index, before, [n for n in off if n in used]) or [_last_needed(index, before, off)]
                found["needed"] |= {SWITCHES.places[n]: name for n in needed}
                off = [n for n in off if n not in needed]
            found["runs"].append(name)
            _save(out, found, SAVED_S)
        if len(off) == asked or late:
            break
        found["runs"] = []  # what was switched on for a later run may need what is off in an earlier one
    SWITCHES.shut = set()
    found["off"] = {SWITCHES.places[n]: SWITCHES.lines[n] for n in off}
    _save(out, found)
    print(f"{len(found['runs'])} of {len(RUNS)} runs: {len(off)} switches off, {len(found['needed'])} needed")


def _alike(index: int, before: list[dict[str, Any]], off: Sequence[int]) -> bool:
    """Whether a run is decided as before with these off."""
    from bench.golden import differences  # noqa: PLC0415

    SWITCHES.shut = set(off)
    return not differences({"a": before}, {"a": _decided(index)[0]})


def _needed(index: int, before: list[dict[str, Any]], off: list[int]) -> list[int]:
    """Those of these that decide this run, found by halves."""
    if not off or _alike(index, before, off):
        return []
    if len(off) == 1:
        return off
    return [n for half in (off[: len(off) // 2], off[len(off) // 2 :]) for n in _needed(index, before, half)]


def _last_needed(index: int, before: list[dict[str, Any]], off: list[int]) -> int:
    """The one that, after all before it are off, decides this run."""
    alike, otherwise = 0, len(off)
    while otherwise - alike > 1:
        middle = (alike + otherwise) // 2
        alike, otherwise = (middle, otherwise) if _alike(index, before, off[:middle]) else (alike, middle)
    return off[otherwise - 1]


def _until(found: Any, begun: float, minutes: float) -> Iterator[Any]:
    """What workers found, until there is no time left."""
    with contextlib.suppress(StopIteration, multiprocessing.TimeoutError):
        while True:
            yield found.next(timeout=max(begun + 60 * minutes - time.monotonic(), 0.01))


def _turn(place: str) -> int:
    """When the switches of a part are tried: functions first, then by the order of the parts, settings last."""
    if " function " in place:
        return -1
    part = place.split("/", maxsplit=1)[0]
    return FOLDERS.index(part) if part in FOLDERS else len(FOLDERS)


class NoEndError(BaseException):
    """Judging a run has no end; not what detectors catch."""


def _no_end(*_: object) -> None:
    raise NoEndError


def _factors(number: int) -> tuple[float, ...]:
    return (0.0,) if SWITCHES.off[number] is not None else (0.5, 2.0)


def _chosen(runs: Sequence[int], most: int) -> list[int]:
    """At most so many of these, alike in each ablation, spread over them all."""
    return random.Random(1).sample(list(runs), min(most, len(runs)))  # noqa: S311 - a sample


def table(path: Path) -> None:
    """How many switches of each part decide, then a line a switch, those that change nothing last."""
    whole = json.loads(path.read_text())
    by: dict[str, list[SimpleNamespace]] = defaultdict(list)
    for name, found in whole["results"].items():
        by[name.rsplit(" | ", 1)[0]].append(SimpleNamespace(**found))
    rows, parts = [], defaultdict[str, Counter[str]](Counter)
    for name, found in by.items():
        changed = {one for each in found for one in each.changed}
        worse, better = sum(one.worse for one in found), sum(one.better for one in found)
        rows.append((-len(changed), name, max(one.tried for one in found), len(changed), worse, better))
        kind = "function" if " function " in name else "gate" if ":" in name.split(" ")[0] else "number"
        parts[_part(name)][f"{kind} {bool(changed) if rows[-1][2] else None}"] += 1
    columns = [f"{kind} {decides}" for kind in ("function", "gate", "number") for decides in (True, False, None)]
    print("| part | functions: decide | decide nothing | unused | gates | | | numbers | | |")
    print("| --- " * 10 + "|")
    for part, count in sorted(parts.items()):
        print(f"| `{part}` | {' | '.join(str(count[column]) for column in columns)} |")
    print("\n| switch | runs tried | decisions changed | worse | better |\n| --- | --- | --- | --- | --- |")
    for _, name, tried, count, worse, better in sorted(rows):
        print(f"| `{name}` | {tried} | {count} | {worse} | {better} |")


def _part(place: str) -> str:
    if ".py" not in place:
        return "settings"
    return place.partition("/")[0] if "/" in place.partition(".py")[0] else "other files"


def main() -> None:
    """Collect, ablate or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="write the runs")
    collecting.add_argument("--out", type=Path, required=True)
    collecting.add_argument("--corpus", type=Path, action="append", default=[])
    collecting.add_argument("--only", default="", help="runs whose name begins so, such as 'lanes host-bound'")
    ablating = commands.add_parser("ablate", help="try all changes")
    ablating.add_argument("runs", type=Path, nargs="+")
    ablating.add_argument("--out", type=Path, required=True)
    ablating.add_argument("--jobs", type=int, default=1)
    ablating.add_argument("--minutes", type=float, default=60.0)
    ablating.add_argument("--most", type=int, default=20, help="runs that a change is tried on, of those that use it")
    joint = commands.add_parser("together", help="find what can be off at once")
    joint.add_argument("runs", type=Path, nargs="+")
    joint.add_argument("--out", type=Path, required=True)
    joint.add_argument("--minutes", type=float, default=60.0)
    printing = commands.add_parser("table", help="print the results")
    printing.add_argument("results", type=Path)
    args = parser.parse_args()
    if args.command == "collect":
        collect(args.corpus, args.out, args.only)
    elif args.command == "ablate":
        ablate(args.runs, args.out, args.jobs, args.minutes, args.most)
    elif args.command == "together":
        together(args.runs, args.out, args.minutes)
    else:
        table(args.results)


if __name__ == "__main__":
    main()
