"""The whole probe in a running Python 3.14 or later, put in and taken out by ``sys.remote_exec`` (PEP 768).

The interpreter itself runs a script of ours when its main thread next comes by; nothing is paused. What the probe
hooks, it gives back at the end: functions, environment and modules are as before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import hindmost
from hindmost import ring
from hindmost.errors import HindmostError
from hindmost_agent.jobs.event_rows import PENDING_LIMIT, RowBuilder, is_amount

from hindmost_cli.attach.phases import PHASES, Shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hindmost_cli.attach.target import Target

#: Phase of the ring -> phase of the table, where they differ.
NAMES = {"sync": "comm"}


class _Builder(RowBuilder):
    """Keeps phases that no step holds: start, duration, name, and the time that is its own alone."""

    def __init__(self) -> None:
        super().__init__()
        self.between: list[tuple[int, int, str, int]] = []

    def _release(self, phases: Iterable[tuple[int, int, str, int]]) -> None:
        self.between += phases
        del self.between[:-PENDING_LIMIT]


class Folded:
    """A ring's phases made into shares, in steps and between them, however many they are."""

    def __init__(self) -> None:
        self._builder = _Builder()
        self._spent: Counter[str] = Counter()
        self._first = self._last = -1

    def add(self, records: bytes, of: ring.Reader) -> None:
        """Take whole records of the ring, in its order."""
        self._builder.feed(records, of)
        for step in self._builder.take().steps:
            self._first = step.start_ns if self._first < 0 else self._first
            self._last = step.start_ns + step.duration_ns
            self._spend(step.phases.items())
        between, first, last = self._builder.between, self._first, self._last
        self._spend((name, own) for start, _, name, own in between if first <= start < last)
        self._builder.between = [phase for phase in between if phase[0] >= last]

    def _spend(self, phases: Iterable[tuple[str, int]]) -> None:
        for name, ns in phases:
            if not is_amount(name):
                self._spent[NAMES.get(name, name)] += ns

    def shares(self) -> Shares:
        """Shares of the time from the first step to the last; empty where no step was seen."""
        total = self._last - self._first
        if total <= 0:
            return Shares({}, 0)
        known = {phase: min(1.0, self._spent[phase] / total) for phase in PHASES if phase != "other"}
        return Shares({**known, "other": max(0.0, 1.0 - sum(known.values()))}, 0)


#: The first version of Python 3 that has ``sys.remote_exec``.
FIRST_MINOR = 14
#: A main thread that is inside one C call, in a long kernel or hung, comes by when that call returns.
ARRIVAL_S = 10.0
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a folder of our own is made in it

PUT_IN = """
import importlib.util, os, sys
os.environ.update({environ!r})
spec = importlib.util.spec_from_file_location("hindmost", {init!r}, submodule_search_locations=[{package!r}])
if "hindmost" not in sys.modules:
    sys.modules["hindmost"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from hindmost import bootstrap
    bootstrap.start()
    del module, bootstrap
del spec
"""
TAKE_OUT = """
import os
from hindmost import bootstrap
bootstrap.detach()
for name in {names!r}:
    os.environ.pop(name, None)
del bootstrap, name
"""
#: Ends what a process runs that came by only after the caller had left.
CLEAN_UP = """
import shutil
shutil.rmtree({folder!r}, ignore_errors=True)
del shutil
"""
#: In a folder with a file of this name a script waits for such a process, which removes it.
LATE = "late"


def measure(targets: Sequence[Target], seconds: float) -> list[Shares]:
    """Phases of the targets over so many seconds, each measured inside its process.

    HindmostError where one has another version of Python than can be reached, forbids it, or does not come by.
    """
    with _rings() as folder, _probe_in(targets, folder):
        readers = [_reader(folder, target.pid) for target in targets]
        folded = [Folded() for _ in targets]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for reader, fold in zip(readers, folded, strict=True):
                fold.add(reader.read(), reader)
            time.sleep(0.1)
        return [fold.shares() for fold in folded]


@contextmanager
def _rings() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hindmost-attach-", dir=SHARED_MEMORY))
    try:
        yield folder
    finally:
        if not (folder / LATE).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _probe_in(targets: Sequence[Target], folder: Path) -> Iterator[None]:
    """The probe is in all targets, and out of them again whatever happens."""
    package = str(Path(hindmost.__file__).parent)
    environ = {"HINDMOST_JOB_ID": "attach", "HINDMOST_RING_DIR": str(folder), "HINDMOST_LAUNCHER": "python"}
    source = PUT_IN.format(environ=environ, init=os.path.join(package, "__init__.py"), package=package)  # noqa: PTH118
    reached: list[Target] = []
    try:
        for target in targets:
            _execute(target, folder / f"in-{target.pid}.py", source)
            reached.append(target)
        yield
    finally:
        _take_out(reached, folder, TAKE_OUT.format(names=sorted(environ)))


def _take_out(targets: Sequence[Target], folder: Path, source: str) -> None:
    """Out of every target; HindmostError of one that could not be left, once the others have been."""
    with ExitStack() as stack:
        for target in reversed(targets):
            stack.callback(_execute, target, folder / f"out-{target.pid}.py", source, late=source)


def _execute(target: Target, script: Path, source: str, late: str = "") -> None:
    """Have the target run a script; return when it has. One that comes by too late runs ``late`` instead."""
    done = script.with_suffix(".done")
    script.write_text(f"{source}\nopen({str(done)!r}, 'w').close()\n")
    # The caller has to be of the target's own version, so the target's own interpreter calls.
    call = f"import sys; sys.remote_exec({target.pid}, {json.dumps(str(script))})"
    command = [f"/proc/{target.pid}/exe", "-I", "-c", call]
    executed = subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, "HINDMOST_PROBE": "0"}
    )
    if executed.returncode != 0:
        last = executed.stderr.strip().rpartition("\n")[2]
        raise HindmostError(f"process {target.pid} cannot be entered: {last or 'its Python forbids it'}")
    deadline = time.monotonic() + ARRIVAL_S
    while not done.exists():
        if time.monotonic() > deadline:
            _leave_for_later(script, late)
            raise HindmostError(
                f"process {target.pid} did not run Python for {ARRIVAL_S:.0f} s: it is inside one long call; "
                f"`hindmost attach --stacks --pid {target.pid}` shows where"
            )
        time.sleep(0.01)


def _leave_for_later(script: Path, source: str) -> None:
    """Replace a script that its process has not come by for; it cannot be called off."""
    (script.parent / LATE).touch()
    replacement = script.with_suffix(".late")
    replacement.write_text(source + CLEAN_UP.format(folder=str(script.parent)))
    replacement.replace(script)


def _reader(folder: Path, pid: int) -> ring.Reader:
    """The ring that a process makes when it begins its next step."""
    deadline = time.monotonic() + ARRIVAL_S
    while time.monotonic() < deadline:
        for path in folder.glob(f"*.py.{pid}.ring"):
            return ring.Reader(path)
        time.sleep(0.05)
    raise HindmostError(
        f"process {pid} finished no step in {ARRIVAL_S:.0f} s, so no phase was measured; try "
        f"`hindmost attach --sample --pid {pid}`"
    )
