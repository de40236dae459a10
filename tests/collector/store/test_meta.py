"""What is written of a run as a whole."""

from __future__ import annotations

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
