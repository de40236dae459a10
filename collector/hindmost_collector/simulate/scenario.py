"""What is simulated: a job's layout, its noise, and what is wrong with it."""

from dataclasses import dataclass, field, fields

from hindmost.errors import UsageError

#: What GPUs' kernels are limited by, where their activity is sampled.
GPU_BOUNDS = ("", "compute", "memory")
LAYOUTS = ("dp", "fsdp", "tp_dp", "pp_dp")
#: Where a fault of a cause bites: the GPU's computing, the host before it launches, or the network; or all stops.
ON_GPU = ("compute", "gpu_throttle", "gpu_contention", "workload")
ON_HOST = ("input", "cpu_contention", "gc", "checkpoint", "memory", "io")
STOPS = ("hang", "desync")
CAUSES = (*ON_GPU, *ON_HOST, "h2d", "network", *STOPS)
MAX_RANKS = 16_384
#: What numbers of a job can be simulated: beyond them times leave 64 bits, or nothing fits into memory.
_FROM_TO = {
    "ranks": (2, MAX_RANKS),
    "steps": (1, 10_000_000),
    "seed": (0, 2**63 - 1),
    "tensor": (1, MAX_RANKS),
    "pipeline": (1, MAX_RANKS),
    "microbatches": (1, 1024),
    "stretches": (1, 1024),
    "step_ms": (0.01, 3_600_000.0),
    "run_ahead": (0, 1024),
    "varying_lengths": (0.0, 3.0),
}
#: In ms and parts of a million, how far clocks may be off: a year, and one in ten.
_CLOCKS = {"clock_offset_ms": 3.2e10, "clock_drift_ppm": 1e5}
#: The most that a fault makes of a step, and noise of what it usually is.
_MOST_SIZE, _MOST_NOISE = 10_000.0, 100.0


@dataclass(frozen=True)
class Fault:
    """Something wrong with some ranks: ``size`` is what it adds to their step, as a share of the clean step.

    It acts from step ``onset`` to before ``end`` (``None``: to the last), in a share ``duty`` of those steps. A
    ``network`` fault slows the transfers of every group that has one of the ranks. At ``onset`` of a ``hang`` they
    do not come, and of a ``desync`` they come with another operation: the job stops there.
    """

    cause: str
    ranks: tuple[int, ...]
    size: float = 0.1
    onset: int = 0
    end: int | None = None
    duty: float = 1.0


@dataclass(frozen=True)
class Noise:
    """Differences between healthy ranks and steps, in shares of a computing interval unless said otherwise.

    The defaults are about what 4 H200s in DDP showed: 0.2 % between GPUs, 1 % between kernels of one, slow drift,
    and a stall of some % of the step now and then.
    """

    between_ranks: float = 0.002
    each_stretch: float = 0.01
    wandering: float = 0.003
    wandering_memory: float = 0.8
    stall_probability: float = 2e-4
    stall_size: float = 0.05
    transfer: float = 0.05
    host: float = 0.08
    clock_offset_ms: float = 1.0
    clock_drift_ppm: float = 10.0

    def __post_init__(self) -> None:
        for one in fields(self):
            most = _CLOCKS.get(one.name, _MOST_NOISE)
            if not -most <= getattr(self, one.name) <= most:
                raise UsageError(f"--{one.name.replace('_', '-')} {getattr(self, one.name)}: use {-most:g} to {most:g}")


@dataclass(frozen=True)
class Scenario:
    """A job to simulate. ``step_ms`` is the clean computing of a step; ranks are numbered tensor, data, pipeline.

    ``gpu_bound`` has the activity of GPUs sampled like that of kernels with this limit.
    """

    ranks: int = 8
    steps: int = 100
    seed: int = 0
    layout: str = "dp"
    tensor: int = 1
    pipeline: int = 1
    microbatches: int = 8
    stretches: int = 6
    step_ms: float = 100.0
    input_share: float = 0.02
    transfer_share: float = 0.08
    run_ahead: int = 0
    varying_lengths: float = 0.0
    warmup: int = 3
    checkpoint_every: int = 0
    gpus_per_node: int = 8
    gpu_bound: str = ""
    noise: Noise = field(default_factory=Noise)
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UsageError(f"--layout {self.layout!r}: use one of {', '.join(LAYOUTS)}")
        if self.gpu_bound not in GPU_BOUNDS:
            raise UsageError(f"--gpu-bound {self.gpu_bound!r}: use one of {', '.join(GPU_BOUNDS[1:])}")
        for name, (least, most) in _FROM_TO.items():
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)}: use {least} to {most}")
        if self.ranks % self.model_parallel:
            raise UsageError(f"--ranks {self.ranks}: use a multiple of the {self.model_parallel} ranks of a replica")
        for fault in self.faults:
            self._check(fault)

    @property
    def halts_at(self) -> int | None:
        """The first step that no rank ends, since a rank does not come or comes with another operation."""
        return min((fault.onset for fault in self.faults if fault.cause in STOPS), default=None)

    @property
    def whole_steps(self) -> int:
        """How many steps all ranks end."""
        return self.steps if self.halts_at is None else self.halts_at

    @property
    def model_parallel(self) -> int:
        """Ranks that share one replica of the model."""
        return {"tp_dp": self.tensor, "pp_dp": self.pipeline}.get(self.layout, 1)

    def _check(self, fault: Fault) -> None:
        if fault.cause not in CAUSES:
            raise UsageError(f"--fault: cause {fault.cause!r}: use one of {', '.join(CAUSES)}")
        if not fault.ranks or min(fault.ranks) < 0 or max(fault.ranks) >= self.ranks:
            raise UsageError(f"--fault: ranks {list(fault.ranks)}: use 0 to {self.ranks - 1}")
        if not 0 <= fault.size <= _MOST_SIZE or not 0 < fault.duty <= 1:
            raise UsageError(f"--fault: size is from 0 to {_MOST_SIZE:,.0f} steps, duty above 0 and at most 1")
        if not 0 <= fault.onset < self.steps:
            raise UsageError(f"--fault: step {fault.onset}: steps are 0 to {self.steps - 1}")
        if fault.end is not None and fault.end <= fault.onset:
            raise UsageError(f"--fault: steps {fault.onset} to before {fault.end}: no step is between")


@dataclass(frozen=True)
class Truth:
    """The ground truth, for grading a verdict; never part of the recording.

    Times are ns of the whole run: ``total_ns`` as it went, ``repaired_ns`` without any fault and
    ``repaired_each_ns`` without that one, all with the same noise. ``active`` are the steps in which each fault
    acted.
    """

    faults: tuple[Fault, ...]
    total_ns: int
    repaired_ns: int
    repaired_each_ns: tuple[int, ...] = ()
    active: tuple[tuple[int, ...], ...] = ()

    @property
    def cost_ratio(self) -> float:
        """Share of the run's time that repairing every fault would have saved."""
        return (self.total_ns - self.repaired_ns) / self.total_ns
