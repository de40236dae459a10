"""A job whose recording cannot be read when it ends is judged from memory: its verdict is not lost."""

from types import SimpleNamespace
from typing import Any

from hindmost_collector.live import sealing
from hindmost_collector.simulate import Scenario, simulate


class TornError(Exception):
    """What a reader of files raises; no error of the operating system, and none of ours."""


def test_what_memory_holds_is_judged() -> None:
    """Whatever a torn file makes its reader raise."""

    def read(_: str) -> Any:
        raise TornError("page 3")

    run = simulate(Scenario(2, 12)).run
    collector: Any = SimpleNamespace(
        recorder=SimpleNamespace(store=SimpleNamespace(read=read), failing=""),
        decoder=SimpleNamespace(words=None),
        clock=SimpleNamespace(now=lambda: 1),
    )
    job: Any = SimpleNamespace(
        id="j",
        snapshot=lambda _: lambda: run,
        exit_code=0,
        ended_ns=None,
        interrupted_by=None,
        no_ring=None,
        entered=True,
    )
    whole = sealing.whole_run(collector, job)
    assert whole.ranks["rank"].tolist() == [0, 1]
    assert any("cannot be read (page 3)" in note for note in whole.notes)
