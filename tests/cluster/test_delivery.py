"""An agent's measurements are stored once, whichever process is killed meanwhile: real processes, with a link that is
cut.

``python -m bench.delivery_ledger`` runs this scene at full length, and each trouble separately.
"""

from pathlib import Path

import pytest

from bench.delivery_ledger import scenarios

pytestmark = pytest.mark.torture


def test_nothing_is_lost_or_doubled_though_link_agent_and_collector_fail(tmp_path: Path) -> None:
    """Produced, delivered and stored samples are as many, and every step is stored once."""
    result = scenarios.everything_at_once(tmp_path, 0)
    assert result["samples"]["produced"] == sum(result["stored_rows"].values()) > 0
    assert result["steps"]["stored"] == result["steps"]["written"] > 0
