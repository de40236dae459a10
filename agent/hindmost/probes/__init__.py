"""One file a framework: how its steps and phases are seen. Nothing is imported before the training job imports it.

A probe's file has its package's name, and is imported when the training job imports that package. A function in it that
:func:`on_import` registers is called once the module that it names has been imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from hindmost.errors import warn_once
from hindmost.probes.guard import record_pauses, undo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from hindmost.recorder import Recorder

    Action = Callable[[ModuleType], None]
    Hook = Callable[[ModuleType, Recorder], None]

#: Packages that are another one's under a second name.
SECOND_NAMES = {"pytorch_lightning": "lightning", "tf_keras": "keras"}
#: Module of the training job -> what is called once that has been imported.
REGISTRY: dict[str, Hook] = {}
#: A module with so many dots in its name is a part of a framework, which may be imported late.
_PART_OF_IT = 2


def on_import(*modules: str) -> Callable[[Hook], Hook]:
    """Have a function of a probe called with each of these modules, once it has been imported, and the recorder."""

    def register(hook: Hook) -> Hook:
        REGISTRY.update(dict.fromkeys(modules, hook))
        return hook

    return register


def install(recorder: Recorder) -> None:
    """Wait for the frameworks that probes know, and record what needs no framework."""

    def actions_of(package: str) -> dict[str, Action]:
        importlib.import_module(f"{__name__}.{probes[package]}")
        unrecorded = [package]

        def observe(module: ModuleType) -> None:
            if unrecorded:
                recorder.record_version(unrecorded.pop(), getattr(sys.modules.get(package), "__version__", None))
            REGISTRY[module.__name__](module, recorder)

        return dict.fromkeys((name for name in REGISTRY if name.partition(".")[0] == package), observe)

    def failed(name: str, error: Exception) -> None:
        warn_once(f"{name} cannot be observed ({error!r})")

    files = (name.partition(".")[0] for name in os.listdir(__path__[0]))
    probes = {name: name for name in files} | SECOND_NAMES
    record_pauses(recorder)

    def took(name: str, start_ns: int, end_ns: int) -> None:
        if name.count(".") < _PART_OF_IT:
            recorder.set_up("import", start_ns, end_ns)

    watch = ImportWatch(failed, packages=dict.fromkeys(probes, actions_of), took=took)
    watch.install()
    undo.append(watch.remove)


class ImportWatch:
    """Acts when a watched module has been imported, and imports none: how probes wait for their framework.

    It is a finder that finds nothing itself: it lets the others find the module and acts once its body has run.

    ``actions`` are called with a module; ``packages`` with a package's name, before it is imported, and return actions
    for its modules. Any other import costs two look-ups. ``failed(name, error)`` hears of one that raised,
    ``took(name, start_ns, end_ns)`` how long an import took.
    """

    def __init__(
        self,
        failed: Callable[[str, Exception], None],
        actions: Mapping[str, Action] | None = None,
        packages: Mapping[str, Callable[[str], Mapping[str, Action]]] | None = None,
        took: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:
        self._failed = failed
        self._took = took
        self._actions = dict(actions or {})
        self._packages = dict(packages or {})

    def install(self) -> None:
        """Watch from now on. Modules already imported are acted on at once."""
        for package in [package for package in self._packages if package in sys.modules]:
            self._prepare(package)
        for name in [name for name in self._actions if name in sys.modules]:
            self._act(name, sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop watching; what was patched stays."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with a loader that calls us; ``None`` for a module that is not watched."""
        if fullname in self._packages:
            self._prepare(fullname)
        if fullname not in self._actions:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                self._listen(fullname, spec.loader)
                return spec
        return None

    def _prepare(self, package: str) -> None:
        try:
            self._actions.update(self._packages.pop(package)(package))
        except Exception as error:
            self._failed(package, error)

    def _listen(self, name: str, loader: Any) -> None:
        """Have ``exec_module`` of this one loader call the action; afterwards the loader is as it was."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            start = time.monotonic_ns()
            execute(module)
            loader.__dict__.pop("exec_module", None)
            self._took(name, start, time.monotonic_ns())
            self._act(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots: that framework stays unobserved
            return

    def _act(self, name: str, module: ModuleType) -> None:
        action = self._actions.pop(name, None)
        if action is None:
            return
        try:
            action(module)
        except Exception as error:
            self._failed(name, error)
