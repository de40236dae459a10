"""What is written of a run as a whole."""

import json

import pytest
from hindmost_collector.store import meta


@pytest.mark.parametrize(
    "found", [b'{"site": "north", "schema": "hindmost.run/2", "world_size": "many"}', b"{", b"[]", None]
)
def test_whatever_others_wrote_is_kept_and_stops_no_run(found: bytes | None) -> None:
    """A newer hindmost's, a torn one or none: what is known now is written, unknown facts are not."""
    kept = {"site": "north", "world_size": "many"} if found and b"site" in found else {}
    written = json.loads(meta.merged(found, {"exit_code": 0, "launcher": None}))
    assert written == {**kept, "schema": "hindmost.run/1", "exit_code": 0}


def test_of_the_environment_only_what_tunes_is_kept() -> None:
    """Neither secrets nor settings of other programs."""
    tunes = {"OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0,1"}
    others = {"HOME": "/root", "NCCL_API_KEY": "x", "TORCH_HUB_TOKEN": "x", "OMP": "1", "HINDMOST_JOB_ID": "a"}
    assert meta.tuning({**others, **tunes}) == dict(sorted(tunes.items()))


def test_a_run_says_what_it_was_started_with() -> None:
    """A value that is no text is none of a variable's."""
    facts = {"launcher": "torchrun", "version": "1.2", "environment": {"OMP_NUM_THREADS": "4", "NCCL_ALGO": 1}}
    assert dict(meta.settings(facts)) == {"launcher": "torchrun", "hindmost": "1.2", "OMP_NUM_THREADS": "4"}
