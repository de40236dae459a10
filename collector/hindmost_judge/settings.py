"""The thresholds that can be set: one table of default, unit, range and reason.

Constants that define a method stand in that method's module; ``docs/reference/thresholds.md`` lists the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import isnan
from typing import Any

#: Units that several thresholds have.
STEP, EXCESS = "of the step", "of the delay"


def _of(default: float, unit: str, low: float, high: float, reason: str) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "reason": reason})


@dataclass(frozen=True)
class Settings:
    """When to name a rank and when to abstain.

    A field's name is the name for ``--set``, for ``[judge]`` in a TOML file and, in capitals after ``HINDMOST_JUDGE_``,
    for the environment.
    """

    min_effect: float = _of(
        0.01,
        STEP,
        0,
        1,
        "least delay to name a rank; GPUs of one model differ by about 1 %, so less is not worth acting on",
    )
    min_cost: float = _of(
        0.004, STEP, 0, 1, "least saving from fixing it; below `min_effect`, since noise hides part of the cost"
    )
    min_effect_of_few: float = _of(
        0.02,
        STEP,
        0,
        1,
        "least delay where fewer than four healthy ranks are left to compare with; they commonly differ by 2 %",
    )
    min_steps: int = _of(10, "steps", 1, 100_000, "least steps to call a slowdown persistent; fewer may be chance")
    large_effect: float = _of(
        0.2, STEP, 0, 10, "a delay this large is not noise of a healthy job: `min_steps_when_large` steps are enough"
    )
    min_steps_when_large: int = _of(3, "steps", 1, 100_000, "one step may be an accident, and a second its echo")
    min_z: float = _of(
        5.0,
        "standard errors",
        0,
        1000,
        "mean delay against its own standard error; at 5, normal noise errs once in a million",
    )
    min_spread_ratio: float = _of(
        3.0,
        "standard deviations",
        0,
        1000,
        "delay against the spread of healthy ranks, beyond the extreme that chance makes among that many:"
        " times 1.6 with 4 ranks, 2.2 with 1,024",
    )
    min_consistency: float = _of(
        0.85,
        "of the run's blocks",
        0,
        1,
        "a persistent slowdown shows half of its typical delay in this share of the blocks; an accident does not",
    )
    min_latest: float = _of(
        0.5,
        "of the steps",
        0,
        1,
        "a rank must be later than all of seven healthy ones in this share; chance gives one in eight",
    )
    recovered_steps: int = _of(
        16,
        "steps",
        1,
        100_000,
        "steps at the cohort's pace before a slow segment ends; a persistent slowdown may pause briefly",
    )
    max_segments: int = _of(
        3,
        "segments",
        1,
        1000,
        "slow segments of one rank reported one by one; with more, it is one persistent slowdown, or stalls",
    )
    min_share_of_waste: float = _of(
        0.12, "of all waiting", 0, 1, "a smaller share of all waiting cannot be distinguished from noise of all ranks"
    )
    min_explained: float = _of(
        0.8, EXCESS, 0, 1, "share of the delay that a cause must explain; the rest is within the scatter of the phases"
    )
    stall_effect: float = _of(0.1, STEP, 0, 1000, "delay of a single step that makes it a stall; jitter is below that")
    min_stalls: int = _of(5, "stalls", 1, 100_000, "stalls apart in time; fewer may hit one rank by chance")
    min_stall_share: float = _of(
        0.6,
        "of all stalls",
        0,
        1,
        "share of all stalls that one rank must have; with less, other ranks have the same problem",
    )
    min_uneven: float = _of(
        0.03,
        STEP,
        0,
        1,
        "variation of the work, and time that ranks lose to each other, that is uneven; equal kernels vary by 1 %",
    )
    uneven_stage: float = _of(
        1.1,
        "times the typical stage",
        1,
        100,
        "a pipeline stage this slow is uneven; embedding and norms alone make stages differ by a few per cent",
    )
    input_bound: float = _of(
        0.2,
        STEP,
        0,
        1,
        "input wait of the typical rank that makes the job input-bound; a fifth of the time justifies a faster loader",
    )
    network_longer: float = _of(
        1.2,
        "times the usual transfer",
        1,
        100,
        "slower transfers that count; healthy groups differ by topology, and by traffic of other jobs",
    )
    hang_steps: float = _of(
        3.0, "slowest (p99) steps", 0, 1e6, "an operation open this long hangs: users should know of a hang this soon"
    )
    hang_seconds: float = _of(
        5.0, "s", 0, 86_400, "never earlier than this; short steps pause for a moment now and then"
    )
    hang_way_seconds: float = _of(
        1.0,
        "s",
        0,
        3600,
        "head start for stacks and evaluation; half of it is used, all of it on a busy host. An operation"
        " open for `max(hang_seconds, hang_steps * p99) - hang_way_seconds` hangs",
    )
    hang_checkpoint_seconds: float = _of(
        60.0,
        "s",
        0,
        86_400,
        "used instead where the missing rank writes a checkpoint: the others then wait as planned",
    )

    def effect(self, ranks: int) -> float:
        """Least delay, as a share of the step, to name one of so many ranks: fewer than four need more."""
        return self.min_effect if ranks > 3 else self.min_effect_of_few

    def patience_ns(self, step_ns: float) -> float:
        """How long an operation may be open in a job whose p99 step is ``step_ns`` (NaN: unknown)."""
        steps = self.hang_steps * (0.0 if isnan(step_ns) else step_ns)
        return max(self.hang_seconds * 1e9, steps) - self.hang_way_seconds * 1e9

    def other(self) -> dict[str, float]:
        """Settings that differ from their default."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def told(self) -> str | None:
        """A sentence on the settings that differ from their default; ``None`` where none does."""
        usual = {one.name: one.default for one in fields(self)}
        other = [f"{name} {value:g} (default {usual[name]:g})" for name, value in self.other().items()]
        return f"judged with other thresholds: {', '.join(other)}" if other else None


DEFAULT = Settings()
#: Former names that are still understood, each with today's.
RENAMED = {"max_stretches": "max_segments"}
