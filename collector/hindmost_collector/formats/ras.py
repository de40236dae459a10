"""Answers of NCCL's RAS, JSON or text, kept by ``ncclras`` or from its port: who is waited for in a hang.

One answer is a moment of a job that may be at work. Where two have the same counts, and these differ between ranks, the
ranks that have launched more wait for the others.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hindmost_judge.model import RUNNING, UNMEASURED, Job, Run
from hindmost_judge.verdict.wording import ONE_ANSWER
from hindmost_proto.ras import NAMES, Member, RasCommunicator, parse_answer

from hindmost_collector.recordings.tables import table
from hindmost_collector.recordings.trace_files import Sample

NAME = "NCCL RAS answers"
PRECEDENCE = 40
#: What is read of a file.
MOST_BYTES = 16 << 20


def recognises(sample: Sample) -> bool:
    """Whether it has the marks of an answer, in either format."""
    text = b'"communicators_count"' in sample.head and b'"nccl_version"' in sample.head
    return text or (b"NCCL version " in sample.head and b"Communicators..." in sample.head)


def load(files: Sequence[Path]) -> Run:
    """The ranks that wait in communicators that stood from one answer to another; of the newest answer."""
    texts = {_moment(path, text := _read(path)): text for path in sorted(files, key=_written_ns)}  # no copies
    answers = [answer for text in texts.values() if (answer := parse_answer(text))]
    found = answers[-1] if answers else ()
    states = [{comm.state for comm in answer} for answer in answers]
    standing = [comm for comm in found if not comm.missing and sum(comm.state in state for state in states) > 1]
    world = max(found, key=lambda comm: comm.size, default=RasCommunicator(0, 0, ()))
    ranks = {member.pid or -1 - member.rank: member.rank for member in world.members}
    members = [
        (comm, member, ranks[place])
        for comm in found
        for member in comm.members
        if (place := member.pid or -1 - member.rank) in ranks
    ]
    waits = [(rank, comm, *_waits_in(comm, member)) for comm, member, rank in members if comm in standing]
    waits = [wait for wait in waits if wait[2]]
    known = sorted(ranks.values())
    notes = () if len(answers) > 1 else (ONE_ANSWER,)
    return Run(
        job=Job(id="", world_size=world.size or None, source=NAME),
        ranks=table("ranks", rank=known, world_size=world.size),
        communicators=table(
            "communicators",
            comm=np.array([comm.hash for comm, _, _ in members], dtype=np.uint64),
            rank=[rank for _, _, rank in members],
            rank_in=[member.rank for _, member, _ in members],
            size=[comm.size for comm, _, _ in members],
        ),
        rank_states=table("rank_states", rank=known, time_ns=UNMEASURED, life=RUNNING),
        in_flight=table(
            "in_flight",
            rank=[rank for rank, _, _, _ in waits],
            kind="collective",
            name=[name for _, _, name, _ in waits],
            comm=np.array([comm.hash for _, comm, _, _ in waits], dtype=np.uint64),
            seq=[number for _, _, _, number in waits],
        ),
        notes=notes,
    )


def _written_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def _moment(path: Path, text: bytes) -> tuple[bytes, int]:
    """What two answers have in common that are one: JSON has its time in it. Text has none, and is the same from one
    answer of a hang to the next: there the second in which the file was written tells them apart."""
    return text, 0 if b'"timestamp"' in text else _written_ns(path) // 1_000_000_000


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(MOST_BYTES)


def _waits_in(comm: RasCommunicator, member: Member) -> tuple[str, int]:
    """The operation that a rank waits in, and its number; no name where it has launched no more than the last."""
    last = min(comm.members, key=lambda one: sum(one.launched.values()))
    number = sum(last.launched.values())
    if sum(member.launched.values()) == number:
        return "", number
    more = [name for name, count in member.launched.items() if count > last.launched.get(name, 0)]
    return NAMES.get(more[0], "nccl_other") if len(more) == 1 else "nccl_other", number
