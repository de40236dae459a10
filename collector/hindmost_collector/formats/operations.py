"""One name for each operation in all recordings: the one that ``torch.distributed`` gives it."""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|[\s-]+")
#: ``nccl:send 0->1`` and ``nccl:recv 1<-0`` have the two ranks in their name, too.
_BETWEEN = re.compile(r"\s+\d+\s*(->|<-)\s*\d+$")
_SAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all",
    "alltoall_base": "all_to_all",
    "bcast": "broadcast",
    "sendrecv": "send_recv",
}


@lru_cache(maxsize=4096)
def operation(name: str) -> str:
    """``AllReduce``, ``nccl:all_reduce``, ``ALLREDUCE`` -> ``all_reduce``; an unknown name in the same spelling."""
    name = name.removeprefix("nccl:").removeprefix("gloo:").removeprefix("mpi:")
    name = _BETWEEN.sub("", name)
    name = name if name.isupper() else _WORD.sub("_", name)
    name = name.lower().strip("_ ").split(" ", 1)[0]
    return _SAME.get(name, name)
