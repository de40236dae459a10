"""What is left undelivered at an agent's end, and how long it waits for the next one."""

import os
import time
from pathlib import Path

import pytest
from hindmost_agent.delivery.spool import Spool, closed, expire
from hindmost_agent.settings import Settings, settings


def spool_with(folder: Path, batches: int) -> Spool:
    spool = Spool(folder, 1 << 20)
    for _ in range(batches):
        spool.append(10, spool.next_sequence.to_bytes(8, "little"), {})
    return spool


def of_job(tmp_path: Path) -> Settings:
    return settings(collector="head:9460", job_id="77", spool=str(tmp_path / "spool"))


def test_what_was_not_acknowledged_is_said_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line names the number, the folder and the command that delivers it; the account adds up."""
    account = closed(spool_with(tmp_path / "spool", 3), of_job(tmp_path))
    assert account == {"produced": 30, "delivered": 0, "dropped": {}, "kept": 30}
    (line,) = caplog.messages
    assert f"30 samples were not acknowledged by head:9460 and stay in {tmp_path}/spool" in line
    assert f"hindmost agent --job-id 77 --spool {tmp_path}/spool" in line
    again = Spool(tmp_path / "spool", 1 << 20)
    assert again.ledger.pending == 30
    again.close()


def test_no_more_is_kept_than_is_on_disk(tmp_path: Path) -> None:
    """What a full spool gave up after it was sent may have arrived, but is not kept; the account adds up."""
    spool = Spool(tmp_path / "spool", 1 << 20)
    spool.connected(0)
    for number in range(1, 41):
        spool.append(10, bytes(50_000), {})
        assert [one.sequence for one in iter(spool.next, None)] == [number]
    account = closed(spool, of_job(tmp_path))
    again = Spool(tmp_path / "spool", 1 << 20)
    again.connected(0, 40)
    assert account["kept"] == 10 * len(list(iter(again.next, None))) < 400
    assert account["kept"] + account["dropped"]["spool_full"] == account["produced"] == 400
    again.close()


def test_nothing_is_left_behind_where_all_was_delivered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No word, no folder."""
    spool = spool_with(tmp_path / "spool", 2)
    spool.connected(2)
    assert closed(spool, of_job(tmp_path))["kept"] == 0
    assert not (tmp_path / "spool").exists()
    assert not caplog.messages


def test_an_abandoned_spool_is_given_up_after_a_week(tmp_path: Path) -> None:
    """Only an old one, and none that an agent uses."""
    old, young, used = (spool_with(tmp_path / name, 1) for name in ("old", "young", "used"))
    now = time.time()
    old.close()
    young.close()
    for name in ("old", "used"):
        os.utime(tmp_path / name / "ledger.json", (now - 8 * 86400, now - 8 * 86400))
    assert expire(tmp_path, now) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used", "young"]
    used.close()
