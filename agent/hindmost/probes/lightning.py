"""Lightning: where an evaluation ends, for its loops know their last batch and fetch no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost.probes import on_import
from hindmost.probes.guard import around

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder


@on_import(
    "lightning.pytorch.loops.evaluation_loop",
    "lightning.pytorch.loops.prediction_loop",
    "pytorch_lightning.loops.evaluation_loop",
    "pytorch_lightning.loops.prediction_loop",
)
def install(loops: ModuleType, recorder: Recorder) -> None:
    """Hook the loop of a module that has just been imported: ``_EvaluationLoop`` or ``_PredictionLoop``."""

    def ended(*_: Any) -> None:
        if recorder.training_thread():
            recorder.pauses(recorder.clock())

    for name in ("_EvaluationLoop", "_PredictionLoop"):
        loop: Any = vars(loops).get(name)
        if loop is not None and loop.__module__ == loops.__name__:  # one of them may import the other
            around(loop, "run", lambda *_: 0, ended, ended)
