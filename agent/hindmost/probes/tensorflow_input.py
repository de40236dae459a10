"""What a training function of TensorFlow waited for, and how much it got: it takes its batch inside its compiled step.

TensorFlow accounts for each batch taken from tf.data; the PMPI shim (``native/tensorflow_calls.c``) adds these up, and
the samples in them.
Where the shim is not loaded, or the batches come from elsewhere, nothing is known.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from hindmost.probes.horovod_cycles import FETCHED, FETCHING_US, SAMPLES, words_at

if TYPE_CHECKING:
    from collections.abc import Sequence


class Fetches:
    """What was fetched between two looks. ``words`` are the shim's, and change."""

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
