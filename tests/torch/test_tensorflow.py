"""Keras on TensorFlow, whose step is one compiled call, and Horovod's front end for it.

They train in an environment of their own: `make tensorflow`; `make horovod-tensorflow` builds Horovod into it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hindmost import ring

if TYPE_CHECKING:
    from collections.abc import Callable

    Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

ENVIRONMENT = Path(__file__).parents[2] / ".cache/tensorflow"
PYTHON = ENVIRONMENT / "bin/python"
HOROVOD = list(ENVIRONMENT.glob("lib/python*/site-packages/horovod"))

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not PYTHON.exists(), reason="no TensorFlow; `make tensorflow` installs it"),
]

START = """
    import os, sys
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_USE_LEGACY_KERAS"] = {legacy!r}
    import time, numpy, tensorflow as tf
    from tensorflow.python.autograph.core import config
    # TensorFlow leaves Keras as it is; by Keras 2's newer name it would translate its source, half a minute long.
    config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)
    keras = tf.keras
    def model(optimizer):
        made = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
        made.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return made
    x, y = numpy.random.rand(160, 64).astype("float32"), numpy.random.randint(0, 10, 160)
"""

FIT = """
    def rows(count, wait):
        for at in range(0, 8 * count, 8):
            time.sleep(wait)
            yield x[at : at + 8], y[at : at + 8]
    def data(count, wait):
        shapes = tf.TensorSpec((8, 64), tf.float32), tf.TensorSpec((8,), tf.int64)
        return tf.data.Dataset.from_generator(lambda: rows(count, wait), output_signature=shapes)
    model("adam").fit(data(20, 0.02), epochs=2, validation_data=data(6, 0.05), verbose=0)
"""


SAMPLES = """
    ends = [8, 13, 16, 40, 41]
    def ragged():
        for start, end in zip([0, *ends], ends):
            yield x[start:end], y[start:end]
    shapes = tf.TensorSpec((None, 64), tf.float32), tf.TensorSpec((None,), tf.int64)
    made = model("adam")
    made.fit(tf.data.Dataset.from_generator(ragged, output_signature=shapes), epochs=2, verbose=0)
    made.fit(x[:20], y[:20], batch_size=8, validation_data=(x[:10], y[:10]), validation_batch_size=6, verbose=0)
"""


@pytest.mark.parametrize("legacy", ["0", "1"], ids=["Keras 3", "Keras 2"])
def test_waiting_for_input_is_separate_from_the_compiled_step(train: Train, legacy: str) -> None:
    """A step a batch, validation apart, each with the time in which tf.data had no batch ready, and its samples: of
    batches of unlike length, of tf.data and of arrays, the last and shorter one too."""
    script = START.format(legacy=legacy) + FIT + SAMPLES
    (trace,) = train(script, ranks=1, by="python", shim=True, python=str(PYTHON)).values()
    assert trace.header.framework == "keras"
    waits = trace.of(ring.PHASE, "input")
    for kind, count, expected, samples in (
        ("train", 40, 20, [8, 5, 3, 24, 1] * 2 + [8, 8, 4]),
        ("eval", 12, 50, [6, 4]),
    ):
        steps = trace.of(ring.STEP, kind)
        assert [step.value for step in steps] == [8] * count + samples
        steps = steps[:count]
        each = [sum(w.duration_ns for w in waits if 0 <= w.start_ns - s.start_ns < s.duration_ns) / 1e6 for s in steps]
        lasted = [step.duration_ns / 1e6 for step in steps]
        assert max(each) > 0.7 * expected
        assert min(each) < 1.5 * expected
        assert all(wait <= whole for wait, whole in zip(each, lasted, strict=True))


HOROVOD_FIT = """
    import horovod.tensorflow.keras as hvd
    hvd.init()
    class Slow(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if hvd.rank() == 1:
                time.sleep(0.05)
    started = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))).fit(
        x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x[:32], y[:32]), callbacks=[started, Slow()]
    )
    hvd.allreduce(1.0, name="by hand")
"""


@pytest.mark.skipif(not HOROVOD, reason="no Horovod for TensorFlow; `make horovod-tensorflow` builds it")
@pytest.mark.parametrize("by", ["mpirun", "horovodrun"])
def test_horovod_with_keras_shows_who_is_waited_for(train: Train, by: str) -> None:
    """Each step has one wait for gradients though TensorFlow makes it, short on the slow rank and mostly negotiation on
    the other; broadcasts and calls by hand are seen as well."""
    traces = train(START.format(legacy="1") + HOROVOD_FIT, by=by, shim=True, python=str(PYTHON))
    seen = []
    for rank in (0, 1):
        assert traces[rank].header.framework == "horovod"
        assert traces[rank].count(ring.STEP) == {"train": 40, "eval": 8}
        assert {step.value for step in traces[rank].events if step.kind == ring.STEP} == {8}
        assert traces[rank].count(ring.PHASE)["sync"] == 40
        seen.append([(event.name, event.comm_id, event.seq) for event in traces[rank].events if event.kind == 3])
    assert seen[0] == seen[1]
    assert {name for name, *_ in seen[0]} == {"all_reduce", "broadcast"}
    assert len([name for name, *_ in seen[0] if name == "all_reduce"]) == 41
    for phase in ("sync", "negotiation"):
        early, late = ([event.duration_ns for event in traces[rank].of(ring.PHASE, phase)] for rank in (0, 1))
        assert max(early) > 25_000_000 > min(late), phase
