"""What is kept of a job that runs for a year, on nodes that come and go, is bounded."""

from collections.abc import Iterator

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import Chunk, from_rows
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.live import totals, window
from hindmost_collector.live.window import LastRows
from hindmost_judge.model import COMMUNICATORS

RESTARTS, RANKS = 400, 8


def lives() -> Iterator[list[dict[str, object]]]:
    """Members of the communicators that each start of a job makes anew."""
    for life in range(RESTARTS):
        yield [
            dict.fromkeys(COMMUNICATORS, 0) | {"comm": life, "rank": rank, "size": RANKS, "name": ""}
            for rank in range(RANKS)
        ]


def test_of_communicators_those_that_were_stated_last_are_known() -> None:
    """However often a job started again; one that is stated again is as new as any."""
    known = LastRows("communicators", ("comm", "rank"), most=80)
    first = next(lives())
    for life in lives():
        known.add(from_rows("communicators", [tuple(row[name] for name in COMMUNICATORS) for row in life]))
        known.add(from_rows("communicators", [tuple(row[name] for name in COMMUNICATORS) for row in first]))
    assert len(known.table()["comm"]) == 80
    assert set(known.table()["comm"].tolist()) == {0, *range(RESTARTS - 9, RESTARTS)}
    order = np.lexsort((known.table()["rank"], known.table()["comm"]))
    assert order.tolist() == list(range(80))


def test_sizes_of_communicators_are_known_of_those_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start makes new ones."""
    monkeypatch.setattr(totals, "MOST_COMMUNICATORS", 10)
    words, settling = Words(), totals.Waits()
    op = words.code("all_reduce")
    for life in range(RESTARTS):
        settling.add(
            {
                "comm": np.full(RANKS, life),
                "op": np.full(RANKS, op),
                "seq": np.zeros(RANKS, np.int64),
                "rank": np.arange(RANKS),
                "duration_ns": np.full(RANKS, 5),
                "flags": np.zeros(RANKS, np.int64),
            },
            words,
        )
    assert list(vars(settling)["_members"]) == list(range(RESTARTS - 10, RESTARTS))
    assert settling.pending == 0


def test_nodes_of_which_nothing_is_heard_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job whose nodes are replaced, those that were heard of last are known."""
    monkeypatch.setattr(window, "MOST_NODES", 10)
    held, definitions = window.Window(), Definitions()
    for at in range(RESTARTS):
        held.add(
            Chunk(coded={}, plain={}, metrics=[], attachments=[], heard={"stays": at, f"node-{at}": at}), definitions
        )
    assert set(vars(held)["_heard"]) == {"stays", *(f"node-{at}" for at in range(RESTARTS - 9, RESTARTS))}
