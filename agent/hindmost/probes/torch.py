"""PyTorch: input, forward, backward, optimizer and checkpoint of each step, by hooks around few functions.

Nothing is hooked per module or per tensor: a step costs some microseconds whatever the model's size. Where steps begin
and end is ``recognise.py``'s business. Works with several optimizers, gradient accumulation, AMP and ``torch.compile``;
optimizers that call a closure (LBFGS, Lightning) count without the forward and backward inside them.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from hindmost.probes import torch_collectives, torch_ddp
from hindmost.probes.guard import around, guarded, undo
from hindmost.probes.recognise import Recogniser
from hindmost.probes.torch_cuda import GpuPhases

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.stepping import Recorder

#: How deep a batch is searched for its first tensor.
DEPTH = 3


class Hooks:
    """What is called before and after torch's functions, in the training thread only."""

    def __init__(self, torch: Any, recorder: Recorder, recogniser: Recogniser, gpu: GpuPhases | None) -> None:
        self._torch = torch
        self._recorder = recorder
        self._recogniser = recogniser
        self._clock = recorder.clock
        self._gpu = gpu
        self._backwards = 0  # backward inside backward (activation checkpointing) is part of the outer one
        self._optimizing: list[int] = []  # Horovod's step calls the wrapped optimizer's step: both tell us

    def input_begins(self, iterator: Any) -> int | None:
        if not self._recorder.training_thread():
            return None
        self._optimizing.clear()
        now = self._clock()
        source = id(getattr(iterator, "_dataset", iterator))
        self._recogniser.input_begins(now, source, self._torch.is_grad_enabled())
        self._recorder.enter("input", now)
        return now

    def input_ends(self, start: int, batch: Any, _iterator: Any) -> None:
        self._recorder.leave()
        self._recogniser.input_ends(start, self._clock(), work(batch))
        if self._gpu is not None:
            self._gpu.ready()

    def input_fails(self, _start: int, _iterator: Any) -> None:
        self._recorder.leave()
        self._recogniser.input_fails()

    def backward_begins(self, *_: Any) -> int | None:
        if not self._recorder.training_thread():
            return None
        self._backwards += 1
        now = self._clock()
        if self._backwards == 1:
            self._recogniser.backward_begins(now)
            self._recorder.enter("backward", now)
            if self._gpu is not None:
                self._gpu.backward_begins()
        return now

    def backward_ends(self, start: int, *_: Any) -> None:
        self._backwards -= 1
        if self._backwards == 0:
            self._recorder.leave()
            self._recogniser.backward_ends(start, self._clock())
            if self._gpu is not None:
                self._gpu.backward_ends()

    def step_begins(self, *_: Any) -> int | None:
        if not self._recorder.training_thread():
            return None
        now = self._clock()
        if not self._optimizing:
            self._recogniser.optimizer_begins(now)
        self._optimizing.append(now)
        return now

    def step_ends(self, _start: int, _result: Any, optimizer: Any, *_: Any) -> None:
        start = self._optimizing.pop() if self._optimizing else None
        if start is not None and not self._optimizing:
            if self._gpu is not None:
                self._gpu.optimizer_ends()
            self._recogniser.optimizer_ends(start, self._clock(), id(optimizer))

    def save_begins(self, *_: Any) -> int | None:
        if not self._recorder.training_thread():
            return None
        now = self._clock()
        self._recorder.enter("checkpoint", now)
        return now

    def save_ends(self, start: int, *_: Any) -> None:
        self._recorder.leave()
        self._recorder.phase("checkpoint", start, self._clock())


def install(torch: ModuleType, recorder: Recorder) -> None:
    """Hook torch, which has just been imported. What this build of torch does not have is not hooked."""
    recogniser = Recogniser(recorder)
    t: Any = torch
    gpu = GpuPhases(t.cuda, recorder) if t.version.cuda or getattr(t.version, "hip", None) else None
    hooks = Hooks(torch, recorder, recogniser, gpu)
    recorder.name_framework("torch")
    around(
        t.utils.data.dataloader._BaseDataLoaderIter,
        "__next__",
        hooks.input_begins,
        hooks.input_ends,
        hooks.input_fails,
    )
    around(t.autograd, "backward", hooks.backward_begins, hooks.backward_ends, hooks.backward_ends)
    around(t, "save", hooks.save_begins, hooks.save_ends, hooks.save_ends)
    _hook_optimizers(t, hooks)
    torch_ddp.install(t, recorder)
    torch_collectives.install(t, recorder)


def _hook_optimizers(torch: Any, hooks: Hooks) -> None:
    """Every optimizer's step, and that of the AMP scaler, which skips the optimizer's after an overflow."""
    begins, ends = guarded(hooks.step_begins), guarded(hooks.step_ends)
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim removes the attribute

    def before(*_: Any) -> None:
        begins()

    def after(optimizer: Any, *_: Any) -> None:
        ends(0, None, optimizer)

    before._torchdynamo_disable = after._torchdynamo_disable = True  # type: ignore[attr-defined]
    undo.append(module.register_optimizer_step_pre_hook(before).remove)
    undo.append(module.register_optimizer_step_post_hook(after).remove)
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if scaler is not None:
        around(
            scaler,
            "step",
            lambda _scaler, optimizer, *_: hooks.step_begins(optimizer),
            lambda start, result, _scaler, optimizer, *_: hooks.step_ends(start, result, optimizer),
            lambda start, _scaler, optimizer, *_: hooks.step_ends(start, None, optimizer),
        )


def work(batch: Any, depth: int = DEPTH) -> int:
    """Tokens of a batch that has ``input_ids``, else samples: the first dimension of its first tensor; 0 unknown."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if depth == 0:
        return 0
    if isinstance(batch, (list, tuple)):
        return next(filter(None, (work(item, depth - 1) for item in batch)), 0)
    if hasattr(batch, "keys"):
        if "input_ids" in batch:
            return math.prod(getattr(batch["input_ids"], "shape", ()) or (0,))
        return next(filter(None, (work(batch[key], depth - 1) for key in batch.keys())), 0)  # noqa: SIM118 - BatchEncoding
    return 0
