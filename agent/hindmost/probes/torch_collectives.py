"""Collectives that a script calls through ``torch.distributed`` itself, over a backend that blocks (gloo, MPI).

Hooked when the process group is made, so a CPU job pays and a job on NCCL does not: there the call only enqueues, and
the NCCL plugin tells. A script that took a function out of the module before (``from torch.distributed import
all_reduce``, above ``init_process_group``) keeps the unhooked one.
"""

from __future__ import annotations

import functools
import time
import weakref
from typing import TYPE_CHECKING, Any

from hindmost.probes.guard import around, guarded, undo
from hindmost.probes.torch_ddp import BLOCKING, COLLECTIVE, NONE16, communicator_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from hindmost.probes.self_time import SelfTime
    from hindmost.recorder import Recorder

P2P = 4  # of ring.h
NONBLOCKING, ERROR, SENDS = 2, 4, 32
ANY16 = 0xFFFE
SLOT = 12  # of the open table
#: Operations that were started and not yet waited for, at most: with more, the oldest waits are not recorded.
STARTED = 256
#: Tells the ids of these communicators from DDP's own use of the same group, which counts for itself.
CALLS = -1

#: Function -> operation, and where ``group`` and the root or peer stand among its arguments (-1: there is none).
FUNCTIONS = {
    "all_reduce": ("all_reduce", 2, -1),
    "broadcast": ("broadcast", 2, 1),
    "_broadcast_coalesced": ("broadcast", 0, 3),  # of many tensors: DDP's of its buffers, in each forward
    "reduce": ("reduce", 3, 1),
    "all_gather": ("all_gather", 2, -1),
    "all_gather_into_tensor": ("all_gather", 2, -1),
    "all_gather_single": ("all_gather", 2, -1),
    "reduce_scatter": ("reduce_scatter", 3, -1),
    "reduce_scatter_tensor": ("reduce_scatter", 3, -1),
    "reduce_scatter_single": ("reduce_scatter", 3, -1),
    "all_to_all": ("all_to_all", 2, -1),
    "all_to_all_single": ("all_to_all", 4, -1),
    "gather": ("gather", 3, 2),
    "scatter": ("scatter", 3, 2),
    "barrier": ("barrier", 0, -1),
    "send": ("send", 2, 1),
    "recv": ("recv", 2, 1),
}


class Calls:
    """Writes the training thread's own collectives; in the rings of all members under one id and number."""

    def __init__(self, distributed: Any, recorder: Recorder, self_time: SelfTime) -> None:
        self._distributed = distributed
        self._recorder = recorder
        self._self_time = self_time
        self._sequences: dict[int, int] = {}
        self._started: dict[int, tuple[Any, int, int]] = {}  # by id: a handle's weak reference, communicator, number
        self._depth = 0

    def begins(self, op: str, group: Any, peer: int = -1) -> tuple[int, int, int] | None:
        """Start, communicator and number of an outermost call; ``peer``: of a message, its rank in the group."""
        if self._depth or not self._recorder.training_thread():
            return None
        comm = self._communicator(group)
        number = self._sequences.get(comm, 0)
        kind = P2P if op in ("send", "recv") else COLLECTIVE
        if kind == COLLECTIVE:
            self._sequences[comm] = number + 1
        self._depth = 1
        self._self_time.ends()
        now, ring = self._recorder.clock(), self._recorder.ring
        if kind == COLLECTIVE:
            ring.enter(SLOT, kind, ring.name(op), now, number, comm)
        else:
            whom = peer if peer >= 0 else ANY16 if op == "recv" else NONE16
            ring.enter(SLOT, kind, ring.name(op), now, number, comm, whom, SENDS if op == "send" else 0)
        return now, comm, number

    def ends(self, op: str, token: tuple[int, int, int], flags: int, peer: int, size: int) -> None:
        """Write the call."""
        self._depth = 0
        (start, comm, number), ring = token, self._recorder.ring
        now = self._recorder.clock()
        ring.leave(SLOT)
        kind = P2P if op in ("send", "recv") else COLLECTIVE
        meets = kind == COLLECTIVE and not flags
        if meets:
            self._self_time.write(start)
        ring.event(kind, ring.name(op), start, now - start, number, comm, peer if peer >= 0 else NONE16, size, flags)
        if meets:
            self._recorder.phase("sync", start, now)  # DDP's broadcast of its buffers is no part of forward
            self._self_time.begins(now)
        else:
            self._self_time.broken()

    def goes_on(self, token: tuple[int, int, int], work: Any) -> None:
        """Remember which operation this handle is of."""
        while len(self._started) >= STARTED:
            del self._started[next(iter(self._started))]
        self._started[id(work)] = (weakref.ref(work), *token[1:])

    def wait_begins(self, work: Any, *_: Any) -> tuple[int, int, int] | None:
        """Start, communicator and number of the first wait for an operation that was started here."""
        known = self._started.pop(id(work), None)
        if known is None or known[0]() is not work or self._depth or not self._recorder.training_thread():
            return None
        now, ring = self._recorder.clock(), self._recorder.ring
        ring.enter(SLOT, P2P, ring.name("wait"), now, known[2], known[1])
        return now, known[1], known[2]

    def wait_ends(self, token: tuple[int, int, int], *_: Any, flags: int = 0) -> None:
        """Write the wait, under the operation's own number."""
        (start, comm, number), ring = token, self._recorder.ring
        now = self._recorder.clock()
        ring.leave(SLOT)
        ring.event(P2P, ring.name("wait"), start, now - start, number, comm, NONE16, 0, flags)
        self._self_time.broken()

    def wait_fails(self, token: tuple[int, int, int], *_: Any) -> None:
        self.wait_ends(token, flags=ERROR)

    def place(self, group: Any, peer: Any) -> int:
        """A rank of the job as one of the group; -1 where there is none."""
        if not isinstance(peer, int):
            return -1
        known = group is None or group is self._distributed.group.WORLD
        return peer if known else int(self._distributed.get_group_rank(group, peer))

    def _communicator(self, group: Any) -> int:
        distributed = self._distributed
        ranks = distributed.get_process_group_ranks(group)
        rank = distributed.get_rank(group)
        name = getattr(group, "group_name", "") or "world"
        return self._recorder.ring.communicator(communicator_id([*ranks, CALLS]), rank, len(ranks), name)


def install(torch: Any, recorder: Recorder, self_time: SelfTime) -> None:
    """Wait for a process group whose backend blocks, then hook the functions."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    calls = Calls(distributed, recorder, self_time)

    def made(*_: Any) -> None:
        if distributed.get_backend() in BLOCKING and not undo_of_calls:
            for module in (distributed, distributed.distributed_c10d):
                undo_of_calls.extend(hook_call(module, name, calls) for name in FUNCTIONS if hasattr(module, name))
            undo.extend(undo_of_calls)
            around(distributed.Work, "wait", calls.wait_begins, calls.wait_ends, calls.wait_fails)

    undo_of_calls: list[Callable[[], None]] = []
    for module in (distributed, distributed.distributed_c10d):
        around(module, "init_process_group", lambda *_: 0, made)
    if distributed.is_initialized():  # the group that gave a spawned process its rank
        made()


def hook_call(module: Any, name: str, calls: Calls) -> Callable[[], None]:
    """Hook one function; returns what takes the hook out."""
    op, group_place, peer_place = FUNCTIONS[name]
    original = getattr(module, name)
    begins, ends, goes_on = guarded(calls.begins), guarded(calls.ends), guarded(calls.goes_on)
    place, message = guarded(calls.place), op in ("send", "recv")

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        group = _argument(args, kwargs, group_place, ("group",))
        peer = _argument(args, kwargs, peer_place, ("src", "dst"))
        if message:
            peer = place(group, peer) if peer is not None else kwargs.get("group_src", kwargs.get("group_dst"))
            token = begins(op, group, _number(peer))
        else:
            token = begins(op, group)
        if token is None:
            return original(*args, **kwargs)
        size = _bytes([*args, *kwargs.values(), None, None][group_place == 0])
        try:
            result = original(*args, **kwargs)
        except BaseException:
            ends(op, token, ERROR, _number(peer), size)
            raise
        # A collective that was only started returns a handle; one that has ended, nothing.
        started = hasattr(result, "wait")
        ends(op, token, NONBLOCKING if started else 0, _number(peer), size)
        if started:
            goes_on(token, result)
        return result

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    setattr(module, name, call)

    def restore() -> None:
        if getattr(module, name) is call:
            setattr(module, name, original)

    return restore


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, names: tuple[str, ...]) -> Any:
    if 0 <= place < len(args):
        return args[place]
    return next((kwargs[name] for name in names if name in kwargs), None)


def _number(peer: Any) -> int:
    return peer if isinstance(peer, int) else -1


def _bytes(value: Any) -> int:
    """Bytes of a tensor or of a list of tensors; 0 of anything else."""
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


def watch_process_group(
    torch: ModuleType,
    place: Callable[[int, int], None],
    took: Callable[[str, int, int], None] = lambda *_: None,
) -> None:
    """Have ``init_process_group`` of torch, which has just been imported, call ``place(rank, world_size)``.

    And ``took("init", start_ns, end_ns)``.

    It alone says which rank a process is that no launcher named: ``torch.multiprocessing.spawn``, or a script that is
    given its rank by an argument.
    """
    t: Any = torch
    if not t.distributed.is_available():
        return

    def met(start: int, *_: Any) -> None:
        took("init", start, time.monotonic_ns())
        place(t.distributed.get_rank(), t.distributed.get_world_size())

    for module in (t.distributed, t.distributed.distributed_c10d):
        around(module, "init_process_group", lambda *_: time.monotonic_ns(), met)
