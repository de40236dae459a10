"""In which operations ranks wait for each other, from the names that various libraries give them."""

from __future__ import annotations

#: Operations that no member can leave before every member has entered, spelled without punctuation.
_SYNCHRONISING = (
    "allreduce",
    "allgather",
    "reducescatter",
    "barrier",
    "alltoall",
    "allgatherbase",
    "reducescattertensor",
    "allgatherintotensor",
    "ddpsync",
)
#: Operations in which one rank gives to all others, spelled likewise.
_ROOTED = ("broadcast", "bcast", "broadcastoop", "scatter")
#: Parts of the names of what ranks run inside of forward and backward, where computing may wait for it.
_INSIDE = ("gather", "all_to_all")


def is_synchronising(name: str) -> bool:
    """Whether this operation's name is one whose end is common to all members."""
    return _plain(name) in _SYNCHRONISING


def is_rooted(name: str) -> bool:
    """Whether this operation's name is one in which a root gives to all others."""
    return _plain(name) in _ROOTED


def is_inside(name: str) -> bool:
    """Whether this operation's name is one that gathers parameters, or exchanges parts of batches."""
    return any(part in name for part in _INSIDE)


def _plain(name: str) -> str:
    plain = "".join(c for c in name.lower() if c.isalnum())
    return plain.removeprefix("mpi").removeprefix("nccl").rstrip("vw")
