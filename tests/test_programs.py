"""`make test-deps`: what it installs starts no service."""

import subprocess
from pathlib import Path

import pytest

from tests import programs


@pytest.mark.parametrize("root", [[], ["env"]], ids=["as root", "behind sudo"])
def test_no_service_starts_while_installing(root: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's packages ask this program, which only root may write; 101 forbids. It is gone afterwards."""
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(programs, "POLICY", policy)
    with programs.no_service_starts(root):
        assert subprocess.run([str(policy), "prometheus", "start"], check=False).returncode == 101
    assert not policy.exists()


def test_a_machines_own_policy_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's image may have one."""
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    monkeypatch.setattr(programs, "POLICY", policy)
    with programs.no_service_starts([]):
        pass
    assert "104" in policy.read_text()
