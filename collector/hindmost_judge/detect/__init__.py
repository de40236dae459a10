"""Pure functions from a :class:`Case` to verdicts, one file each, and what runs them.

A new file here that registers a function is a new detector; a file without one is a part that several of them, or the
judge itself, are made of. The runner owns errors: a detector that fails costs its own verdict, and no other one's.
"""

from __future__ import annotations

import functools
import importlib
import logging
import pkgutil
from collections import Counter
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from hindmost_judge.verdict.schema import KINDS, STOPS, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hindmost_judge.blocks import Blocks, Sharing
    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview
    from hindmost_judge.settings import Settings

    Detector = Callable[["Case"], list[Verdict]]


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Case:
    """What a detector looks at: a ``run``, its ``blocks`` of [rank x step], and what is known of them by then.

    ``found`` are the verdicts before its own: on a stop, on ranks that are late, and of detectors that it comes after.
    ``shared`` is the node whose ranks share CPUs: there the scheduler decides who is late and what transfers take.
    ``seen`` are the steps as reports show them.
    """

    run: Run
    blocks: Blocks
    settings: Settings
    found: tuple[Verdict, ...] = ()
    shared: Sharing | None = None
    seen: Overview | None = None

    def has(self, kind: str) -> bool:
        """Whether there is a verdict of this kind already."""
        return any(one.kind == kind for one in self.found)

    @property
    def slow(self) -> list[Verdict]:
        """The verdicts on what makes steps longer."""
        return [one for one in self.found if one.kind not in STOPS]

    @property
    def named(self) -> set[int]:
        """Ranks that a verdict names."""
        return {rank for one in self.found for rank in one.ranks}


@dataclass(frozen=True)
class Registered:
    """A detector, and which others' verdicts it asks for."""

    judged: Detector
    after: tuple[str, ...] = ()


REGISTRY: dict[str, Registered] = {}
#: How often which detector failed in this process.
failures: Counter[str] = Counter()


def register(*, after: Collection[str] = ()) -> Callable[[Detector], Detector]:
    """Make a function known under its file's name; ``after`` are those whose verdicts it wants to have in ``found``.

    Raises :class:`ValueError` where the name is taken.
    """

    def register(judged: Detector) -> Detector:
        name = judged.__module__.rpartition(".")[2]
        if name in REGISTRY:
            raise ValueError(f"two detectors are called {name}")
        REGISTRY[name] = Registered(judged, tuple(after))
        return judged

    return register


def in_order(registered: Mapping[str, Registered]) -> dict[str, Detector]:
    """The detectors, each after those whose verdicts it asks for, else by name.

    Raises :class:`ValueError` where one asks for a detector that there is not, or two for each other.
    """
    order: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(sorted(registered), ()))
    for name, one in registered.items():
        order.add(name, *one.after)
    if unknown := sorted({name for one in registered.values() for name in one.after} - set(registered)):
        raise ValueError(f"no detector is called {', '.join(unknown)}")
    return {name: registered[name].judged for name in order.static_order()}


@functools.cache
def load() -> Mapping[str, Detector]:
    """Import every module of this folder; return all detectors by name, in the order in which they are asked."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return in_order(REGISTRY)


def run(detectors: Mapping[str, Detector], case: Case) -> tuple[list[Verdict], list[str]]:
    """What the detectors find in addition to the case's findings, one after the other; and notes on those that
    failed."""
    found: list[Verdict] = []
    notes: list[str] = []
    for name, judged in detectors.items():
        more, failed = _run_one(name, judged, replace(case, found=(*case.found, *found)))
        found += more
        notes += failed
    return found, notes


def _run_one(name: str, judged: Detector, case: Case) -> tuple[list[Verdict], list[str]]:
    try:
        return [_as_verdict(one) for one in judged(case)], []
    except Exception as error:
        failures[name] += 1
        if failures[name] == 1:  # a running job is judged every second or two
            log.warning("detector %s failed; the others ran", name, exc_info=True)
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return [], [f"the detector {name} failed ({why}): what it looks for was not looked for"]


def _as_verdict(found: object) -> Verdict:
    """What a detector gave, where a report can show it; raises ``TypeError`` where it is something else."""
    if not isinstance(found, Verdict) or found.kind not in KINDS:
        raise TypeError(f"{found!r:.60} is no verdict")
    return found
