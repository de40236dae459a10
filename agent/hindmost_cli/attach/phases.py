"""Phases of a running process from samples of its main thread's stack, with the error that sampling has; their table.

Sampling cannot separate everything: all time inside ``loss.backward()`` is ``backward``, with DDP's wait for its peers.
A C function (mpi4py's calls) is recognised by the source line that calls it.
"""

from __future__ import annotations

import linecache
import math
import re
import statistics
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost.errors import HindmostError
from hindmost_agent import stacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hindmost_cli.attach.target import Target

PHASES = ("input", "forward", "backward", "comm", "optimizer", "checkpoint", "other")

#: With --threads the first frame names the thread; a program that never imported threading has one, without a name.
MAIN_THREAD = re.compile(r"^thread \(\w+\)(: MainThread)?$")
FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")
#: Where any frame of the stack decides.
OUTER = (("input", re.compile(r"torch/utils/data/(dataloader|_utils/fetch)\.py|torchdata/|hindmost/stepping\.py")),)
#: Else the innermost frame that one of these knows decides.
INNER = (
    ("comm", re.compile(r"torch/distributed/(distributed_c10d|_functional_collectives)\.py|horovod/\w+/mpi_ops\.py")),
    ("checkpoint", re.compile(r"torch/serialization\.py|torch/distributed/checkpoint/|keras/.*/saving/|safetensors")),
    ("optimizer", re.compile(r"torch/optim/|torch/amp/grad_scaler\.py|keras/.*/optimizers/")),
    ("backward", re.compile(r"torch/autograd/(__init__|graph|function)\.py|torch/_tensor\.py")),
    ("forward", re.compile(r"torch/nn/|torch/_dynamo/|keras/.*/layers/")),
)
#: A frame of Python's own import system: whatever a module runs while it is imported is start-up, no phase of a step.
IMPORTING = "<frozen importlib"
#: A line of source that calls into MPI.
MPI_CALL = re.compile(
    r"\.\s*(I?(all)?(reduce|gather|scatter)v?|[ib]?bcast|barrier|alltoall[vw]?|reduce_scatter(_block)?|exscan|scan"
    r"|[is]?send(recv)?|recv|wait(all|any)?)\s*\(",
    re.IGNORECASE,
)


class Frame(NamedTuple):
    function: str
    file: str
    line: int


class Shares(NamedTuple):
    """How a process spent its time: phase -> share (0 to 1). ``samples`` is 0 where it was measured, not sampled.

    ``line``: where most samples in no phase are, as ``train.py:12``; empty where they are here and there.
    ``unseen``: why nothing was seen of a process.
    """

    share: dict[str, float]
    samples: int
    line: str = ""
    unseen: str = ""

    def error(self, phase: str) -> float:
        """Half the width of a share's 95 % interval (binomial); 0 where it was measured."""
        if not self.samples:
            return 0.0
        # One sample's worth is added to either side: a share of 0 out of 100 samples is not surely 0.
        likely = (self.share.get(phase, 0.0) * self.samples + 1) / (self.samples + 2)
        return 1.96 * math.sqrt(likely * (1 - likely) / (self.samples + 2))


def sample(targets: Sequence[Target], seconds: float, rate: int) -> list[Shares]:
    """Sample all targets at once, ``rate`` times a second. HindmostError where none can be read."""
    with tempfile.TemporaryDirectory(prefix="hindmost-attach-") as folder:
        files = [Path(folder, str(target.pid)) for target in targets]
        running = [_record(target, file, seconds, rate) for target, file in zip(targets, files, strict=True)]
        seen = []
        for target, process, file in zip(targets, running, files, strict=True):
            _, stderr = process.communicate(timeout=seconds + 60)
            if process.returncode == 0:
                seen.append(shares(file.read_text(errors="replace").splitlines()))
            else:
                seen.append(Shares({}, 0, unseen=f"process {target.pid} cannot be sampled: {stacks.reason(stderr)}"))
    if all(one.unseen for one in seen):
        raise HindmostError("; ".join(one.unseen for one in seen))
    return seen


def _record(target: Target, file: Path, seconds: float, rate: int) -> subprocess.Popen[str]:
    """py-spy over one process. Idle threads count: a rank that waits for a peer uses no CPU."""
    command = [stacks.py_spy(), "record", "--nonblocking", "--idle", "--threads", "--full-filenames", "--format", "raw"]
    command += ["--rate", str(rate), "--duration", str(max(1, math.ceil(seconds))), "--output", str(file)]
    return subprocess.Popen(
        [*command, "--pid", str(target.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def shares(lines: Iterable[str]) -> Shares:
    """Phases of the main thread from py-spy's raw format: ``frame;frame;… count`` a line, the outermost frame first."""
    counts, at = Counter[str](), Counter[str]()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if len(frames) > 1 and MAIN_THREAD.match(frames[0]) and count.isdigit():
            parsed = [parse(frame) for frame in frames[1:]]
            counts[phase := classify(parsed)] += int(count)
            if phase == "other":
                at[f"{Path(parsed[-1].file).name}:{parsed[-1].line}"] += int(count)
    total = sum(counts.values())
    line, most = max(at.items(), key=lambda one: one[1], default=("", 0))
    return Shares(
        {phase: counts[phase] / total for phase in PHASES} if total else {},
        total,
        line if most > _MOSTLY * counts["other"] else "",
    )


def parse(text: str) -> Frame:
    """``function (file:line)`` as py-spy writes it."""
    found = FRAME.match(text)
    return Frame(found["function"], found["file"], int(found["line"] or 0)) if found else Frame(text, "", 0)


def classify(frames: Sequence[Frame]) -> str:
    """The phase that a stack, outermost frame first, is in."""
    if any(frame.file.startswith(IMPORTING) for frame in frames):
        return "other"
    for phase, pattern in OUTER:
        if any(pattern.search(frame.file) for frame in frames):
            return phase
    if frames and MPI_CALL.search(linecache.getline(frames[-1].file, frames[-1].line)):
        return "comm"
    for frame in reversed(frames):
        for phase, pattern in INNER:
            if pattern.search(frame.file):
                return phase
    return "other"


SCHEMA = "hindmost.attach/1"
#: How ranks were looked at that were entered.
MEASURED = "measured inside"
#: Own work: a rank that spends more of its time in one of these than its peers holds them up.
OWN = ("input", "forward", "optimizer", "checkpoint", "other")
#: A smaller delay than this share, or than so many standard errors, is not reported.
LEAST_EXCESS = 0.05
LEAST_ERRORS = 3.0
#: From this share on of what no phase of training is, in samples of every rank, they tell nothing of its training.
NO_TRAINING = 0.95
#: A line has most of a rank's samples from this share on.
_MOSTLY = 0.5


class Excess(NamedTuple):
    """What one rank spends more of its time on than the median of the others."""

    rank: int
    phase: str
    share: float
    others: float
    error: float


def largest_excess(targets: Sequence[Target], seen: Sequence[Shares]) -> Excess | None:
    """The rank and phase that stand out most, beyond what sampling can produce; ``None``: none does."""
    found: list[Excess] = []
    usable = [(target, shares) for target, shares in zip(targets, seen, strict=True) if shares.share]
    for index, (target, shares) in enumerate(usable):
        peers = [other for place, (_, other) in enumerate(usable) if place != index]
        for phase in OWN if peers else ():
            others = statistics.median(peer.share[phase] for peer in peers)
            error = math.hypot(shares.error(phase), max(peer.error(phase) for peer in peers)) / 1.96
            excess = shares.share[phase] - others
            if excess >= LEAST_EXCESS and excess >= LEAST_ERRORS * error:
                found.append(Excess(target.rank, phase, shares.share[phase], others, shares.error(phase)))
    return max(found, key=lambda one: one.share - one.others, default=None)


def to_dict(targets: Sequence[Target], seen: Sequence[Shares], method: str, seconds: float) -> dict[str, Any]:
    """``hindmost.attach/1``: shares 0 to 1, ``error`` half a 95 % interval; null where nothing was seen."""
    excess = largest_excess(targets, seen)
    return {
        "schema": SCHEMA,
        "method": method,
        "seconds": seconds,
        "ranks": [
            {
                "rank": target.rank if target.rank >= 0 else None,
                "pid": target.pid,
                "command": target.command,
                "stopped": target.stopped,
                "samples": shares.samples or None,
                "phases": {
                    phase: {"share": shares.share.get(phase), "error": shares.error(phase) if shares.share else None}
                    for phase in PHASES
                },
            }
            for target, shares in zip(targets, seen, strict=True)
        ],
        "stands_out": excess._asdict() if excess else None,
    }


#: What is to be done for more than this.
NO_VERDICT = "who is waited for, since when and at what cost: start the job with `hindmost run -- COMMAND`"


def render(
    targets: Sequence[Target], seen: Sequence[Shares], method: str, seconds: float, launcher: int | None = None
) -> str:
    """The table for people: percent of the main thread's time, with half of the 95 % interval.

    ``launcher``: the pid of what started a lone target and other ranks."""
    processes = "1 process" if len(targets) == 1 else f"{len(targets)} processes"
    lines = [f"{processes}, {seconds:g} s, {method}; % of the main thread's time"]
    lines.append("  ".join([f"{'rank':>4}", f"{'pid':>8}", *(f"{phase:>10}" for phase in PHASES)]))
    for target, shares in zip(targets, seen, strict=True):
        cells = [_cell(shares, phase) for phase in PHASES]
        rank = str(target.rank) if target.rank >= 0 else "-"
        lines.append("  ".join([f"{rank:>4}", f"{target.pid:>8}", *(f"{cell:>10}" for cell in cells)]))
    lines += [one.unseen for one in seen if one.unseen]
    lines += [target.stop() for target in targets if target.stopped]
    more = f"`hindmost attach {launcher}`, its launcher, compares all ranks"
    if not any(target.stopped for target in targets):  # the others wait for it
        lines.append(_sentence(targets, seen))
    lines += [*[more] * bool(launcher), *_without_steps(targets, seen, method)]
    return "\n".join([*lines, NO_VERDICT]) + "\n"


def _without_steps(targets: Sequence[Target], seen: Sequence[Shares], method: str) -> list[str]:
    """Of which processes nothing is known because they made no step, and what would show it all the same."""
    pids = [str(target.pid) for target, shares in zip(targets, seen, strict=True) if not shares.share]
    if method != MEASURED or not pids:
        return []
    who = f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(pids)}"
    asked = " ".join(f"--pid {pid}" for pid in pids)
    return [f"{who} finished no step, so no phase was measured; try `hindmost attach --sample {asked}`"]


def _no_training(seen: Sequence[Shares]) -> bool:
    """Whether the samples show almost no phase. Measurements from inside always belong to steps."""
    sampled = [shares for shares in seen if shares.samples]
    return bool(sampled) and all(shares.share["other"] >= NO_TRAINING for shares in sampled)


def _cell(shares: Shares, phase: str) -> str:
    if not shares.share:
        return "-"
    text = f"{100 * shares.share[phase]:.0f}"
    return f"{text} ±{100 * shares.error(phase):.0f}" if shares.samples else text


def _sentence(targets: Sequence[Target], seen: Sequence[Shares]) -> str:
    excess = largest_excess(targets, seen)
    if excess is None and _no_training(seen):
        return (
            "these samples show no training: the ranks may still be starting (try --seconds 60), "
            f"or run code that sampling does not recognise; {_lines(targets[0].pid)}"
        )
    if len(targets) - sum(bool(one.unseen) for one in seen) < 2:
        return "one process: no other rank to compare with"
    if excess is None:
        return "no rank stands out"
    error = f" ± {100 * excess.error:.0f}" if excess.error else ""
    pid, line = next((one.pid, its.line) for one, its in zip(targets, seen, strict=True) if one.rank == excess.rank)
    where = f"in no phase, mostly at {line}" if line else "in no phase"
    return (
        f"rank {excess.rank} stands out: {100 * excess.share:.0f}{error} % of its time is "
        f"{where if excess.phase == 'other' else excess.phase}, the others' median {100 * excess.others:.0f} %"
        + (f"; {_lines(pid)}" if excess.phase == "other" else "")
    )


def _lines(pid: int) -> str:
    """What shows where a process is where its phases do not."""
    return f"its lines: `hindmost attach --stacks --pid {pid}`"
