"""Keras 3, whatever its back end: train and validation batches, told by the callbacks every trainer calls.

On the torch back end the phases inside a batch come from ``torch.py``; with TensorFlow or JAX, whose step is one
compiled call, a batch is one piece. Time between two batches of an epoch belongs to the later one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import around
from hindmost.probes.spans import as_phase

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder


class Batches:
    """Told when batches of one kind begin and end."""

    def __init__(self, recorder: Recorder, kind: str) -> None:
        self._recorder = recorder
        self._kind = kind
        self._start = -1

    def begins(self, *_: Any) -> None:
        """A batch begins; its step began when the one before ended, if that was of this epoch."""
        recorder = self._recorder
        if recorder.training_thread():
            recorder.marks()
            if self._start < 0:
                self._start = recorder.clock()
            recorder.step_begins(self._start, self._kind)

    def ends(self, *_: Any) -> None:
        """The batch has ended."""
        recorder = self._recorder
        if self._start >= 0 and recorder.training_thread():
            now = recorder.clock()
            recorder.step(self._start, now, self._kind)
            self._start = now

    def pauses(self, *_: Any) -> None:
        """What comes now is no batch of this kind: another epoch, validation, or the end."""
        self._start = -1
        if self._recorder.training_thread():
            self._recorder.step_leaves()
            for begins in self._recorder.on_epoch:
                self._recorder.defer(begins)


def install(module: ModuleType, recorder: Recorder) -> None:
    """Hook Keras's list of callbacks, which has just been imported, and its optimizers."""
    recorder.name_framework("keras")
    train, test = Batches(recorder, "train"), Batches(recorder, "eval")
    callbacks: Any = module
    for method, told in (
        ("on_train_batch_begin", train.begins),
        ("on_train_batch_end", train.ends),
        ("on_epoch_begin", train.pauses),
        ("on_test_begin", train.pauses),
        ("on_train_end", train.pauses),
        ("on_test_batch_begin", test.begins),
        ("on_test_batch_end", test.ends),
        ("on_test_end", test.pauses),
    ):
        around(callbacks.CallbackList, method, told, lambda *_: None)
    optimizer = importlib.import_module("keras.src.optimizers.base_optimizer").BaseOptimizer
    # Real where a step runs eagerly; in a compiled step it is called while tracing only.
    as_phase(optimizer, "apply", "optimizer", recorder, ends_evaluation=False)
