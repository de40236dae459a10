"""The thresholds of every decision, each with its reason. A field can be set; nothing else in the judge is tunable."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan


@dataclass(frozen=True)
class Settings:
    """When to name a rank and when to abstain. Ratios are 0 to 1; counts are of steps unless they say otherwise."""

    #: Below this nobody acts on a name: GPUs of one model differ by about 1 % from silicon alone.
    min_effect: float = 0.01
    #: What a repair must save, as a share of the step. Less than the effect: noise hides a part of any excess.
    min_cost: float = 0.004
    #: Where ranks share CPUs, caches and clocks alone make the same work differ by some 10 % in CPU time.
    min_demand: float = 0.15
    #: With fewer than four ranks there is no crowd to compare with: two healthy GPUs differ by up to 2 %.
    min_effect_of_few: float = 0.02
    #: Fewer measured steps cannot tell a habit from an accident, unless the effect is ``large_effect``.
    min_steps: int = 10
    #: At a fifth of the step three steps in a row are enough: what is that large is no noise of a healthy job.
    large_effect: float = 0.2
    min_steps_when_large: int = 3
    #: Median over blocks of steps against their standard error; at five, normal noise errs once in a million.
    min_z: float = 5.0
    #: The excess against how much healthy ranks differ among themselves, beyond the most extreme that chance makes of
    #: so many: standard deviations, times 1.6 with 4 ranks, 2.2 with 1,024.
    min_spread_ratio: float = 3.0
    #: Share of time blocks in which the rank must be late by at least half of its typical excess.
    min_consistency: float = 0.85
    #: Share of steps in which the rank must be later than all of seven healthy ones; chance gives one in eight.
    min_latest: float = 0.5
    #: A cost below this share of everything the ranks wait is drowned in noise that has no owner.
    min_share_of_waste: float = 0.12
    #: A cause must explain this much of the excess, or the cause is unknown.
    min_explained: float = 0.8
    #: A step that is later than the rank's typical one by this share of the step time is a stall.
    stall_effect: float = 0.1
    #: Stalls, apart in time, before a rank is called intermittent, and their share of all stalls in the job.
    min_stalls: int = 5
    min_stall_share: float = 0.6
    #: What ranks lose a step by not being alike, as a share of it, before uneven work is looked for.
    min_uneven: float = 0.03
    #: How much the work of a step must vary; kernels of equal work vary by about 1 %.
    min_swing: float = 0.03
    #: Share of the variance of who is late that the work must account for.
    min_uneven_explained: float = 0.5
    #: Leading steps longer than this multiple of the median are warm-up (allocation, autotuning, file caches).
    warmup_ratio: float = 1.5
    #: At most this share of the run can be warm-up.
    max_warmup: float = 0.25
    #: Input of the typical rank above this share of the step makes the whole job input-bound.
    input_bound: float = 0.2
    #: Whoever watches shall know of a hang this many p99 steps after it began, and not before ``hang_seconds`` unless
    #: by ``hang_way_seconds``: a look at ranks that stand still arrives and is judged within half a second, on a busy
    #: host within one. An operation is given the time that is left.
    hang_steps: float = 3.0
    hang_seconds: float = 5.0
    hang_way_seconds: float = 1.0
    #: Where the rank that did not come writes a checkpoint, the others wait for a minute as a matter of course.
    hang_checkpoint_seconds: float = 60.0

    def patience_ns(self, step_ns: float) -> float:
        """How long an operation may be open in a job whose p99 step is ``step_ns`` (NaN: unknown)."""
        steps = self.hang_steps * (0.0 if isnan(step_ns) else step_ns)
        return max(self.hang_seconds * 1e9, steps) - self.hang_way_seconds * 1e9


DEFAULT = Settings()
