"""Horovod's own thread: how long its cycles take, and where in a rank's wait the negotiation ended.

Horovod negotiates in cycles: its thread hears from all ranks what is ready, reduces that, and naps until
``HOROVOD_CYCLE_TIME`` after it began. The PMPI shim (``native/horovod_cycles.c``) keeps when the last of these began.
Where the shim is not loaded, or the thread has never napped, nothing is known: unmeasured.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Words of ``struct hm_cycles``.
CYCLES, YIELDED, HANDED_NS, REDUCED_NS, HANDED, FETCHED, FETCHING_US, SAMPLES, BEGAN = range(9)
KEPT = 64
WORDS = BEGAN + KEPT
#: How often cycles are counted.
ACCOUNT_NS = 1_000_000_000
UNMEASURED = -1


class Cycles:
    """Reads what the shim keeps. ``words`` is ``struct hm_cycles``, which Horovod's thread goes on writing."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words
        self._counted: tuple[int, int] | None = None

    @property
    def handed(self) -> int:
        """How many tensors TensorFlow has handed to Horovod."""
        return self._words[HANDED]

    @property
    def handed_ns(self) -> int:
        """When it last did."""
        return self._words[HANDED_NS]

    @property
    def reduced_ns(self) -> int:
        """When it last got one back."""
        return self._words[REDUCED_NS]

    def negotiation(self, ready_ns: int, end_ns: int) -> int:
        """Ns from ``ready_ns`` until the cycle began that ended a wait at ``end_ns``; -1 unmeasured."""
        began = self._began(end_ns)
        return UNMEASURED if began is None else max(0, began - ready_ns)

    def waited(self, ready_ns: int) -> int:
        """Negotiation in a wait of the training thread that has just ended, and that began at ``ready_ns``.

        0 where it found everything done already.
        """
        last_in_vain = self._words[YIELDED]
        return self.negotiation(ready_ns, last_in_vain if last_in_vain > ready_ns else ready_ns)

    def forget(self) -> None:
        """Horovod's thread is another now: what went before it were no cycles."""
        self._counted = None

    def account(self) -> tuple[int, int, int] | None:
        """Once a second, cycles since last asked: when the first began, how long all took (ns), and how many."""
        cycles = self._words[CYCLES]
        began = self._words[BEGAN + (cycles - 1) % KEPT] if cycles else 0
        if self._counted is None or cycles < self._counted[0]:
            self._counted = (cycles, began) if cycles else None
            return None
        before, since = self._counted
        if began - since < ACCOUNT_NS:
            return None
        self._counted = (cycles, began)
        return since, began - since, cycles - before

    def _began(self, by_ns: int) -> int | None:
        """When the last cycle began that did so by then; ``None`` where that is forgotten or never was."""
        words, cycles = self._words, self._words[CYCLES]
        for cycle in range(cycles - 1, max(-1, cycles - KEPT), -1):  # the oldest may be being overwritten
            began = words[BEGAN + cycle % KEPT]
            if began <= by_ns:
                return began
        return None


def watch(frontend: Any) -> Cycles | None:
    """Have the shim watch the library of ``horovod.torch`` or its like; ``None`` where the shim is not loaded."""
    shim, basics = ctypes.CDLL(None), getattr(getattr(frontend, "mpi_ops", None), "_basics", None)
    if basics is None or not hasattr(shim, "hindmost_horovod_watch"):
        return None
    function = shim.hindmost_horovod_watch
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
    at = function(ctypes.cast(basics.MPI_LIB_CTYPES.horovod_rank, ctypes.c_void_p))
    return Cycles(words_at(at)) if at else None


def words_at(address: int) -> Sequence[int]:
    """``struct hm_cycles`` at this address."""
    return memoryview((ctypes.c_uint64 * WORDS).from_address(address)).cast("B").cast("Q")
