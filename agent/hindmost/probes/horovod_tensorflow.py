"""Horovod with TensorFlow and Keras 2: when each rank had its gradients, and how long it waited for the others'.

Gradients are reduced inside TensorFlow's compiled step, where Python does not come by. The PMPI shim sees when
TensorFlow hands a tensor over and gets it back (``native/tensorflow_calls.c``): as a step ends, which Keras's callbacks
or the loop's own marks tell, the last of these say what the rank waited. Without the shim only calls by hand are seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost.probes.horovod import Calls

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.probes.horovod_cycles import Cycles
    from hindmost.recorder import Recorder


class Kernels(Calls):
    """Writes what a step waited for as one collective, and what is called eagerly as the others."""

    def __init__(self, horovod: Any, recorder: Recorder) -> None:
        super().__init__(horovod, recorder)
        self._tensorflow = horovod.tf
        self._handed = 0

    def begins(self, op: str, process_set: Any = None) -> tuple[int, int] | None:
        """As for torch; what is called while a function is traced happens later."""
        return super().begins(op, process_set) if self._tensorflow.executing_eagerly() else None

    def ends(self, op: str, token: tuple[int, int], phase: bool) -> None:
        """As for torch; no step that is under way has anything to do with it."""
        super().ends(op, token, phase)
        if self.cycles is not None:
            self._handed = self.cycles.handed

    def negotiation(self, cycles: Cycles, start: int) -> int:
        """Of a wait that began then, until the last tensor came back."""
        return cycles.negotiation(start, max(start, cycles.reduced_ns))

    def step_ends(self, start: int, end: int) -> None:
        """What the step reduced, if anything: from when the last tensor was handed over until all were back."""
        cycles = self.cycles
        if cycles is None or cycles.handed == self._handed:
            return
        self._handed = cycles.handed
        ready, back = cycles.handed_ns, cycles.reduced_ns
        if start <= ready <= back <= end:
            self.write("all_reduce", ready, self.communicator(), back, phase=True)


def install(horovod: ModuleType, recorder: Recorder) -> None:
    """Hook horovod.tensorflow, which has just been imported; its Keras front ends come after it."""
    calls = Kernels(horovod, recorder)
    calls.watch_all()
    recorder.on_end.append(calls.step_ends)
