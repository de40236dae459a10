"""The ring: what a writer puts in, a reader gets out, whole, in order, and with every loss counted."""

import os
import re
import struct
import subprocess
import threading
import types
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.ring import layout, native
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.probe.conftest import IDENTITY

HEADER = Path(layout.__file__).parents[1] / "native" / "ring.h"


@pytest.fixture(autouse=True)
def implementation(written_in: str) -> str:
    """Every test runs over the pure Python writer and over the C one, where it can be built."""
    return written_in


def test_implementation_is_the_one_that_was_asked_for(writer: ring.Writer, implementation: str) -> None:
    """The C writer is in use exactly where the environment names it."""
    assert isinstance(writer.event, types.FunctionType) == (implementation == "python")


def test_layout_is_that_of_ring_h() -> None:
    """Every constant of ring.h has the same value in Python."""
    text = HEADER.read_text()
    defined = dict(re.findall(r"#define HM_(\w+) (0x[0-9A-F]+|\d+)(?:ULL)?\b", text))
    same = {name: int(value, 0) for name, value in defined.items() if hasattr(layout, name)}
    assert len(same) >= 15
    assert {name: getattr(layout, name) for name in same} == same
    numbered = dict(re.findall(r"HM_(\w+) = (\d+)", text))
    kinds = {n: int(v) for n, v in numbered.items() if hasattr(layout, n)}
    assert kinds.keys() >= {"STEP", "SELF", "IO", "GPU_TIME", "ERROR", "RUNQUEUE_KNOWN", "CLOSED"}
    assert {name: getattr(layout, name) for name in kinds} == kinds


def test_header_says_who_writes(tmp_path: Path, writer: ring.Writer) -> None:
    """The file is named by rank, producer and pid, and its header carries the identity in full."""
    assert Path(writer.path) == tmp_path / f"3.py.{os.getpid()}.ring"
    header = ring.Reader(writer.path).header
    assert (header.rank, header.world_size, header.local_rank, header.pid) == (3, 8, 1, os.getpid())
    assert (header.job_id, header.framework, header.command) == ("job-1", "torch", "python train.py --größe")
    assert header.producer == "py"
    stat = Path("/proc/self/stat").read_text()
    assert header.start_ticks == int(stat.rpartition(")")[2].split()[19])


def test_event_comes_back_as_written(writer: ring.Writer) -> None:
    """Each field of an event survives the ring."""
    comm = writer.communicator(0xFEDCBA9876543210, 2, 4, "WORLD")
    writer.event(
        ring.COLLECTIVE, writer.name("all_reduce"), 2**62, 2**40, 7, comm, peer=1, value=2**50, flags=ring.ERROR
    )
    writer.event(ring.STEP, writer.name("train"), 5, 6)
    reader = ring.Reader(writer.path)
    assert reader.poll() == [
        ring.Event(ring.COLLECTIVE, ring.ERROR, "all_reduce", 2**62, 2**40, 7, 1, 0xFEDCBA9876543210, 2**50),
        ring.Event(ring.STEP, 0, "train", 5, 6, 0, -1, 0, 0),
    ]
    assert reader.communicators() == [ring.Communicator(0xFEDCBA9876543210, 2, 4, "WORLD")]
    assert reader.poll() == []


def test_words_are_the_same_events(writer: ring.Writer) -> None:
    """What is read as words and decoded one by one is what is read as events; slots claimed in vain are neither."""
    comm = writer.communicator(2**64 - 1, 2, 4, "WORLD")
    for peer in (0, 3, 77, 65534):
        writer.event(ring.P2P, writer.name("send"), 2**62, 2**40, 2**32 - 1, comm, peer, 2**64 - 1, 255)
        writer.event(ring.PHASE, writer.name("forward"), 5, 6)
    writer.event(ring.STEP, writer.name("train"), -1, 6)  # refused, its slot is void
    words = ring.Reader(writer.path)
    decoded = [words.event(one) for one in layout.WORDS.iter_unpack(words.read())]
    assert [one for one in decoded if one is not None] == ring.Reader(writer.path).poll()
    assert len([one for one in decoded if one is not None]) == 8
    assert words.read() == b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(rounds=st.lists(st.integers(0, 200), max_size=8))
def test_every_event_is_returned_in_order_or_counted_as_lost(tmp_path: Path, rounds: list[int]) -> None:
    """However the ring wraps between polls, the newest come back in order and the rest are counted."""
    writer = ring.Writer.create(tmp_path, IDENTITY, "py", capacity=64)
    reader = ring.Reader(writer.path)
    name, number = writer.name("x"), 0
    for burst in rounds:
        for number in range(number + 1, number + 1 + burst):  # noqa: B020
            writer.event(ring.MARK, name, number, 0)
        starts = [event.start_ns for event in reader.poll()]
        assert starts == list(range(number - min(burst, 64) + 1, number + 1))
    assert reader.lost == sum(max(burst - 64, 0) for burst in rounds)
    assert reader.written == sum(rounds)
    writer.close()


def test_limit_leaves_the_rest_for_the_next_poll(writer: ring.Writer) -> None:
    """A bounded poll goes on where it stopped, and a new reader can too."""
    for i in range(10):
        writer.event(ring.MARK, 0, i, 0)
    reader = ring.Reader(writer.path)
    assert [e.start_ns for e in reader.poll(limit=4)] == [0, 1, 2, 3]
    assert reader.position == 4
    assert [e.start_ns for e in ring.Reader(writer.path, start=4).poll()] == [4, 5, 6, 7, 8, 9]


def test_stamps_wrap_with_the_index(writer: ring.Writer, tmp_path: Path) -> None:
    """Indexes beyond 2**32 differ in the low half of index + 1."""
    index = 2**32 - 3
    with Path(writer.path).open("r+b") as file:
        for i in range(index, index + 6):
            file.seek(layout.RECORDS_OFFSET + (i & 63) * 40)
            file.write(layout.RECORD.pack(i + 1 & 0xFFFFFFFF, ring.MARK, 0, 0, i, 0, 0, 0xFFFF, 0xFFFF, 0))
        file.seek(layout.HEAD_OFFSET)
        file.write(struct.pack("<Q", index + 6))
    assert [e.start_ns for e in ring.Reader(writer.path, start=index).poll()] == list(range(index, index + 6))


def test_writer_goes_on_beyond_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 2**32th event and those after it are written like any other."""
    first = 2**32 - 3
    monkeypatch.setattr("hindmost.ring.writer.has_gil", lambda: False)
    monkeypatch.setattr("itertools.count", lambda one: iter(range(first + one, first + 10)))
    monkeypatch.delenv("HINDMOST_RING_MODULE", raising=False)
    writer = ring.Writer.create(tmp_path, IDENTITY, "py", capacity=64)
    for i in range(6):
        writer.event(ring.MARK, 0, i, 0)
    assert [e.start_ns for e in ring.Reader(writer.path, start=first).poll()] == list(range(6))
    writer.close()


@pytest.mark.parametrize(("gil", "capacity"), [(True, 64), (False, 64), (True, 4 * layout.DEFAULT_CAPACITY)])
def test_events_go_round_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gil: bool, capacity: int) -> None:
    """With a GIL and without, in a ring whose slots are counted beforehand and in one that has too many."""
    monkeypatch.setattr("hindmost.ring.writer.has_gil", lambda: gil)
    monkeypatch.delenv("HINDMOST_RING_MODULE", raising=False)
    writer = ring.Writer.create(tmp_path, IDENTITY, "py", capacity=capacity)
    for i in range(capacity + 7):
        writer.event(ring.MARK, 0, i, 0)
    reader = ring.Reader(writer.path)
    assert [e.start_ns for e in reader.poll()] == list(range(7, capacity + 7))
    assert reader.lost == 7
    writer.close()


def test_slot_claimed_and_never_written_is_lost_after_a_second(writer: ring.Writer) -> None:
    """A reader waits one second for an unfinished record, then counts it and goes on."""
    for i in range(3):
        writer.event(ring.MARK, 0, i, 0)
    with Path(writer.path).open("r+b") as file:
        file.seek(layout.RECORDS_OFFSET + 40)
        file.write(bytes(4))
    now = 0.0
    reader = ring.Reader(writer.path, clock=lambda: now)
    assert [e.start_ns for e in reader.poll()] == [0]
    assert reader.poll() == []
    now = 1.0
    reader.poll()
    assert [e.start_ns for e in reader.poll()] == [2]
    assert reader.lost == 1


def test_threads_lose_nothing(tmp_path: Path) -> None:
    """Eight threads that write at once leave every event in the ring exactly once, each thread's in its order."""
    writer = ring.Writer.create(tmp_path, IDENTITY, "py", capacity=16384)
    reader = ring.Reader(writer.path)

    def write(thread: int) -> None:
        name = writer.name(f"thread {thread}")
        for i in range(2000):
            writer.event(ring.MARK, name, i, 0)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = reader.poll()
    assert reader.lost == 0
    for i in range(8):
        assert [e.start_ns for e in events if e.name == f"thread {i}"] == list(range(2000))
    writer.close()


def test_field_out_of_range_is_refused_and_counted(writer: ring.Writer) -> None:
    """An event that does not fit its record raises nothing, is counted, and does not hold up the next one."""
    writer.event(ring.MARK, 0, -5, 0)
    writer.event(ring.MARK, 0, 1.5, 0)  # type: ignore[arg-type]
    writer.event(ring.MARK, 0, 7, 0)
    reader = ring.Reader(writer.path)
    assert [e.start_ns for e in reader.poll()] == [7]
    assert reader.lost == 2


def test_wrong_call_is_a_type_error(writer: ring.Writer) -> None:
    """A call that does not fit the signature is the caller's mistake, whichever writer it is."""
    with pytest.raises(TypeError, match="event"):
        writer.event(ring.MARK, 0, 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        writer.event(ring.MARK, 0, 1, 2, colour=3)  # type: ignore[call-arg]
    assert ring.Reader(writer.path).written == 0


@pytest.mark.parametrize("path", ["/nowhere/ring-{abi}.so", "{text}", "ring-cpython-27-other.so"])
def test_a_broken_module_leaves_the_python_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A C writer that is missing, broken or of another interpreter costs speed and nothing else."""
    text = tmp_path / f"ring-{native.ABI}.so"
    text.write_text("this is no library")
    monkeypatch.setenv("HINDMOST_RING_MODULE", path.format(abi=native.ABI, text=text))
    writer = ring.Writer.create(tmp_path / "rings", IDENTITY, "py", capacity=64)
    writer.event(ring.MARK, 0, 9, 0)
    assert [e.start_ns for e in ring.Reader(writer.path).poll()] == [9]
    assert isinstance(writer.event, types.FunctionType)
    writer.close()


def test_full_tables_refuse_and_count(writer: ring.Writer) -> None:
    """Names and communicators beyond their tables get no index; what was registered keeps its own."""
    names = [writer.name(f"name {i}") for i in range(ring.NAMES + 1)]
    comms = [writer.communicator(i + 1, 0, 2, "") for i in range(ring.COMMS + 1)]
    assert names == [*range(ring.NAMES), ring.NONE16]
    assert comms == [*range(ring.COMMS), ring.NONE16]
    assert (writer.name("name 3"), writer.communicator(4, 0, 2, "")) == (3, 3)
    assert ring.Reader(writer.path).lost == 2


def test_long_and_odd_names_are_cut_between_characters(writer: ring.Writer) -> None:
    """A name is cut to its 63 bytes without breaking a character; a lone surrogate does no harm."""
    for text in ("é" * 40, "bad \udcff"):
        writer.event(ring.MARK, writer.name(text), 0, 0)
    assert [e.name for e in ring.Reader(writer.path).poll()] == ["é" * 31, "bad ?"]


def test_open_table_shows_what_was_entered_and_not_left(writer: ring.Writer) -> None:
    """enter() stands in the open table until leave()."""
    comm = writer.communicator(99, 0, 2, "WORLD")
    writer.enter(0, ring.COLLECTIVE, writer.name("barrier"), 123, 5, comm)
    writer.enter(31, ring.P2P, writer.name("recv"), 124)
    reader = ring.Reader(writer.path)
    assert [(e.name, e.start_ns, e.seq, e.comm_id) for e in reader.open_records()] == [
        ("barrier", 123, 5, 99),
        ("recv", 124, 0, 0),
    ]
    writer.leave(0)
    assert [e.name for e in reader.open_records()] == ["recv"]


def test_closed_ring_swallows_what_comes_late(writer: ring.Writer) -> None:
    """After close() the reader sees the end, and late callers are neither heard nor hurt."""
    writer.event(ring.MARK, 0, 1, 0)
    reader = ring.Reader(writer.path)
    assert not reader.closed
    event = writer.event
    writer.close()
    writer.close()
    event(ring.MARK, 0, 2, 0)
    writer.enter(0, ring.MARK, 0, 0)
    writer.leave(0)
    assert writer.name("late") == ring.NONE16
    assert reader.closed
    assert [e.start_ns for e in reader.poll()] == [1]


def test_forked_child_does_not_write(writer: ring.Writer) -> None:
    """A child that was forked off leaves its parent's ring alone."""
    pid = os.fork()
    if pid == 0:
        writer.event(ring.MARK, 0, 1, 0)
        writer.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    reader = ring.Reader(writer.path)
    assert (reader.written, reader.closed) == (0, False)
    writer.event(ring.MARK, 0, 2, 0)
    assert [e.start_ns for e in reader.poll()] == [2]


def test_gpu_and_framework_can_be_named_later(writer: ring.Writer) -> None:
    """What is not known when the ring is made is filled in afterwards."""
    writer.set_gpu("GPU-1234")
    writer.set_framework("keras")
    reader = ring.Reader(writer.path)
    assert (reader.gpu_uuid, reader.header.gpu_uuid, reader.header.framework) == ("GPU-1234", "GPU-1234", "keras")


@pytest.mark.parametrize("capacity", [0, 3, 1000, 2**23])
def test_capacity_is_a_bounded_power_of_two(tmp_path: Path, capacity: int) -> None:
    """Any other capacity is a ValueError, and from the environment the default."""
    with pytest.raises(ValueError, match=f"ring capacity {capacity}"):
        ring.Writer.create(tmp_path, IDENTITY, "py", capacity=capacity)
    assert ring.capacity({"HINDMOST_RING_CAPACITY": str(capacity)}) == ring.DEFAULT_CAPACITY
    assert ring.capacity({"HINDMOST_RING_CAPACITY": "256"}) == 256


def test_ring_that_cannot_be_made_is_an_oserror(tmp_path: Path) -> None:
    """A directory that is a file is an OSError."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ring.Writer.create(tmp_path / "file", IDENTITY, "py")


@pytest.mark.needs("root", "the right to mount")
def test_full_shared_memory_is_an_error_at_creation(tmp_path: Path) -> None:
    """On a full tmpfs the ring is refused with an OSError and leaves nothing behind."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    try:
        with pytest.raises(OSError, match="No space left"):
            ring.Writer.create(tmp_path, IDENTITY, "py")
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)
