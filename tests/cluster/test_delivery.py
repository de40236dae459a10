"""What an agent measured is stored once, whoever is killed meanwhile: real processes, with a link that is cut.

``python -m bench.delivery_ledger`` runs the same scenes at full length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.delivery_ledger import scenarios

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_though_link_agent_and_collector_fail(tmp_path: Path) -> None:
    """Produced, delivered and stored samples are as many, and every step is stored once."""
    result = scenarios.everything_at_once(tmp_path, 0)
    assert result["samples"]["produced"] == sum(result["stored_rows"].values()) > 0
    assert result["steps"]["stored"] == result["steps"]["written"] > 0


@pytest.mark.timeout(300)
def test_what_could_not_be_delivered_at_the_job_s_end_is_kept_for_the_next_agent(tmp_path: Path) -> None:
    """The collector is gone: one line says where everything is kept; the next agent delivers all of it."""
    result = scenarios.leave_undelivered(tmp_path)
    said = (tmp_path / "errors.log").read_text()
    assert f"{result['kept_by_the_first_agent']} samples were not acknowledged" in said
    assert str(tmp_path / "spool") in said
    assert result["samples"]["delivered"] == sum(result["stored_rows"].values()) > 0
