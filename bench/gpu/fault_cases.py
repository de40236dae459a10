"""The faults that ``live_faults.py`` injects, and what a verdict must say of each."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

#: Where a rank is when it hangs; its verdict must quote it.
HANGS_IN = "wait_for_the_lost_file"
#: Steps from stall to stall, as in ``job_faults.py`` (which imports torch).
PERIODS = {"stalls": 7, "saves": 20, "evaluates": 30, "evaluates-alone": 30, "turns": 160}


@dataclass(frozen=True)
class Case:
    """A fault: what strikes which rank, and what a right verdict says. No kinds: no rank may be named."""

    name: str
    fault: str
    rank: int
    share: float = 0.0
    kinds: tuple[str, ...] = ("straggler", "intermittent")
    causes: tuple[str, ...] = ()
    patience_s: float = 12.0
    needs_gpu: bool = False
    #: For a job in which no rank is to be named: the kind that a verdict without names may have, and a note's words.
    answer: str = "balanced"
    note: str = ""
    #: Whether the GPU's queue may hide the fault, which is rightly named as far as it does not.
    hides: bool = False
    ranks: int = 4
    #: NCCL's other profiler, which the user has set.
    profiler: str = ""

    @property
    def stops(self) -> bool:
        """Whether the job cannot go on, so that its ranks have to be ended."""
        return self.kinds in (("hang",), ("desync",))

    @property
    def beside(self) -> bool:
        """Whether the fault is outside the job's own processes, and begins at once."""
        return self.fault in ("neighbour", "starve", "memory")

    @property
    def either(self) -> bool:
        """Whether either rank may be wrong: each of two is in an operation of its own."""
        return self.kinds == ("desync",) and self.ranks == 2

    @property
    def period(self) -> int:
        """Steps after which what the fault does begins anew."""
        return PERIODS.get(self.fault, 1)

    @property
    def culprits(self) -> list[int]:
        return sorted({self.rank, (self.rank + 1) % self.ranks}) if self.fault == "turns" else [self.rank]

    @property
    def expected(self) -> str:
        """What a right verdict says, in few words."""
        if self.hides:
            return f"no rank, unless steps are longer by {self.causes[0]}"
        if not self.kinds:
            return f"no rank, and a note: {self.note}" if self.note else "no rank"
        if self.either:
            return f"{self.kinds[0]} of rank {self.rank} or of either"
        cause = f" {self.causes[0]}" if self.causes else " and its line" if self.fault == "hang" else ""
        return f"{self.kinds[0]} of rank {' and '.join(map(str, self.culprits))}{cause}"


#: In the order in which they are begun, as long as there is time: what another case shows too comes late.
CASES = (
    Case("mismatch", "mismatch", 1, kinds=("desync",)),
    Case("hang", "hang", 2, kinds=("hang",)),
    Case("clean-1", "", 0, kinds=(), patience_s=6),
    Case("gc", "gc", 1, 1.0, causes=("gc",)),
    Case("checkpoint", "saves", 0, kinds=(), patience_s=10, note="writes checkpoints"),
    Case("evaluation", "evaluates", 0, kinds=(), patience_s=8),
    Case("pageable-h2d", "pageable", 3, 0.5, causes=("h2d",), needs_gpu=True),
    Case("uncached-reads", "reads", 1, 1.0, causes=("io",)),
    Case("backward-25", "backward", 3, 0.25, causes=("compute",)),
    Case("every-7th", "stalls", 1, 1.0, kinds=("intermittent", "straggler"), causes=("compute",)),
    Case("taking-turns", "turns", 2, 0.25, causes=("compute",), patience_s=16),
    Case("uneven-lengths", "lengths", 0, kinds=(), patience_s=10, answer="uneven_workload"),
    Case("evaluation-by-one", "evaluates-alone", 0, kinds=(), patience_s=10, note="evaluates longer"),
    Case("synced-writes", "writes", 3, 1.0, causes=("io",)),
    Case("memory", "memory", 1, 1.0, causes=("memory",)),
    Case("cpu-starved", "starve", 1, causes=("cpu_contention",)),
    Case("gpu-contended", "neighbour", 2, causes=("gpu_contention",), needs_gpu=True),
    Case("slow-input", "input", 3, 1.0, causes=("input",), patience_s=10),
    Case("compute-25", "compute", 3, 0.25, causes=("compute",), patience_s=10),
    Case("hidden-input", "input", 1, 0.3, kinds=(), causes=("input",), patience_s=8, hides=True, needs_gpu=True),
    Case("compute-6", "compute", 1, 0.06, causes=("compute",)),
    Case("compute-3", "compute", 2, 0.03, causes=("compute",), patience_s=14),
    Case("clean-2", "", 0, kinds=(), patience_s=6),
)


def placed(case: Case, ranks: int) -> Case:
    """The same in a job of so many ranks."""
    return replace(case, rank=case.rank % ranks, ranks=ranks)


def behind(case: Case, profiler: Path) -> Case:
    """The same with another NCCL profiler behind hindmost's."""
    return replace(case, name=f"{case.name}-behind", profiler=str(profiler))


def named(case: Case, verdict: dict[str, Any]) -> bool:
    """Whether a verdict names the ranks at fault, and no other."""
    who = bool(verdict["ranks"]) or case.either
    return verdict["kind"] in case.kinds and who and set(verdict["ranks"]) <= set(case.culprits)


def told(case: Case, verdict: dict[str, Any]) -> set[int]:
    """Of which of them it tells."""
    return set(verdict["ranks"] or case.culprits)


def right(case: Case, verdict: dict[str, Any]) -> bool:
    """Whether it also has the cause; of a hang, whether it quotes the line."""
    if not named(case, verdict):
        return False
    if case.fault == "hang":
        return any(HANGS_IN in one for one in verdict["evidence"])
    return not case.causes or verdict["cause"] in case.causes


def all_right(case: Case, verdicts: Iterable[dict[str, Any]]) -> bool:
    """Whether there is a right one about each rank that went wrong."""
    rightly = (told(case, verdict) for verdict in verdicts if right(case, verdict))
    return bool(case.kinds) and set().union(*rightly) == set(case.culprits)
