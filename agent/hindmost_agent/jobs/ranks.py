"""The training processes of this node that are known by now, from all sources."""

import pwd
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple


def reference(identity: bytes) -> int:
    """64 bits that stand for something on the wire, alike wherever it is made."""
    return int.from_bytes(blake2b(identity, digest_size=8).digest(), "little")


class RankProcess(NamedTuple):
    """One rank of one job as a process of this node. ``start_ticks`` tells a reused pid apart; ``framework`` is empty
    of a process that has no ring."""

    job_id: str
    rank: int
    world_size: int
    local_rank: int
    pid: int
    start_ticks: int
    framework: str = ""
    command: str = ""
    gpu_uuid: str = ""

    def ref(self, node: str) -> int:
        """The 64-bit reference on the wire: the same process has the same one in every stream."""
        identity = f"{node}\0{self.job_id}\0{self.rank}\0{self.pid}\0{self.start_ticks}"
        return reference(identity.encode())


def user_of(proc: Path, pid: int) -> str:
    """Who runs a process, by name where the node knows one, else by number; empty when it has ended."""
    try:
        return _name((proc / str(pid)).stat().st_uid)
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Ranks:
    """The live ranks. ``generation`` grows with every change, so that a reader sees at once that nothing did."""

    def __init__(self) -> None:
        self.generation = 0
        self._by_pid: dict[int, RankProcess] = {}

    def __iter__(self) -> Iterator[RankProcess]:
        return iter(tuple(self._by_pid.values()))  # a driver's thread may go through them while they change

    def __len__(self) -> int:
        return len(self._by_pid)

    def get(self, pid: int) -> RankProcess | None:
        return self._by_pid.get(pid)

    def shown(self) -> list[RankProcess]:
        """One process of each rank: of several the latest, and one that has a ring before any that has none."""
        order = sorted(self, key=lambda rank: (bool(rank.framework), rank.start_ticks))
        return list({(rank.job_id, rank.rank): rank for rank in order}.values())

    def numbered(self) -> list[RankProcess]:
        """Those without the process of a command that has no ranks."""
        return [rank for rank in self if rank.rank >= 0]

    def put(self, rank: RankProcess) -> None:
        if self._by_pid.get(rank.pid) != rank:
            self._by_pid[rank.pid] = rank
            self.generation += 1

    def remove(self, pid: int) -> None:
        """Forget a process; unknown ones are ignored."""
        if self._by_pid.pop(pid, None) is not None:
            self.generation += 1
