"""Copies of a batch to the GPU, seen where the job's own code makes them, on measured steps.

``Tensor.to`` and ``Tensor.cuda`` are left as they are: others compare functions with them, and ``torch.compile`` looks
at them. Instead ``sys.monitoring`` (Python 3.12 and later) tells of calls made by the functions that are on the stack
when a batch is there, and by functions that these call before the model; nothing else is instrumented, and that only
on the steps that ``step_sampling.py`` has measured. To instrument a long function takes a while: once it is known
which of them copy, only those are instrumented, and all of them now and then and where no copy was seen. What the
copies take is phase ``h2d``: ``torch_cuda.py``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import guarded, undo
from hindmost.ring.native import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from hindmost.probes.torch_cuda import GpuPhases
    from hindmost.recorder import Recorder

#: Functions on the stack that are watched, and functions in all.
CALLERS = 6
WATCHED = 24
#: So many looks at all of them say which copy; every so many more there is another.
LEARNING, AGAIN = 4, 16
#: Tools of ``sys.monitoring`` that are not a debugger's, coverage's, a profiler's or the interpreter's own.
TOOLS = (3, 4)
#: Packages whose functions move no batch of the loop's.
OTHERS = ("torch", "hindmost")


class Copies:
    """Gets the places where a batch arrives and backward begins; in between ``sys.monitoring`` reports calls to it."""

    def __init__(self, torch: Any, recorder: Recorder, gpu: GpuPhases, monitoring: Any, tool: int) -> None:
        self.recorder = recorder
        self._clock = recorder.clock
        self.gpu = gpu
        self._monitoring = monitoring
        self.tool = tool
        self._to, self._cuda = torch.Tensor.to, torch.Tensor.cuda
        self._module: type = torch.nn.Module
        self.watched: list[CodeType] = []
        self._looks = 0
        self._makers: dict[CodeType, None] = {}  # functions that copied
        self._whole = True  # whatever the loop calls is watched, not only them
        self._seen = True  # a copy was, since the batch was there
        self._copied: Any = None  # the tensor that is being copied
        self._call, self._return = (self._stamped(guarded(hook)) for hook in (self.called, self.returned))
        events = monitoring.events
        monitoring.register_callback(tool, events.CALL, self._call)
        for ended in (events.C_RETURN, events.C_RAISE):
            monitoring.register_callback(tool, ended, self._return)

    def _stamped(self, hook: Callable[..., None]) -> Any:
        """Watched calls run between the hooks: what ``sys.monitoring`` takes for them is counted separately."""
        sampling = self.recorder.sampling

        def call(*arguments: Any) -> None:
            spent = sampling.spent_ns
            hook(*arguments)
            sampling.spent_ns = spent

        module: Any = load()
        return module.Stamp(call) if hasattr(module, "Stamp") else Stamp(call, self._clock)

    def account(self) -> None:
        """It is the hooks' time, too, and was spent on measuring."""
        for stamp in (self._call, self._return):
            took, stamp.took = stamp.took, 0
            self.recorder.own_ns += took
            self.recorder.sampling.spent_ns += took

    def begin(self, frame: FrameType | None) -> None:
        """The code that runs in this frame has its batch."""
        self.end()
        start = self._clock()
        if self._makers and not self._seen:  # they do not any more
            self._looks = 0
            self._makers.clear()
        self._seen = False
        self._looks += 1
        self._whole = self._looks <= LEARNING or self._looks % AGAIN == 0
        if self._whole:
            self._watch_callers(frame)
        for code in self._makers:
            self._watch(code)
        self.recorder.sampling.spent_ns += self._clock() - start

    def _watch_callers(self, frame: FrameType | None) -> None:
        while frame is not None and _package(frame) == "hindmost":  # what stands for a hook
            frame = frame.f_back
        for _ in range(CALLERS):
            if frame is None:
                break
            if _package(frame) not in OTHERS:
                self._watch(frame.f_code)
            frame = frame.f_back

    def end(self) -> None:
        """What comes now is no copy of the loop's."""
        self.account()
        self._unwatch()

    def _unwatch(self) -> None:
        self._copied = None
        if not self.watched:
            return
        start = self._clock()
        for code in self.watched:
            self._monitoring.set_local_events(self.tool, code, 0)
        self.watched.clear()
        self.recorder.sampling.spent_ns += self._clock() - start

    def called(self, code: CodeType, _place: int, function: Any, first: Any) -> None:
        """A call is about to be made by watched code."""
        if not self.watched or not self.recorder.training_thread():
            return
        if function is self._to or function is self._cuda:
            if not first.is_cuda:
                self._copied = first
                self._seen = True
                self._makers[code] = None
                self.gpu.copy_begins()
        elif isinstance(function, self._module) or hasattr(function, "_torchdynamo_orig_callable"):
            self._unwatch()  # what comes now is the model's
        elif self._whole:
            self._follow(function)

    def returned(self, _code: CodeType, _place: int, function: Any, first: Any) -> None:
        """A call of a function that is not Python's has ended."""
        if self._copied is not None and first is self._copied and (function is self._to or function is self._cuda):
            self._copied = None
            self.gpu.copy_ends(self._return.entered - self._call.left)

    def _follow(self, function: Any) -> None:
        """Watch what a Python function does that is about to be called: it may be the one that moves the batch."""
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is not None and (getattr(function, "__module__", None) or "").partition(".")[0] not in OTHERS:
            self._watch(code)

    def _watch(self, code: CodeType) -> None:
        if code not in self.watched and len(self.watched) < WATCHED:
            self.watched.append(code)
            self._monitoring.set_local_events(self.tool, code, self._monitoring.events.CALL)


class Stamp:
    """Calls ``told`` and knows when that began and when it ended: the twin of ``native/_stamp.c``."""

    def __init__(self, on_end: Callable[..., None], clock: Callable[[], int]) -> None:
        self._on_end, self._clock = on_end, clock
        self.entered = self.left = self.took = 0

    def __call__(self, *arguments: Any) -> None:
        self.entered = self._clock()
        self._on_end(*arguments)
        self.left = self._clock()
        self.took += self.left - self.entered


def _package(frame: FrameType) -> str:
    """The package whose code runs in it."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def install(torch: Any, recorder: Recorder, gpu: GpuPhases) -> Copies | None:
    """Take a tool of ``sys.monitoring``; ``None`` where there is no such thing, or none is free."""
    monitoring: Any = getattr(sys, "monitoring", None)
    for tool in TOOLS if monitoring is not None else ():
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "hindmost")
            undo.append(lambda tool=tool: monitoring.free_tool_id(tool))  # type: ignore[misc]
            copies = Copies(torch, recorder, gpu, monitoring, tool)
            undo.append(copies.end)
            return copies
    return None
