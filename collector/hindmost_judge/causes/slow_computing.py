"""What makes computing take longer: more work, a lower clock, another process on the GPU, or slower work of one size.

A lower clock slows all that it drives in one ratio, and more samples or tokens lengthen all in theirs; what code does
beyond that shows in the phase it is part of.
A GPU at its power limit lowers its clock for more work too, as its peers do: that is no throttling of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes.telemetry import SLOWING_REASONS
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, median, others_level
from hindmost_judge.types import Array, Floats

#: Memory of other processes on a rank's GPU, above its peers; a driver context alone takes less (MB).
_FOREIGN_MEMORY_MB = 600.0
#: Clock rates of healthy GPUs under load differ by this much through silicon alone (of the clock).
_CLOCKS_DIFFER = 0.005
#: With less power than this, a limit other than the shared power cap holds the GPU back (of the peers' power).
_LESS_POWER = 0.97
#: Forward must be longer by this share to suspect a GPU process that was not recorded (of forward).
_GPU_SHARED_UNSEEN = 0.1
#: A shared GPU slows the optimizer too, by at least this share of forward's slowdown (of forward's slow-down).
_GPU_SHARED_OPTIMIZER = 0.5

#: A read is small below this many bytes. Reads matter from this many a second on, and explain a rank's longer computing
#: if this share of that is the kernel's: what the program does with each comes with it.
SMALL_READ, READS, _IN_KERNEL = 16 << 10, 1000.0, 0.5
#: The kernel takes at most this long for a small read, s: 5 us with open() and close() of a cached file of 3 kB (Linux
#: on x86, ten thousand files), and less than four times that on slower CPUs and in virtual machines.
_OF_READ = 20e-6

#: What :func:`finer` may find that longer computing is made of.
COMPUTE_CAUSES = ("workload", "gpu_throttle", "gpu_contention")


def refined_compute_cause(
    blocks: Blocks, row: int, columns: Array, since: int, settings: Settings, between: float = 0.0
) -> tuple[str, str | None]:
    """The cause of a rank's longer computing over these steps, and a sentence on what shows it.

    The rank was as its peers before the step ``since`` (an index). ``between``: ns a step by which it is longer
    beyond its delay, from collectives overlapped with backward.
    """
    late = average(blocks.delay[row, columns]) + between
    more = more_work(blocks, row, columns, settings)
    if more is not None and _of_most(_work_beyond(blocks, row, columns), blocks, columns, late):
        return "workload", more[0]
    samples = blocks.samples
    now = {} if samples is None else _gpu_levels(lambda name: samples.level(name, columns))
    before = {} if samples is None else _gpu_levels(lambda name: samples.until(since, name))
    throttled = _throttled(blocks, row, columns, settings, now, before, late)
    if throttled is not None:
        return "gpu_throttle", throttled
    alike = _all_slower(blocks, row, columns)
    contended = _contended(now, before, row) if alike else None
    if contended is not None:
        return "gpu_contention", contended
    unseen = "gpu_optimizer" in blocks.parts and "sm_clock" in now and "foreign_memory" not in now
    much = _GPU_SHARED_UNSEEN * _driven(blocks, row, columns)
    if alike and unseen and _longer(blocks, row, columns) >= much:
        return (
            "unknown",
            "all work on its GPU is slower: its board, or a process that was not recorded",
        )
    reads = _small_reads(blocks, row, columns)
    return ("compute", None) if reads is None else ("io", reads)


def _small_reads(blocks: Blocks, row: int, columns: Array) -> str | None:
    """What shows that a rank computes longer because it makes many small reads, most of whose time is the kernel's.

    Reads are those of its descendants, too, of which the kernel's time is not known: it must have none."""
    names = ("system", "read_calls", "read_characters", "children")
    levels = [blocks.gauge(name, columns) for name in names]
    system, calls, characters, children = (np.full(len(blocks.ranks), np.nan) if one is None else one for one in levels)
    kernel, theirs = float(system[row] - others_level(system, row)), others_level(calls, row)
    more = float(calls[row] - theirs)
    explains = kernel * average(blocks.period[columns]) >= _IN_KERNEL * _longer(blocks, row, columns) > 0
    if not (explains and more >= READS and kernel <= more * _OF_READ and children[row] == 0):
        return None
    size = float(characters[row] / calls[row])
    if not 0 < size <= SMALL_READ:
        return None
    return f"small reads: {calls[row]:,.0f} a second of {size:,.0f} bytes each, others {theirs:,.0f} a second"


def more_work(blocks: Blocks, row: int, columns: Array, settings: Settings) -> tuple[str, float] | None:
    """Samples or tokens beyond the peers', where they are in about the ratio by which computing is longer; and ns a
    step by which they make it so."""
    longer, beyond = _longer(blocks, row, columns), _work_beyond(blocks, row, columns)
    if not beyond > settings.min_effect or longer <= 0 or blocks.work is None:
        return None
    due = beyond * _driven(blocks, row, columns)
    if not settings.min_explained * longer <= due <= longer / settings.min_explained:
        return None
    typical = median(blocks.work[:, columns], axis=1)
    return f"items per step: {typical[row]:,.0f}, others {others_level(typical, row):,.0f}", due


def _work_beyond(blocks: Blocks, row: int, columns: Array) -> float:
    """By what share a rank's typical step has more samples or tokens than its peers'; NaN where uncounted."""
    if blocks.work is None or np.isnan(blocks.work[row, columns]).all():
        return float("nan")
    typical = median(blocks.work[:, columns], axis=1)
    theirs = others_level(typical, row)
    return float(typical[row]) / theirs - 1 if theirs > 0 else float("nan")


def _gpu_levels(level: Callable[[str], Floats | None]) -> dict[str, Floats]:
    """What samples say of GPUs, of what any has: quantity to [R]."""
    found = {name: level(name) for name in ("sm_clock", "clock_reasons", "power", "foreign_memory")}
    return {name: of for name, of in found.items() if of is not None}


#: A low clock rate with a reason from the driver is the cause if it explains this share of the longer computing. The
#: few samples of a clock that changes from sample to sample prove no more, and ranks that wait cool down and clock
#: higher.
_TOLD_WHY = 0.5
#: The whole step must be longer by this share of the delay, noise of the rank's latest steps included.
_OF_ALL = 1 / 3


def _throttled(
    blocks: Blocks,
    row: int,
    columns: Array,
    settings: Settings,
    now: dict[str, Floats],
    before: dict[str, Floats],
    late: float,
) -> str | None:
    """What a lower clock explains; ``None`` where it does not, or where it was as low while the rank was not late.

    Nor where all of the step would be longer by it by far less than the rank is ``late`` (ns a step).
    """
    lower = _lower(now, row) - max(_lower(before, row), 0.0)
    if not lower > _CLOCKS_DIFFER or not _held_back(now, row):
        return None
    least = min(settings.min_explained, _TOLD_WHY) if _has_reason(now, row) else settings.min_explained
    if lower * _driven(blocks, row, columns) < least * _longer(blocks, row, columns):
        return None
    if not _of_most(lower, blocks, columns, late):
        return None
    mine, theirs = now["sm_clock"][row], others_level(now["sm_clock"], row)
    return f"SM clock: {mine / 1e6:.0f} MHz, others {theirs / 1e6:.0f} MHz{_reasons(now, row)}"


def _of_most(longer: float, blocks: Blocks, columns: Array, late: float) -> bool:
    """Whether all of a step being longer by this share explains much of what a rank is ``late`` by (ns a step)."""
    return longer * average(blocks.period[columns]) >= _OF_ALL * late


def _lower(levels: dict[str, Floats], row: int) -> float:
    """By what share of its own clock the peers' clock is above a rank's; 0 where unmeasured."""
    clock = levels.get("sm_clock")
    if clock is None or np.isnan(clock[row]) or not clock[row] > 0:
        return 0.0
    return float(np.nan_to_num(others_level(clock, row) / clock[row] - 1))


def _held_back(levels: dict[str, Floats], row: int) -> bool:
    """Whether the driver names a reason that the peers do not have, or less power is drawn; true where unmeasured."""
    power = levels.get("power")
    less = bool(power[row] < _LESS_POWER * others_level(power, row)) if power is not None else None
    known = [one for one in (less, _has_reason(levels, row)) if one is not None]
    return any(known) if known else True


def _has_reason(levels: dict[str, Floats], row: int) -> bool | None:
    """Whether the driver names a reason for a low clock that the peers do not have; ``None`` where it was not asked."""
    reasons = levels.get("clock_reasons")
    return None if reasons is None else bool(_slowing(reasons[row]) & ~_slowing(others_level(reasons, row)))


def _slowing(mask: float) -> int:
    return 0 if np.isnan(mask) else int(mask) & sum(SLOWING_REASONS)


def _clean(blocks: Blocks, row: int, columns: Array) -> list[Floats]:
    """Time without waiting for others, as far as it was measured of this rank in these steps.

    A stage's computing, or the time between collectives inside of forward, else the GPU's forward, else CPU time
    outside of collectives, else phases."""
    computing = _computing_in_forward(blocks)
    if computing is not None:
        return [computing]
    for names in (("gpu_forward",), ("self_cpu",), ("forward", "optimizer")):
        found = [blocks.parts[name] for name in names if name in blocks.parts]
        if found and not np.isnan(found[0][row, columns]).all():
            return found
    return []


def _computing_in_forward(blocks: Blocks) -> Floats | None:
    """[R, S] what ranks compute where forward holds their waiting for others, too; ``None`` where it does not."""
    if blocks.computing is not None:
        return blocks.computing
    inside = blocks.joined is not None and bool(blocks.joined.gathers.any()) and not blocks.overlapped
    return blocks.self_time if inside else None


def _longer(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step by which these phases are longer than the typical peer's."""
    found = _clean(blocks, row, columns)
    if not found:
        return average(blocks.delay[row, columns])
    mine = sum(average(block[row, columns]) for block in found)
    return mine - _usual(blocks, row, columns)


def _usual(blocks: Blocks, row: int, columns: Array) -> float:
    others = np.delete(np.arange(len(blocks.ranks)), row)
    return sum(average(median(block[np.ix_(others, columns)], axis=0)) for block in _clean(blocks, row, columns))


def _driven(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step that the typical peer spends in what :func:`_longer` compares."""
    return _usual(blocks, row, columns) if _clean(blocks, row, columns) else average(blocks.period[columns])


def _all_slower(blocks: Blocks, row: int, columns: Array) -> bool:
    """Whether the optimizer is slower too, and not forward alone; true where either was not measured."""
    ratios = []
    for name in ("gpu_forward", "gpu_optimizer"):
        computing = _computing_in_forward(blocks) if name == "gpu_forward" else None
        block = blocks.parts.get(name) if computing is None else computing
        if block is None or np.isnan(block[row, columns]).all():
            return True
        levels = median(block[:, columns], axis=1)
        ratios.append(float(levels[row] / others_level(levels, row)) - 1)
    return ratios[1] >= _GPU_SHARED_OPTIMIZER * ratios[0]


def _contended(now: dict[str, Floats], before: dict[str, Floats], row: int) -> str | None:
    """Other processes with memory on the rank's GPU, beyond what peers' GPUs have."""
    foreign = now.get("foreign_memory")
    if foreign is None or np.isnan(foreign[row]):
        return None
    beyond = float(foreign[row] - np.nan_to_num(others_level(foreign, row)))
    least = _FOREIGN_MEMORY_MB * 1e6
    if not beyond > least:
        return None
    earlier = before.get("foreign_memory")
    came = earlier is not None and bool(earlier[row] < foreign[row] - least)
    return f"another process holds {beyond / 2**30:.1f} GiB of its GPU's memory{', not so before' if came else ''}"


def _reasons(levels: dict[str, Floats], row: int) -> str:
    mask = levels.get("clock_reasons")
    found = [text for bit, text in SLOWING_REASONS.items() if mask is not None and _slowing(mask[row]) & bit]
    return f" ({', '.join(found)})" if found else ""
