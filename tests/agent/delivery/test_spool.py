"""What was produced is delivered, dropped and counted, or still held: after every kind of restart, and at the end."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost.errors import UsageError
from hindmost_agent.delivery.spool import Spool, closed, expire
from hindmost_agent.settings import Settings, settings

LIMIT = 1 << 20


def fill(spool: Spool, count: int, size: int = 100, definitions: dict[int, bytes] | None = None) -> None:
    for _ in range(count):
        spool.append(10, spool.next_sequence.to_bytes(8, "little") + bytes(size), definitions or {})


def sent(spool: Spool) -> list[int]:
    return [outgoing.sequence for outgoing in iter(spool.next, None)]


def pending(spool: Spool) -> int:
    ledger = spool.ledger
    return ledger.produced - ledger.delivered - ledger.dropped.total()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool", LIMIT)
    yield made
    made.close()


def killed(spool: Spool, folder: Path, limit: int = LIMIT) -> Spool:
    """What the next agent finds after kill -9: the files as they are, nothing said in order."""
    os.close(spool._lock)  # only a process that dies gives a lock up without a word
    spool._lock = -1
    return Spool(folder, limit)


def test_a_stream_of_years_remembers_no_job_of_years_ago(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions that the collector has are forgotten now and then, and sent again where a batch needs them."""
    monkeypatch.setattr("hindmost_agent.delivery.spool.MOST_DEFINITIONS", 10)
    spool.connected(0)
    for job in range(100):
        fill(spool, 1, size=1000, definitions={job: b"a job's", 77_000: b"the node's"})
        assert sent(spool)[-1] == job + 1
        assert len(spool._on_stream) <= 10  # of what is in memory nothing else tells
        spool.acknowledge(job + 1)
    fill(spool, 1, size=70_000, definitions={77_000: b"the node's"})
    assert sent(spool)[-1] == 101


def test_batches_are_sent_in_order_after_their_definitions(spool: Spool) -> None:
    """A definition comes before the first batch that needs it, once a stream of many segments; no batch comes twice."""
    fill(spool, 40, size=20_000, definitions={77: b"what 77 means"})
    spool.connected(0)
    assert sent(spool) == [*range(41)]
    spool.connected(3)
    assert sent(spool) == [0, *range(4, 41)]
    assert spool.ledger.delivered == 30


def test_an_acknowledged_segment_gives_its_space_back(spool: Spool) -> None:
    """Only the segment being written stays on disk when everything was delivered."""
    fill(spool, 40, size=10_000)
    spool.connected(0)
    sent(spool)
    spool.acknowledge(40)
    assert spool.size < LIMIT / 8
    assert (spool.ledger.delivered, pending(spool)) == (400, 0)


def test_a_full_spool_drops_the_oldest_and_counts_them(spool: Spool) -> None:
    """Produced is delivered plus dropped, to the sample."""
    fill(spool, 300, size=10_000)
    assert spool.size <= LIMIT
    spool.connected(0)
    numbers = sent(spool)
    spool.acknowledge(numbers[-1])
    assert numbers[0] > 1
    assert spool.ledger.dropped["spool_full"] == 10 * (numbers[0] - 1)
    assert spool.ledger.delivered == 10 * len(numbers)
    assert spool.ledger.produced == 3000


def test_a_batch_dropped_while_under_way_counts_as_what_the_collector_says(spool: Spool) -> None:
    """Sent, then dropped, then acknowledged: it was delivered."""
    fill(spool, 50, size=10_000)
    spool.connected(0)
    for _ in range(20):
        spool.next()
    fill(spool, 300, size=10_000)
    spool.connected(20)
    assert spool.ledger.delivered == 200
    numbers = sent(spool)
    spool.acknowledge(numbers[-1])
    assert spool.ledger.delivered + spool.ledger.dropped["spool_full"] == spool.ledger.produced == 3500


def test_a_dropped_batch_that_had_arrived_may_still_be_stored(spool: Spool) -> None:
    """Received and not yet durable when a new stream opens: the next acknowledgement decides."""
    fill(spool, 50, size=10_000)
    spool.connected(0)
    for _ in range(20):
        spool.next()
    fill(spool, 300, size=10_000)
    spool.connected(5, received=12)
    assert spool.ledger.delivered == 50
    assert [sequence for sequence, _, _ in spool.ledger.doubt] == list(range(6, 13))
    numbers = sent(spool)
    spool.acknowledge(numbers[-1])
    assert spool.ledger.delivered == 120 + 10 * len(numbers)
    assert pending(spool) == 0


def test_kill_9_loses_nothing_that_was_appended(spool: Spool, tmp_path: Path) -> None:
    """The next agent has the same identity, goes on counting, and sends what was not acknowledged."""
    fill(spool, 10, definitions={77: b"what 77 means"})
    spool.connected(0)
    sent(spool)
    spool.acknowledge(4)
    again = killed(spool, tmp_path / "spool")
    assert again.ledger.agent_id == spool.ledger.agent_id
    assert (again.ledger.produced, again.ledger.delivered) == (100, 40)
    again.connected(6)
    assert sent(again) == [0, 7, 8, 9, 10]
    fill(again, 1)
    assert sent(again)[-1] > 10
    again.close()


def test_the_account_of_a_killed_agent_goes_on_where_it_was(spool: Spool, tmp_path: Path) -> None:
    """Batches that were made and sent after the account was last saved are produced all the same, once."""
    fill(spool, 2)
    spool.connected(0)
    sent(spool)
    fill(spool, 3)
    sent(spool)
    again = killed(spool, tmp_path / "spool")
    again.connected(5)
    assert (again.ledger.produced, again.ledger.delivered, pending(again)) == (50, 50, 0)
    again.close()


def test_what_was_never_sent_is_dropped_for_sure(spool: Spool) -> None:
    """Only a batch that has gone out may have arrived; all others are counted as soon as they are given up."""
    fill(spool, 1)
    spool.connected(0)
    assert sent(spool) == [1]
    fill(spool, 200, size=10_000)
    assert [sequence for sequence, _, _ in spool.ledger.doubt] == [1]
    assert spool.ledger.dropped["spool_full"] > 0


def test_another_collector_is_not_sent_what_was_delivered(spool: Spool) -> None:
    """Its store is empty, yet what an earlier collector had secured was delivered: once is enough."""
    fill(spool, 3)
    spool.connected(0)
    sent(spool)
    spool.acknowledge(2)
    spool.connected(0)
    assert sent(spool) == [3]
    spool.acknowledge(3)
    assert (spool.ledger.delivered, pending(spool)) == (30, 0)


def test_a_record_torn_by_kill_9_is_cut_off(spool: Spool, tmp_path: Path) -> None:
    """Half a batch at the end of a segment is no batch; the whole ones before it are."""
    fill(spool, 3)
    path = next((tmp_path / "spool").glob("*.spool"))
    path.write_bytes(path.read_bytes()[:-7])
    again = killed(spool, tmp_path / "spool")
    again.connected(0)
    assert sent(again) == [1, 2]
    again.close()


def test_a_lost_account_is_rebuilt_from_the_segments(spool: Spool, tmp_path: Path) -> None:
    """Without ledger.json the segments still say whose batches they hold, and how many samples."""
    fill(spool, 3)
    (tmp_path / "spool/ledger.json").write_bytes(b"{torn")
    again = killed(spool, tmp_path / "spool")
    assert (again.ledger.agent_id, again.ledger.produced) == (spool.ledger.agent_id, 30)
    again.close()


def test_marks_outlive_the_delivery_of_their_batch(spool: Spool, tmp_path: Path) -> None:
    """Two agents killed in a row, everything delivered: the third still knows how far the rings were read at last."""
    for position in (5, 9):
        spool.append(1, b"one", {}, {"/a.ring": [position]})
    spool.connected(0)
    sent(spool)
    spool.acknowledge(2)
    again = killed(killed(spool, tmp_path / "spool"), tmp_path / "spool")
    again.connected(2)
    assert (again.marks, sent(again), pending(again)) == ({"/a.ring": [9]}, [], 0)
    again.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """While this holds ``full`` no segment takes a byte; the account has its place already."""
    state: set[str] = set()
    pwrite = os.pwrite

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if "full" in state and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".spool":
            raise OSError(28, "No space left on device")
        return pwrite(fd, data, offset)

    monkeypatch.setattr("hindmost_agent.delivery.spool.os.pwrite", refuse)
    return state


def test_a_full_disk_is_logged(spool: Spool, disk: set[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One when it begins and one when it ends, however long it lasts, and nothing that the next agent stumbles over."""
    caplog.set_level("INFO")
    fill(spool, 3)
    disk.add("full")
    fill(spool, 500)
    assert len(list((tmp_path / "spool").glob("*.spool"))) == 1
    disk.clear()
    fill(spool, 40)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    spool.connected(0)
    assert sent(spool) == list(range(1, 544))


def test_what_memory_held_goes_to_disk_once_that_takes_it_again(spool: Spool, disk: set[str], tmp_path: Path) -> None:
    """In its order, between what was written before and after."""
    fill(spool, 3)
    disk.add("full")
    fill(spool, 20)
    disk.clear()
    fill(spool, 30)
    spool.close()
    again = Spool(tmp_path / "spool", LIMIT)
    again.connected(0)
    assert (sent(again), pending(again)) == (list(range(1, 54)), 530)
    again.close()


@pytest.mark.parametrize("leaves", [True, False], ids=["left", "killed"])
def test_what_went_with_an_agent_s_memory_is_counted(
    spool: Spool, disk: set[str], tmp_path: Path, *, leaves: bool
) -> None:
    """Of a full disk: what it held is kept, the rest is given up, by the agent that leaves or by the next."""
    fill(spool, 3)
    disk.add("full")
    fill(spool, 20)
    if leaves:
        spool.close()
        assert (spool.ledger.dropped, pending(spool)) == ({"memory_lost": 200}, 30)
    spool.ledger.save()
    again = Spool(tmp_path / "spool", LIMIT) if leaves else killed(spool, tmp_path / "spool")
    assert (again.ledger.produced, again.ledger.dropped, pending(again)) == (230, {"memory_lost": 200}, 30)
    again.close()


@pytest.mark.parametrize("damage", ["magic", "bit", "gone"])
def test_damaged_data_is_counted(spool: Spool, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """It does not stay pending for ever: one line says how much it was, and the rest is delivered."""
    fill(spool, 40, size=20_000)
    spool.close()
    first = min((tmp_path / "spool").glob("*.spool"))
    data = bytearray(first.read_bytes())
    data[0 if damage == "magic" else len(data) // 2] ^= 1
    first.unlink() if damage == "gone" else first.write_bytes(data)
    again = Spool(tmp_path / "spool", LIMIT)
    again.connected(0)
    batches = sent(again)
    lost = 400 - 10 * len(batches)
    assert (again.ledger.dropped, pending(again)) == ({"damaged": lost}, 400 - lost)
    assert [f" {lost} samples" in record.getMessage() for record in caplog.records][-1]
    again.acknowledge(40)
    assert (lost > 0, pending(again)) == (True, 0)
    again.close()


def test_a_segment_that_can_be_read_again_is_delivered(spool: Spool, tmp_path: Path) -> None:
    """What was counted as damaged is pending again, and nothing was written over it meanwhile."""
    fill(spool, 3)
    spool.close()
    (path,) = (tmp_path / "spool").glob("*.spool")
    data = path.read_bytes()
    path.write_bytes(b"!" + data[1:])
    between = Spool(tmp_path / "spool", LIMIT)
    fill(between, 2)
    assert (between.ledger.dropped, pending(between)) == ({"damaged": 30}, 20)
    between.close()
    path.write_bytes(data)
    again = Spool(tmp_path / "spool", LIMIT)
    again.connected(0)
    assert (sent(again), again.ledger.dropped, pending(again)) == ([1, 2, 3, 4, 5], {}, 50)
    again.close()


def test_what_was_removed_while_it_was_written_is_not_kept(spool: Spool, tmp_path: Path) -> None:
    """The folder was emptied: an agent that ends then leaves nothing, and does not say that it does."""
    fill(spool, 40, size=20_000)
    shutil.rmtree(tmp_path / "spool")
    spool.close()
    assert (spool.ledger.dropped, pending(spool)) == ({"damaged": 400}, 0)


def test_without_a_disk_memory_takes_over_and_is_bounded(spool: Spool, disk: set[str]) -> None:
    """A disk that refuses costs the oldest batches at worst, and they are counted."""
    disk.add("full")
    fill(spool, 300, size=10_000)
    spool.connected(0)
    numbers = sent(spool)
    assert spool.size <= LIMIT
    assert spool.ledger.dropped.total() == 10 * (300 - len(numbers)) > 0


def test_one_folder_belongs_to_one_agent(spool: Spool, tmp_path: Path) -> None:
    """A second agent on the same spool gets an error that says so."""
    with pytest.raises(UsageError, match="another agent uses it"):
        Spool(tmp_path / "spool", LIMIT)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """Bad input: one line with the path."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        Spool(tmp_path / "file/spool", LIMIT)


def test_nothing_is_left_behind_on_demand(tmp_path: Path) -> None:
    """A job's spool is removed with its folder."""
    spool = Spool(tmp_path / "spool", LIMIT)
    fill(spool, 3)
    spool.close(remove=True)
    assert not (tmp_path / "spool").exists()


def spool_with(folder: Path, batches: int) -> Spool:
    spool = Spool(folder, LIMIT)
    fill(spool, batches)
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
    again = Spool(tmp_path / "spool", LIMIT)
    assert again.ledger.pending == 30
    again.close()


def test_no_more_is_kept_than_is_on_disk(tmp_path: Path) -> None:
    """What a full spool gave up after it was sent may have arrived, but is not kept; the account adds up."""
    spool = Spool(tmp_path / "spool", LIMIT)
    spool.connected(0)
    for number in range(1, 41):
        spool.append(10, bytes(50_000), {})
        assert [one.sequence for one in iter(spool.next, None)] == [number]
    account = closed(spool, of_job(tmp_path))
    again = Spool(tmp_path / "spool", LIMIT)
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
