"""What detectors take: blocks of [rank x step], on no clock but each rank's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from hindmost_judge.causes.telemetry import Samples
    from hindmost_judge.findings import Due
    from hindmost_judge.timeline.matching import Grid
    from hindmost_judge.types import Array, Floats, Ints, Lanes
    from hindmost_judge.whatif.pipeline_replay import Bubbles


@dataclass(frozen=True)
class Blocks:
    """What every rank did in every step; ns, NaN where unmeasured, R ranks, S steps after warm-up, K segments.

    ``excess`` [R, S] is how much later than its median peer a rank was through its own work. ``segments`` [R, K] is the
    same for each interval between two synchronisations, ``segment_step`` [K] the step's index. ``period`` [S] is the
    job's step time, ``starts`` [S] the first column of each step. ``wait`` [R, S] is what a rank waited in collectives,
    ``transfer`` [R, S] what they took beyond that, ``caused`` [R, S] what it made each other one wait, ``last`` [R, S]
    the share of collectives it entered last. ``group`` [R, C] is the communicator of each rank in each class, ``klass``
    [K] the class that ends each segment, ``beside`` [K] which collectives computing does not wait for, ``role`` [R] the
    cohort of ranks that may be compared.
    ``parts`` are the parts of self time; ``samples`` are what the metrics say of each rank, ``work`` [R, S] its samples
    or tokens. ``took`` and ``ended`` [R, S] are how long its host was in the step and when it left it (job clock),
    ``node`` [R] is the number of its node, -1 where unknown.
    In a ``pipeline`` whose sends and receives are in order, segments are the intervals between those, ``computing`` [R,
    S] what its GPUs' take, all stages on one level, and ``starved`` [R, S] how long these idled because their hosts
    launched late.
    ``due`` is the full delay in the segments due to uneven work, where only a part of it shows; ``even`` [R, K] are
    the segments with work of one size, where known. ``unsure`` [R] is ns a step by which a rank may be late, or the
    others ahead. Where hosts set the pace, their work is in ``lanes``, and delays are how much more of it a rank has.
    """

    ranks: Ints
    steps: Ints
    period: Floats
    own: Floats
    excess: Floats
    segments: Floats
    segment_step: Ints
    wait: Floats
    transfer: Floats
    caused: Floats
    last: Floats
    collectives: int
    starts: Ints
    warmup: int
    group: Ints
    klass: Ints
    beside: Array
    role: Ints
    parts: dict[str, Floats] = field(default_factory=dict)
    samples: Samples | None = None
    joined: Grid | None = None
    work: Floats | None = None
    took: Floats | None = None
    ended: Floats | None = None
    node: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    evidence: str = "collectives"
    overlapped: bool = False
    pipeline: Bubbles | None = None
    computing: Floats | None = None
    starved: Floats | None = None
    due: Due | None = None
    even: Floats | None = None
    unsure: Floats | None = None
    lanes: Lanes | None = None

    def gauges(self, columns: Array | None = None) -> dict[str, Floats]:
        """Quantity to [R] in these steps (indices), or all: :class:`hindmost_judge.causes.telemetry.Samples`."""
        return self.samples.during(columns) if self.samples is not None else {}

    def gauge(self, name: str) -> Floats | None:
        """[R] one quantity over all steps; ``None`` where no rank has it."""
        return self.samples.typical(name) if self.samples is not None else None

    @property
    def step_ns(self) -> float:
        """Typical step time of the job."""
        return float(median(self.period))
