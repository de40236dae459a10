"""How fast GPUs computed, and moved their memory, against what they can at best: a coarse roofline.

From NVIDIA's GPU performance monitor (GPM, Hopper and later). What tensor cores do at best is
`datasheet <https://www.nvidia.com/en-us/data-center/h200/>`_ operations a cycle times the clock that was sampled.
Williams, Waterman, Patterson: Roofline, 2009. Without the monitor nothing is known but what was counted by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import usage

if TYPE_CHECKING:
    from hindmost_judge.causes.telemetry import Metrics
    from hindmost_judge.types import Floats


@dataclass(frozen=True)
class Model:
    """What a GPU can: dense bf16 operations a cycle, the same a second by its datasheet, memory bytes a second."""

    cycle: float
    flops: float
    bandwidth: float


_HOPPER, _BLACKWELL, _AMPERE = 4096.0, 8192.0, 2048.0
#: By the name that NVML gives; the first that matches.
MODELS: tuple[tuple[str, Model], ...] = (
    (r"H200", Model(132 * _HOPPER, 989e12, 4.8e12)),
    (r"GH200", Model(132 * _HOPPER, 989e12, 4.0e12)),
    (r"H100.*(PCIe)", Model(114 * _HOPPER, 756e12, 2.0e12)),
    (r"H100.*(NVL)", Model(132 * _HOPPER, 835e12, 3.9e12)),
    (r"H100|H800", Model(132 * _HOPPER, 989e12, 3.35e12)),
    (r"B200|GB200", Model(148 * _BLACKWELL, 2250e12, 8.0e12)),
    (r"A100.*80", Model(108 * _AMPERE, 312e12, 2.0e12)),
    (r"A100", Model(108 * _AMPERE, 312e12, 1.55e12)),
)
#: Of what GPM calls tensor cores active, so much is arithmetic. Nine kernels on an H200 (cuBLAS of five shapes, bf16,
#: fp16 and TF32, attention) had 0.857 to 0.906 of the operations that their activity and clock would be.
USED = 0.893
#: What GPM says is of the seconds before it: samples so long after the first step are of steps alone.
PERIOD_NS = 5_000_000_000
#: Tensor cores that work less than this are not what a job computes with.
_LEAST = 0.01


@dataclass(frozen=True)
class Achieved:
    """The mean GPU of one model: ``flops`` and ``bytes_per_s`` achieved of ``peak_flops`` and ``peak_bytes_per_s``.

    ``None`` is unknown. ``flops`` are of bf16 or fp16, of TF32 half. ``ridge``: with fewer operations a byte than these
    memory is the limit; ``intensity`` is what was done. ``mfu`` is of operations that were counted by hand.
    """

    gpu: str
    gpus: int
    flops: float | None
    peak_flops: float | None
    bytes_per_s: float | None
    peak_bytes_per_s: float | None
    intensity: float | None
    ridge: float | None
    mfu: float | None = None


def model_of(name: str) -> Model | None:
    """What is known of a GPU of this name."""
    return next((one for pattern, one in MODELS if re.search(pattern, name)), None)


def achieved(metrics: Metrics, gpus: set[str], span: tuple[int, int], counted: float | None = None) -> list[Achieved]:
    """A row a model of these GPUs. ``span``: of the steps, ns. ``counted``: operations a second of the whole job."""
    of_steps = metrics.during(span[0] + PERIOD_NS, span[1])
    models_of = usage.by_label(metrics, "hindmost_gpu_info", "gpu_uuid", "highest", "model")
    named = {uuid: next(iter(of)) for (_, uuid), of in models_of.items()}
    models = sorted({named[uuid] for uuid in gpus if uuid in named})
    found = []
    for name in models:
        one, of = model_of(name), {uuid for uuid in gpus if named.get(uuid) == name}
        tensor, memory, clock = (
            _mean(of_steps, metric, of) for metric in ("tensor_activity_ratio", "dram_activity_ratio", "sm_clock_hertz")
        )
        flops = moved = None
        if one is not None and not np.isnan(tensor) and not np.isnan(clock) and tensor >= _LEAST:
            flops = tensor * USED * one.cycle * clock
        if one is not None and not np.isnan(memory):
            moved = memory * one.bandwidth
        if flops is None and moved is None and counted is None:
            continue
        found.append(
            Achieved(
                gpu=name,
                gpus=len(of),
                flops=flops,
                peak_flops=one.flops if one else None,
                bytes_per_s=moved,
                peak_bytes_per_s=one.bandwidth if one else None,
                intensity=flops / moved if flops and moved else None,
                ridge=one.flops / one.bandwidth if one else None,
                mfu=counted / (len(gpus) * one.flops) if one and counted and len(models) == 1 else None,
            )
        )
    return found


def _mean(metrics: Metrics, name: str, gpus: set[str]) -> float:
    held: Floats = np.array(
        [
            value
            for (_, uuid), value in usage.summary(metrics, f"hindmost_gpu_{name}", "gpu_uuid", "mean").items()
            if uuid in gpus
        ]
    )
    return float(held.mean()) if len(held) else float("nan")
