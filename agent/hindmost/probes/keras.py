"""Keras 2 and 3 with any back end: train and validation batches, from the callbacks that every trainer calls.

On the torch back end the phases inside a batch come from ``torch.py``. With TensorFlow, whose step is one compiled
call, waiting for input is measured (:class:`Fetches`), the rest of a batch is one phase. With JAX the whole
batch is one phase. Time between two batches of an epoch belongs to the later one.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import TYPE_CHECKING, Any

from hindmost.probes import on_import
from hindmost.probes.guard import around, as_phase
from hindmost.probes.horovod_cycles import FETCHED, FETCHING_US, SAMPLES, words_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from hindmost.recorder import Recorder


class Batches:
    """Gets a call when batches of one kind begin and end."""

    def __init__(self, recorder: Recorder, kind: str) -> None:
        self._recorder = recorder
        self._kind = kind
        self._start = self._began = -1
        self._fetches = fetches()

    def begins(self, *_: Any) -> None:
        """A batch begins; its step began when the one before ended, if that was of this epoch."""
        recorder = self._recorder
        if recorder.training_thread():
            recorder.marks()
            self._began = recorder.clock()
            if self._start < 0:
                self._start = self._began
            if self._fetches is not None:
                self._fetches.begin()
            recorder.step_begins(self._start, self._kind)

    def ends(self, *_: Any) -> None:
        """The batch has ended."""
        recorder = self._recorder
        if self._start >= 0 and recorder.training_thread():
            now = recorder.clock()
            fetched = self._fetches.taken() if self._fetches is not None else None
            if fetched is not None:
                recorder.phase("input", self._began, min(self._began + fetched[0], now))
            recorder.step(self._start, now, self._kind, fetched[1] if fetched is not None else 0)
            self._start = now

    def pauses(self, *_: Any) -> None:
        """What comes now is no batch of this kind: another epoch, validation, or the end."""
        self._start = -1
        if self._recorder.training_thread():
            self._recorder.step_leaves()
            for begins in self._recorder.on_epoch:
                self._recorder.defer(begins)


@on_import("keras.src.callbacks", "keras.src.callbacks.callback_list", "tf_keras.src.callbacks")
def install(module: ModuleType, recorder: Recorder) -> None:
    """Hook Keras's list of callbacks, which has just been imported, and its optimizers.

    Keras 3 has it in a package, and a watch on a module of that; Keras 2 in a module of the package's name.
    """
    if hasattr(module, "__path__"):
        return
    recorder.name_framework("keras")
    train, test = Batches(recorder, "train"), Batches(recorder, "eval")
    callbacks: Any = module
    for method, hook in (
        ("on_train_batch_begin", train.begins),
        ("on_train_batch_end", train.ends),
        ("on_epoch_begin", train.pauses),
        ("on_test_begin", train.pauses),
        ("on_train_end", train.pauses),
        ("on_test_batch_begin", test.begins),
        ("on_test_batch_end", test.ends),
        ("on_test_end", test.pauses),
    ):
        around(callbacks.CallbackList, method, hook, lambda *_: None)
    if module.__name__.endswith("callback_list"):
        optimizer = importlib.import_module("keras.src.optimizers.base_optimizer").BaseOptimizer
        # Real where a step runs eagerly; in a compiled step it is called while tracing only.
        as_phase(optimizer, "apply", "optimizer", recorder, ends_evaluation=False)


class Fetches:
    """What a compiled step of TensorFlow, which takes its batch inside, waited for input, and how much it got.

    TensorFlow accounts for each batch taken from tf.data; the PMPI shim (``native/tensorflow_calls.c``) adds these up,
    and the samples in them. Of batches that come from elsewhere nothing is known. ``words`` are the shim's, and change.
    """

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words
        self._seen = (0, 0, 0)

    def begin(self) -> None:
        """Forget what came before."""
        self._seen = self._words[FETCHED], self._words[FETCHING_US], self._words[SAMPLES]

    def taken(self) -> tuple[int, int] | None:
        """Ns that fetching took since then, and samples that it got, 0 unknown; ``None`` where nothing was fetched."""
        fetched, took, samples = self._words[FETCHED], self._words[FETCHING_US], self._words[SAMPLES]
        if fetched == self._seen[0]:
            return None
        return (took - self._seen[1]) * 1000, samples - self._seen[2]


def fetches() -> Fetches | None:
    """What reads the shim's counts; ``None`` where it is not loaded."""
    find = getattr(ctypes.CDLL(None), "hindmost_tensorflow", None)
    if find is None:
        return None
    find.restype = ctypes.c_void_p
    return Fetches(words_at(find()))
