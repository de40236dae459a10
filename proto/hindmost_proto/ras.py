"""What NCCL's RAS answers: the collectives that each rank of each communicator has launched (NCCL 2.24 and later).

Answers are taken as they come: cut off, without those ranks that did not answer, as text of every release, and as JSON,
in which NCCL 2.28 forgets a comma.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: As the plugin has it.
NAMES = {
    "AllReduce": "all_reduce",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}
#: What a text without functions counts: all collectives of the communicator (NCCL 2.24, 2.25).
ANY = ""


class Member(NamedTuple):
    """One rank of a communicator: collectives that it has launched, by NCCL's name for the function.

    ``pid`` is 0 where the answer does not say which process it is. A text has only those functions whose counts differ.
    """

    rank: int
    pid: int
    launched: Mapping[str, int]


@dataclass(frozen=True)
class RasCommunicator:
    """A communicator as far as RAS tells: ``missing`` are the ranks that it got no answer from."""

    hash: int
    size: int
    members: tuple[Member, ...]
    missing: tuple[int, ...] = ()

    @property
    def state(self) -> tuple[object, ...]:
        """What changes when one of its ranks moves."""
        return self.hash, tuple((one.rank, one.pid, tuple(sorted(one.launched.items()))) for one in self.members)


def parse_answer(answer: bytes) -> tuple[RasCommunicator, ...]:
    """The communicators that an answer has whole; none of what is no answer of RAS."""
    text = answer.decode("utf-8", "replace")
    start = text.find("{")
    found = _from_json(text[start:]) if start >= 0 else _from_text(text)
    return tuple(found)


# ---- JSON ----

#: NCCL 2.28 ends the last number of a missing rank without a comma.
_FORGOTTEN = re.compile(r'("nvml_dev": *-?\d+)(\s+")')
_LIST = re.compile(r'"communicators": *\[')


def _from_json(text: str) -> Iterator[RasCommunicator]:
    """Each communicator that is whole: of a torn answer those before the tear."""
    text = _FORGOTTEN.sub(r"\1,\2", text)
    begin, decoder = _LIST.search(text), json.JSONDecoder()
    at = begin.end() if begin else len(text)
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        while (at := _next(text, at)) < len(text) and text[at] == "{":
            one, at = decoder.raw_decode(text, at)
            yield _communicator(one)


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _communicator(one: Any) -> RasCommunicator:
    members = (
        Member(
            int(each["rank"]), int(each["pid"]), {str(name): int(n) for name, n in each["collective_counts"].items()}
        )
        for each in one["ranks"]
    )
    missing = tuple(int(each["rank"]) for each in one.get("missing_ranks", ()))
    return RasCommunicator(int(one["hash"], 16), int(one["size"]), tuple(members), missing)


# ---- text ----

#: A row of the table of groups: its number, communicators, nodes, ranks a node, ranks a communicator, ranks, status.
_GROUP = re.compile(r" *(\d+) +\d+ +\d+ +[\d-]+ +(\d+) +\d+ +[A-Z]")
_BLOCK = re.compile(r"#(\d+)-\d+ \(([0-9a-f]+)\) (\w+)")
_DIFFER = re.compile(r"Communicator ranks have different (?:collective|(\w+)) operation counts")
_LAUNCHED = re.compile(r"(\d+) ranks have launched up to operation (\d+)")
_RANK = re.compile(r"Rank (\d+)(?: has launched up to operation (\d+))? --(?:.*managed by process (\d+))?")
_GONE = re.compile(r"The missing ranks?: ([\d, ]+)$")


def _from_text(text: str) -> Iterator[RasCommunicator]:
    """Communicators whose counts differ, or that lack ranks: text is silent about others. A block ends with an empty
    line; one that does not is torn."""
    sizes = {int(row[1]): int(row[2]) for line in text.splitlines() if (row := _GROUP.match(line))}
    found: dict[tuple[int, int], _Block] = {}
    for part in re.findall(r"^#.*?\n(?=\n)", text.replace("\r", ""), re.MULTILINE | re.DOTALL):
        head, *lines = part.splitlines()
        known = _BLOCK.match(head)
        if known and int(known[1]) in sizes:
            block = found.setdefault((int(known[1]), int(known[2], 16)), _Block(sizes[int(known[1])]))
            block.read(known[3], [line.strip() for line in lines])
    for (_, number), block in found.items():
        yield RasCommunicator(number, block.size, tuple(block.members()), tuple(sorted(block.missing)))


class _Block:
    """What a text says of one communicator."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.missing: set[int] = set()
        self._pids: dict[int, int] = {}
        #: By function and rank. Many that agree are only counted: they are the ranks that are not listed.
        self._launched: dict[str, dict[int, int]] = {}
        self._unlisted: dict[str, list[int]] = {}

    def read(self, what: str, lines: list[str]) -> None:
        function, together, listed = ANY, 0, True
        for line in lines:
            if differ := _DIFFER.match(line):
                self._end(function, together, listed=listed)
                function, listed = differ[1] or ANY, True
                self._launched.setdefault(function, {})
            elif launched_by := _LAUNCHED.match(line):
                self._end(function, together, listed=listed)
                together, listed = int(launched_by[2]), False
            elif rank := _RANK.match(line):
                self._pids[int(rank[1])] = int(rank[3] or 0)
                if what == "INCOMPLETE":
                    self.missing.add(int(rank[1]))
                elif function in self._launched:
                    listed = listed or rank[2] is None
                    self._launched[function][int(rank[1])] = int(rank[2]) if rank[2] else together
            elif gone := _GONE.match(line):
                self.missing.update(int(number) for number in re.findall(r"\d+", gone[1]))
        self._end(function, together, listed=listed)

    def _end(self, function: str, together: int, *, listed: bool) -> None:
        """The ranks that agreed were not listed."""
        if not listed:
            self._unlisted.setdefault(function, []).append(together)

    def members(self) -> Iterator[Member]:
        """Every rank, those of one group that is not listed being all others. None where the count of some rank is
        not known: any may have launched fewest."""
        for function, rest in self._unlisted.items():
            if len(rest) == 1 and function in self._launched:
                known = self._launched[function]
                others = {rank: rest[0] for rank in range(self.size) if rank not in known and rank not in self.missing}
                self._launched[function] = {**known, **others}
        ranks = set(range(self.size)) - self.missing
        if not self._launched or any(ranks - by_rank.keys() for by_rank in self._launched.values()):
            return
        for rank in sorted(ranks):
            launched = {name: by_rank[rank] for name, by_rank in self._launched.items()}
            yield Member(rank, self._pids.get(rank, 0), launched)
