"""The faults that ``live_faults.py`` injects, and what a verdict must say of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Where a rank is when it hangs; its verdict must quote it.
HANGS_IN = "wait_for_the_lost_file"


@dataclass(frozen=True)
class Case:
    """A fault: what strikes which rank, and what a right verdict says. No kinds: nobody may be named."""

    name: str
    fault: str
    rank: int
    share: float = 0.0
    kinds: tuple[str, ...] = ("straggler", "intermittent")
    causes: tuple[str, ...] = ()
    patience_s: float = 12.0
    needs_gpu: bool = False

    @property
    def stops(self) -> bool:
        """Whether the job cannot go on, so that its ranks have to be ended."""
        return self.kinds in (("hang",), ("desync",))

    @property
    def expected(self) -> str:
        """What a right verdict says, in few words."""
        if not self.kinds:
            return "nobody"
        cause = f" {self.causes[0]}" if self.causes else " and its line" if self.fault == "hang" else ""
        return f"{self.kinds[0]} of rank {self.rank}{cause}"


CASES = (
    Case("clean-1", "", 0, kinds=(), patience_s=6),
    Case("compute-25", "compute", 3, 0.25, causes=("compute",), patience_s=10),
    Case("compute-6", "compute", 1, 0.06, causes=("compute",)),
    Case("compute-3", "compute", 2, 0.03, causes=("compute",), patience_s=14),
    Case("gpu-contended", "neighbour", 2, causes=("gpu_contention",), needs_gpu=True),
    Case("cpu-starved", "starve", 1, causes=("cpu_contention",)),
    Case("slow-input", "input", 3, 1.0, causes=("input",), patience_s=10),
    Case("hidden-input", "input", 1, 0.3, kinds=(), patience_s=8, needs_gpu=True),
    Case("hang", "hang", 2, kinds=("hang",)),
    Case("mismatch", "mismatch", 1, kinds=("desync",)),
    Case("clean-2", "", 0, kinds=(), patience_s=6),
)


def named(case: Case, verdict: dict[str, Any]) -> bool:
    """Whether a verdict names exactly the rank that went wrong."""
    return verdict["kind"] in case.kinds and verdict["ranks"] == [case.rank]


def right(case: Case, verdict: dict[str, Any]) -> bool:
    """Whether it also has the cause; of a hang, whether it quotes the line."""
    if not named(case, verdict):
        return False
    if case.fault == "hang":
        return any(HANGS_IN in told for told in verdict["evidence"])
    return not case.causes or verdict["cause"] in case.causes
