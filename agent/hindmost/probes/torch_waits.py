"""Where the training thread waits for its GPU, as phase ``device_wait``: ``item``, ``cpu``, ``synchronize`` …

A host that is ahead of its GPU waits in one of these, once it needs a value; what it waits is no work of its own. A
call that copies to the GPU waits, too, unless memory is pinned: its time, copying included, is phase ``device_copy``.
The C functions themselves are watched (``native/_hook_waits.c``): a script or ``torch.compile`` sees no change,
and a call costs two readings of the clock. Without the hooks in C no wait is recorded.

Not seen are waits inside of calls that launch work: where the queue of launches is full, and where the allocator frees
memory or an index needs a count. When each collective was enqueued (``enqueue_ns``) shows how far a host was ahead.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import guarded, undo

if TYPE_CHECKING:
    from types import ModuleType

#: How a call is known to wait, in ``native/_hook_waits.c``: always, of a tensor on the GPU, or of a copy to it as well.
ANY, OF_TENSOR, COPIES = range(3)
#: Methods of tensors.
TENSOR = dict.fromkeys(("item", "cpu", "tolist", "__bool__", "__float__", "__int__", "__index__"), OF_TENSOR)
TENSOR |= dict.fromkeys(("to", "cuda"), COPIES)
#: Classes and functions of ``torch._C`` that wait whatever they are called with.
ALWAYS = (("_cuda_synchronize",), ("_CudaStreamBase", "synchronize"), ("_CudaEventBase", "synchronize"))
DEFINITION_BYTES = 32


def install(torch: ModuleType, loop: Any) -> None:
    """Watch what this build of torch has of them."""
    guarded(_install)(torch, loop)


def _install(torch: Any, loop: Any) -> None:
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
