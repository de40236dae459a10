"""Whom a rank waits for in ``torch.distributed``'s own send and receive."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.probes.self_time import SelfTime
from hindmost.probes.torch_collectives import Calls, hook_call
from hindmost.recorder import Recorder

#: Ranks of the job in a group that is not all of it.
MEMBERS = [2, 5, 7]


@pytest.mark.parametrize(
    ("op", "call", "waits"),
    [
        ("recv", lambda torch, _: torch.recv("tensor", 3), (3, 0)),
        ("recv", lambda torch, _: torch.recv("tensor"), (ring.ANY, 0)),
        ("send", lambda torch, _: torch.send("tensor", dst=1), (1, ring.SENDS)),
        ("send", lambda torch, group: torch.send("tensor", 7, group), (2, ring.SENDS)),
        ("recv", lambda torch, group: torch.recv("tensor", group=group, group_src=1), (1, 0)),
    ],
)
def test_open_messages_peers(tmp_path: Path, op: str, call: Callable[[Any, Any], None], waits: tuple[int, int]) -> None:
    """As a rank of its group, whichever way it is given; a receive without a source waits for any."""
    writer = ring.Writer.create(tmp_path, Identity("job", 5, 8, 1, "n", "torch", "t.py"), "py")
    reader, seen = ring.Reader(writer.path), list[tuple[str, int, int]]()

    def original(*_: Any, **__: Any) -> None:
        seen.extend((record.name, record.peer, record.flags) for record in reader.open_records())

    torch: Any = SimpleNamespace(
        send=original,
        recv=original,
        group=SimpleNamespace(WORLD="world"),
        get_process_group_ranks=lambda group: MEMBERS if group == "pair" else list(range(8)),
        get_rank=lambda group: 1 if group == "pair" else 5,
        get_group_rank=lambda _, rank: MEMBERS.index(rank),
    )
    recorder = Recorder(writer)
    calls = Calls(torch, recorder, SelfTime(recorder))
    for name in ("send", "recv"):
        hook_call(torch, name, calls)
    call(torch, "pair")
    assert seen == [(op, *waits)]
    assert reader.open_records() == []
    reader.close()
    writer.close()
