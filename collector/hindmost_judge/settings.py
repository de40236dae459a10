"""The thresholds that can be set: one table of default, unit, range and reason.

Constants that define a method stand in that method's module; ``docs/reference/thresholds.md`` lists the table.
"""

from dataclasses import dataclass, field, fields
from math import isnan
from typing import Any

STEP = "of the step"


def _of(default: float, unit: str, bounds: tuple[float, float], reason: str) -> Any:
    return field(default=default, metadata={"unit": unit, "low": bounds[0], "high": bounds[1], "reason": reason})


def _share(default: float, unit: str, reason: str) -> Any:
    return _of(default, unit, (0, 1), reason)


def _count(default: int, unit: str, reason: str) -> Any:
    return _of(default, unit, (1, 100_000), reason)


@dataclass(frozen=True)
class Settings:
    """When to name a rank and when to abstain.

    A field's name is the name for ``--set``, for ``[judge]`` in a TOML file and, in capitals after ``HINDMOST_JUDGE_``,
    for the environment.
    """

    min_effect: float = _share(0.01, STEP, "least delay to name a rank; GPUs of one model differ by about 1 %")
    min_cost: float = _share(
        0.004, STEP, "least saving from fixing it; below `min_effect`, since noise hides part of the cost"
    )
    min_effect_of_few: float = _share(
        0.02, STEP, "the same where fewer than four healthy ranks are left to compare with: they differ by 2 %"
    )
    min_steps: int = _count(10, "steps", "least steps to call a slowdown persistent; fewer may be chance")
    large_effect: float = _of(
        0.2, STEP, (0, 10), "a delay this large is not noise of a healthy job: `min_steps_when_large` steps are enough"
    )
    min_steps_when_large: int = _count(3, "steps", "one step may be an accident, and a second its echo")
    min_z: float = _of(
        5.0,
        "standard errors",
        (0, 1000),
        "mean delay against its own standard error; at 5, normal noise errs once in a million",
    )
    min_spread_ratio: float = _of(
        3.0,
        "standard deviations",
        (0, 1000),
        "delay against the spread of healthy ranks; times 1.6 with 4 ranks, 2.2 with 1,024, for the extreme of chance",
    )
    min_consistency: float = _share(
        0.85,
        "of the run's blocks",
        "a persistent slowdown shows half of its typical delay in these blocks; an accident does not",
    )
    min_latest: float = _share(
        0.5, "of the steps", "a rank is later than all of seven healthy ones; chance gives one in eight"
    )
    recovered_steps: int = _count(
        16, "steps", "steps at the cohort's pace before a slow segment ends; a slowdown may pause briefly"
    )
    max_segments: int = _of(
        3,
        "segments",
        (1, 1000),
        "slow segments of one rank reported one by one; more are one persistent slowdown, or stalls. Large ones, and "
        "those far above the noise of four healthy ranks, do not count; up to four times as many are reported",
    )
    min_share_of_waste: float = _share(
        0.12, "of all waiting", "a smaller share cannot be distinguished from noise of all ranks"
    )
    min_explained: float = _share(
        0.8, "of the delay", "what a cause must explain; the rest is within the scatter of the phases"
    )
    stall_effect: float = _of(
        0.1, STEP, (0, 1000), "delay of a single step that makes it a stall; jitter is below that"
    )
    min_stalls: int = _count(5, "stalls", "stalls apart in time; fewer may hit one rank by chance")
    min_stall_share: float = _share(
        0.6, "of all stalls", "what one rank must have of them; with less, other ranks have the same problem"
    )
    min_uneven: float = _share(
        0.03,
        STEP,
        "variation of the work, and time that ranks lose to each other, that is uneven; equal kernels vary by 1 %",
    )
    uneven_stage: float = _of(
        1.1,
        "times the typical stage",
        (1, 100),
        "a pipeline stage this slow is uneven; embedding and norms make stages differ by a few per cent",
    )
    input_bound: float = _share(
        0.2,
        STEP,
        "input wait of the typical rank, and its cost, that make a job input-bound; a fifth is worth a faster loader",
    )
    network_longer: float = _of(
        1.2,
        "times the usual transfer",
        (1, 100),
        "slower transfers that count; healthy groups differ by topology, and by other jobs' traffic",
    )
    hang_steps: float = _of(
        3.0, "slowest (p99) steps", (0, 1e6), "an operation open this long hangs: users should know of a hang this soon"
    )
    hang_seconds: float = _of(
        5.0, "s", (0, 86_400), "never earlier than this; short steps pause for a moment now and then"
    )
    hang_way_seconds: float = _of(
        1.0,
        "s",
        (0, 3600),
        "head start for stacks and evaluation: what is open for `max(hang_seconds, hang_steps * p99)` less this hangs",
    )
    hang_planned_seconds: float = _of(
        60.0,
        "s",
        (0, 86_400),
        "used instead where the missing rank writes a checkpoint, and in a running job before its first steps",
    )

    def effect(self, ranks: int) -> float:
        """Least delay, as a share of the step, to name one of so many ranks: fewer than four need more."""
        return self.min_effect if ranks > 3 else self.min_effect_of_few

    def hang_timeout_ns(self, step_ns: float) -> float:
        """How long an operation may be open in a job whose p99 step is ``step_ns`` (NaN: unknown)."""
        steps = self.hang_steps * (0.0 if isnan(step_ns) else step_ns)
        return max(self.hang_seconds * 1e9, steps) - self.hang_way_seconds * 1e9

    def other(self) -> dict[str, float]:
        """Settings that differ from their default."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def changed(self) -> str | None:
        """A sentence on the settings that differ from their default; ``None`` where none does."""
        usual = {one.name: one.default for one in fields(self)}
        other = [f"{name} {value:g} (default {usual[name]:g})" for name, value in self.other().items()]
        return f"judged with other thresholds: {', '.join(other)}" if other else None


DEFAULT = Settings()
#: Former names that are still understood, each with today's.
RENAMED = {"max_stretches": "max_segments", "hang_checkpoint_seconds": "hang_planned_seconds"}
