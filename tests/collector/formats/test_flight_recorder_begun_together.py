"""Flight Recorder dumps of sends and receives that were begun together, as torch's batches of them are."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge


def _entry(name: str, number: int, state: str) -> dict[str, Any]:
    return {
        "pg_id": 8,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 2,
        "p2p_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 10**18 + number * 10**7,
        "state": state,
        "retired": state == "completed",
        "is_p2p": name != "coalesced",
    }


def _write(folder: Path, state: str) -> None:
    """Two stages that exchanged a tensor both ways in each of 30 batches, of which the last is in this state."""
    for rank in (0, 1):
        entries = []
        for number in range(1, 31):
            entries += [_entry(f"{way}{1 - rank}", number, "scheduled") for way in (f"send {rank}->", f"recv {rank}<-")]
            entries.append(_entry("coalesced", number, state if number == 30 else "completed"))
        config = {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}
        dump = {"version": "2.10", "pg_config": config, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    samples = [f"{10**18 + second * 10**9},{gpu},100" for second in (0, 60) for gpu in (0, 1)]
    (folder / "nvml.csv").write_text("\n".join(["t_ns,gpu,util", *samples]) + "\n")


@pytest.mark.parametrize(("state", "left"), [("completed", 0), ("started", 6)])
def test_what_was_begun_together_is_open_while_all_of_it_is(tmp_path: Path, state: str, left: int) -> None:
    """The recorder notes only of the batch how far it has come: its sends stay scheduled for ever."""
    _write(tmp_path, state)
    run = load(tmp_path)
    assert len(run.in_flight["rank"]) == left
    kinds = {verdict.kind for verdict in judge(run).verdicts}
    assert ("hang" in kinds) is (left > 0)
