"""Tables of nodes and GPUs."""

from hindmost_collector.recordings.load import load
from hindmost_collector.report import machine_tables

from tests.recordings import OURS


def test_gpus_have_their_ranks_where_only_their_node_saw_these() -> None:
    """Ranks that did not say which GPU is theirs are in the table of GPUs all the same, with clocks and power."""
    gpus = machine_tables.of_run(load(OURS / "ddp-observed-late-hosts.tar.xz"))["gpus"]
    assert sorted(gpus["ranks"]) == [[0], [1], [2], [3]]
    assert {"clock", "power", "busy"} <= {column["name"] for column in gpus["columns"]}
