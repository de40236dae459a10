"""One file a framework: how its steps and phases are seen. Nothing is imported before the training job imports it."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from hindmost.complaint import complain
from hindmost.probes.guard import record_pauses, undo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from hindmost.recorder import Recorder

    Action = Callable[[ModuleType], None]

#: Module of the training job -> the probe (``hindmost.probes.NAME``) whose ``install(module, recorder)``, or whose
#: function ``NAME.FUNCTION``, is called once that module has been imported.
WATCHED = {
    "horovod.tensorflow": "horovod_tensorflow",
    "horovod.torch": "horovod",
    "keras.src.callbacks": "keras",
    "keras.src.callbacks.callback_list": "keras",
    **{
        f"{package}.loops.{loop}_loop": "lightning"
        for package in ("lightning.pytorch", "pytorch_lightning")
        for loop in ("evaluation", "prediction")
    },
    "mpi4py.MPI": "mpi4py",
    "torch": "torch",
    "torch.distributed.checkpoint.state_dict_saver": "torch.watch_checkpoints",
    "tf_keras.src.callbacks": "keras",
    "torch._dynamo.trace_rules": "torch.keep_tracer_out",
}


def install(recorder: Recorder) -> None:
    """Wait for the frameworks that probes know, and record what needs no framework."""

    def act(module: ModuleType) -> None:
        probe, _, function = WATCHED[module.__name__].partition(".")
        getattr(importlib.import_module(f"hindmost.probes.{probe}"), function or "install")(module, recorder)

    def failed(name: str, error: Exception) -> None:
        complain(f"{name} cannot be observed ({error!r})")

    record_pauses(recorder)
    watch = ImportWatch(dict.fromkeys(WATCHED, act), failed)
    watch.install()
    undo.append(watch.remove)


class ImportWatch(MetaPathFinder):
    """Acts when a watched module has been imported, and imports none: how probes wait for their framework.

    It is a finder that finds nothing itself: it lets the others find the module and acts once its body has run.

    Any other import costs one dictionary look-up. ``failed(name, error)`` hears of an action that raised.
    """

    def __init__(self, actions: Mapping[str, Action], failed: Callable[[str, Exception], None]) -> None:
        self._actions = dict(actions)
        self._failed = failed

    def install(self) -> None:
        """Watch from now on. Modules already imported are acted on at once."""
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
        if fullname not in self._actions:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                self._listen(fullname, spec.loader)
                return spec
        return None

    def _listen(self, name: str, loader: Any) -> None:
        """Have ``exec_module`` of this one loader call the action; afterwards the loader is as it was."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            loader.__dict__.pop("exec_module", None)
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
