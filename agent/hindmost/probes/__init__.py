"""One file a framework: how its steps and phases are seen. Nothing is imported before the training job imports it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder

#: Module of the training job -> the probe (``hindmost.probes.NAME``) whose ``install(module, recorder)`` is called
#: once that module has been imported.
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
    "torch.distributed.checkpoint.state_dict_saver": "torch_checkpoint",
    "tf_keras.src.callbacks": "keras",
    "torch._dynamo.trace_rules": "torch_compile",
}


def install(recorder: Recorder) -> None:
    """Wait for the frameworks that probes know, and record what needs no framework."""
    from hindmost.complaint import complain
    from hindmost.probes import pauses
    from hindmost.probes.guard import undo
    from hindmost.probes.imports import Watch

    def act(module: ModuleType) -> None:
        probe = importlib.import_module(f"hindmost.probes.{WATCHED[module.__name__]}")
        probe.install(module, recorder)

    def failed(name: str, error: Exception) -> None:
        complain(f"{name} cannot be observed ({error!r})")

    pauses.install(recorder)
    watch = Watch(dict.fromkeys(WATCHED, act), failed)
    watch.install()
    undo.append(watch.remove)
