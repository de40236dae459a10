"""The hooks of ``native/_hooks.c`` in this process: their state, and what they leave to Python because it is rare.

They show, too, where the training thread waits for its GPU, as phase ``device_wait``: ``item``, ``cpu``,
``synchronize`` … A host that is ahead of its GPU waits in one of these, once it needs a value; what it waits is no work
of its own. A call that copies to the GPU waits, too, unless memory is pinned: its time, copying included, is phase
``device_copy``. The C functions themselves are watched (``native/_hook_waits.c``): a script or ``torch.compile`` sees
no change, and a call costs two readings of the clock. Without the hooks in C no wait is recorded.

Not seen are waits inside of calls that launch work: where the queue of launches is full, and where the allocator frees
memory or an index needs a count. When each collective was enqueued (``enqueue_ns``) shows how far a host was ahead.
"""

from __future__ import annotations

import functools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost.probes import torch_copies
from hindmost.probes.guard import guarded, replace, undo
from hindmost.probes.torch_hooks import SLOT
from hindmost.probes.torch_steps import way_to_shape
from hindmost.ring.native import load

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.probes.torch_cuda import GpuPhases
    from hindmost.recorder import Recorder, Ring

#: Names of phases and kinds of steps, in the order of ``enum hm_loop_name``.
NAMES = ("input", "forward", "backward", "optimizer", "train", "eval")
#: The places that ``gpu`` gets, in the order of ``enum gpu_place``.
FETCHES, READY, BACKWARD_BEGINS, BACKWARD_ENDS, OPTIMIZER_ENDS = range(5)
NOBODY = (1 << 64) - 1  # no thread has this ident
#: How often it is asked what hooks took: nothing else waits for that, and it takes some tens of us in cold caches.
ACCOUNT_EVERY_NS = 500_000_000


class NativeHooks:
    """Makes the hooks, keeps them in step with the recorder, and does for them what few steps need."""

    def __init__(self, module: Any, torch: Any, recorder: Recorder, gpu: GpuPhases | None) -> None:
        self._module = module
        self._recorder = recorder
        self._gpu = gpu
        self._copies = torch_copies.install(torch, recorder, gpu) if gpu is not None else None
        clock = None if recorder.clock is time.monotonic_ns else recorder.clock
        self.loop = module.Loop(_Guarded(self), torch.is_grad_enabled, clock)
        self.loop.on_gpu = gpu is not None
        if gpu is not None:
            watch_waits(torch, self.loop)
        self.entered: list[Any] = []  # hooks that stand in the functions themselves
        self.step_begins, self.step_ends = self._hook("step_begins"), self._hook("step_ends")
        recorder.follow(self)
        recorder.closers.insert(0, self.loop.finish)  # before the GPU's last events are read
        recorder.on_epoch.append(self.loop.forgets)
        recorder.on_handover.append(self._handed_over)
        recorder.on_pause.append(self.loop.pauses)

    def surround(self, owner: Any, name: str, place: str) -> Any:
        """Hook a function: ``place`` is ``fetch`` or ``backward``. Its ``original`` is what the hook calls."""
        original = getattr(owner, name)
        hook = self._hook(place, original)
        if hook.enter():
            self.entered.append(hook)
            undo.append(hook.leave)
            _keep_from_dynamo(original)
            return hook

        # Functions of Python's own: others ask what they are, bind them, read their code, refer to them weakly.
        def fetch(iterator: Any) -> Any:
            return hook(iterator)

        def any_call(*args: Any, **kwargs: Any) -> Any:
            return hook(*args, **kwargs)

        replace(owner, name, original, functools.wraps(original)(fetch if place == "fetch" else any_call))
        return hook

    def _hook(self, place: str, original: Any = None) -> Any:
        hook = self._module.Hook(self.loop, place, original)
        hook._torchdynamo_disable = True
        return hook

    # What the recorder says.

    def writes_to(self, ring: Ring) -> None:
        """Whatever is seen from now on goes to this ring, which the training thread has or has had."""
        self.loop.waits, self.loop.copies = ring.name("device_wait"), ring.name("device_copy")
        self.loop.bind(getattr(ring, "native", None), tuple(map(ring.name, NAMES)))

    def trains_in(self, thread: int, *, surely: bool) -> None:
        """Which thread trains; 0: the next that shows itself; -1: none. Unless surely: until one does train."""
        self.loop.thread = thread if thread >= 0 else NOBODY
        self.loop.surely = surely

    def begins_again(self) -> None:
        """Steps are numbered from 0."""
        self.loop.train = self.loop.eval = 0

    def gives_up(self) -> tuple[dict[str, int], int]:
        """Steps are marked from now on: the numbers of the next ones, and where the last one ended."""
        self.loop.explicit = True
        return {"train": self.loop.train, "eval": self.loop.eval}, self.loop.ended

    def take_work(self) -> int:
        """Samples or tokens that were used since this was last asked."""
        work: int = self.loop.work
        self.loop.work = 0
        return work

    def take_own_ns(self) -> int:
        """What hooks took of the training thread since this was last asked."""
        own: int = self.loop.own
        self.loop.own = 0
        return own

    # What the loop asks for.

    def first(self, trains: bool) -> None:
        """A thread shows itself, and none has before; or one that ``trains`` does, and none has that did."""
        recorder = self._recorder
        if trains:
            recorder.trains_here()
        else:
            recorder.training_thread()
        self.writes_to(recorder.ring)
        self.trains_in(recorder.thread, surely=recorder.surely)

    def tick(self, now: int, ticks: int) -> None:
        """A step that is measured ends here, or begins."""
        self._recorder.sampling.skip_to(ticks)
        self._recorder.tick(now)
        self._apply_sampling()

    def closes(self, is_train: int, number: int, start: int, end: int, work: int) -> None:
        """Write a step of which more is known than its time."""
        self._recorder.write_numbered(number, start, end, "train" if is_train else "eval", work)
        self._apply_sampling()

    def gpu(self, place: int) -> None:
        """Where the host is in a step whose GPU times are measured."""
        gpu, copies = self._gpu, self._copies
        if gpu is None:
            return
        if place == READY:
            gpu.ready()
            if copies is not None:
                copies.begin(sys._getframe(2))  # beyond the guard: the caller that fetched
        elif place == BACKWARD_BEGINS:
            if copies is not None:
                copies.end()
            gpu.backward_begins()
        else:
            {FETCHES: gpu.fetches, BACKWARD_ENDS: gpu.backward_ends, OPTIMIZER_ENDS: gpu.optimizer_ends}[place]()

    def account(self, now: int) -> None:
        """Say what hooks took."""
        recorder = self._recorder
        if now >= recorder.due_ns:
            recorder.flush_at(now)
        self.loop.due = now + ACCOUNT_EVERY_NS
        self._apply_sampling()

    def way(self, batch: Any) -> tuple[Any, ...] | None:
        """The keys and indices that lead to the tensor whose shape tells a batch's work."""
        found = way_to_shape(batch)
        self.loop.tokens = found is not None and "input_ids" in found
        return found

    def _handed_over(self) -> None:
        """Another thread trains than the one that fetched: what that one did, and may be doing, is no step's."""
        self.loop.fed = False
        self._recorder.ring.leave(SLOT)
        self.loop.forgets()

    def _apply_sampling(self) -> None:
        """Say which steps are measured and recorded, and whether the one in progress needs ``closes``."""
        loop, sampling = self.loop, self._recorder.sampling
        loop.measuring, loop.unrecorded = sampling.measuring, sampling.limit.mask
        loop.mask = sampling.mask
        loop.attended = (
            sampling.measuring or self._recorder.has_measured() or (self._gpu is not None and self._gpu.waits())
        )


class _Guarded:
    """The methods of ``NativeHooks`` that C calls, made unable to raise."""

    def __init__(self, hooks: NativeHooks) -> None:
        for name in ("first", "tick", "closes", "gpu", "account", "way"):
            setattr(self, name, guarded(getattr(hooks, name)))


def _keep_from_dynamo(function: Any) -> None:
    """Have torch.compile call this function where it would trace it: inside a graph no hook is called."""
    if "_torchdynamo_disable" not in vars(function):
        function._torchdynamo_disable = True
        undo.append(lambda: vars(function).pop("_torchdynamo_disable", None))


def native_hooks(torch: Any, recorder: Recorder, gpu: GpuPhases | None) -> NativeHooks | None:
    """The hooks in C, where a build of them fits this interpreter."""
    module = load()
    return NativeHooks(module, torch, recorder, gpu) if hasattr(module, "Loop") else None


#: How a call is known to wait, in ``native/_hook_waits.c``: always, of a tensor on the GPU, or of a copy to it as well.
ANY, OF_TENSOR, COPIES = range(3)
#: Methods of tensors.
TENSOR = dict.fromkeys(("item", "cpu", "tolist", "__bool__", "__float__", "__int__", "__index__"), OF_TENSOR)
TENSOR |= dict.fromkeys(("to", "cuda"), COPIES)
#: Classes and functions of ``torch._C`` that wait whatever they are called with.
ALWAYS = (("_cuda_synchronize",), ("_CudaStreamBase", "synchronize"), ("_CudaEventBase", "synchronize"))
DEFINITION_BYTES = 32


def watch_waits(torch: ModuleType, loop: Any) -> None:
    """Watch what this build of torch has of them."""
    guarded(_watch_waits)(torch, loop)


def _watch_waits(torch: Any, loop: Any) -> None:
    found = [(getattr(torch._C.TensorBase, name, None), how) for name, how in TENSOR.items()]
    for path in ALWAYS:
        function = torch._C
        for name in path:
            function = getattr(function, name, None)
        found.append((function, ANY))
    writable = _writable()
    undo.append(loop.unwatch)
    for function, how in found:
        place = loop.definition(function)
        if place is not None and any(start <= place and place + DEFINITION_BYTES <= end for start, end in writable):
            loop.watch(function, how)


def _writable() -> list[tuple[int, int]]:
    """The parts of this process's memory that may be written to."""
    lines = (line.split(None, 2) for line in Path("/proc/self/maps").read_text().splitlines())
    bounds = [where.split("-") for where, mode, _ in lines if mode[1] == "w"]
    return [(int(start, 16), int(end, 16)) for start, end in bounds]
