"""PyTorch: input, forward, backward, optimizer and checkpoint of each step, by hooks around few functions.

Nothing is hooked per module or per tensor: a step costs some microseconds whatever the model's size. What the hooks do
is in C (``native/_hooks.c``) where that is built, else in Python (``torch_hooks.py``). Where steps begin and end is
``torch_steps.py``'s business. Works with several optimizers, gradient accumulation, AMP and ``torch.compile``;
optimizers that call a closure (LBFGS, Lightning) count without the forward and backward inside them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hindmost.probes import on_import, torch_collectives, torch_ddp
from hindmost.probes.guard import around, as_phase, undo
from hindmost.probes.self_time import SelfTime
from hindmost.probes.torch_cuda import GpuPhases
from hindmost.probes.torch_hooks import Hooks
from hindmost.probes.torch_native import native_hooks

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.probes.torch_native import NativeHooks
    from hindmost.recorder import Recorder


@on_import("torch")
def install(torch: ModuleType, recorder: Recorder) -> None:
    """Hook torch, which has just been imported. What this build of torch does not have is not hooked."""
    t: Any = torch
    gpu = GpuPhases(t.cuda, recorder) if t.version.cuda or getattr(t.version, "hip", None) else None
    hooks = native_hooks(torch, recorder, gpu) or Hooks(torch, recorder, gpu)
    recorder.name_framework("torch")
    hooks.surround(t.utils.data.dataloader._BaseDataLoaderIter, "__next__", "fetch")
    backward = hooks.surround(t.autograd, "backward", "backward")
    as_phase(t, "save", "checkpoint", recorder)
    _hook_optimizers(t, hooks)
    torch_collectives.watch_process_group(torch, recorder.join_group, recorder.set_up)
    self_time = SelfTime(recorder)
    torch_ddp.install(t, recorder, self_time, backward)
    torch_collectives.install(t, recorder, self_time)
    # Last: an error in asking costs no hook.
    if hasattr(t._C, "_nccl_version"):
        recorder.record_version("nccl", ".".join(map(str, t.cuda.nccl.version()[:3])))


def _hook_optimizers(torch: Any, hooks: Hooks | NativeHooks) -> None:
    """Every optimizer's step, and that of the AMP scaler, which skips the optimizer's after an overflow."""
    module = importlib.import_module("torch.optim.optimizer")  # torch.optim removes the attribute
    before, after = hooks.step_begins, hooks.step_ends
    undo.append(module.register_optimizer_step_pre_hook(before).remove)
    undo.append(module.register_optimizer_step_post_hook(after).remove)
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if scaler is not None:
        around(
            scaler,
            "step",
            lambda _scaler, optimizer, *_: before(optimizer) or 0,
            lambda _start, _result, _scaler, optimizer, *_: after(optimizer),
            lambda _start, _scaler, optimizer, *_: after(optimizer),
        )


@on_import("torch.distributed.checkpoint.state_dict_saver")
def watch_checkpoints(saver: ModuleType, recorder: Recorder) -> None:
    """Distributed checkpoints as phase ``checkpoint``: hook ``saver`` before its package hands its functions on.

    Of an asynchronous save only what holds up the training thread counts.
    """
    for name in ("save", "async_save", "save_state_dict"):
        if hasattr(saver, name):
            as_phase(saver, name, "checkpoint", recorder)


@on_import("torch._dynamo.trace_rules")
def keep_tracer_out(rules: ModuleType, _recorder: Recorder) -> None:
    """Have ``torch.compile``'s tracer skip this package's files, as it skips torch's own."""
    skip: Any = getattr(rules, "add", None)
    if skip is not None:
        skip("hindmost")
