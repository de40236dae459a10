"""The NCCL plugin, called through NCCL's own interface by a program that plays NCCL."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.native import build

pytestmark = pytest.mark.needs("cc")

#: What a kernel takes, ns, before its first channel starts and after its last one stops; it is added in front.
EDGES = 3000

#: By what the host's clock is before the GPU's, ns, in nccl_host.c.
HOST_AHEAD = 1_000_000_000_000

Play = "Callable[..., subprocess.CompletedProcess[str]]"


@pytest.fixture
def play(compiled: Callable[..., Path], observed: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one scene of nccl_host.c against the plugin; its exit code is checked."""

    def run(scene: str, version: int = 5, **environ: str) -> subprocess.CompletedProcess[str]:
        host = compiled("nccl_host.c", "-rdynamic")
        line = [str(host), str(build.library("nccl")), str(version), scene]
        done = subprocess.run(line, env=observed | environ, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, "")
        return done

    return run


def found(event: ring.Event) -> tuple[object, ...]:
    """What a test compares: without the host's clock."""
    return event.name, event.comm_id, event.seq, event.peer, event.value, event.start_ns, event.duration_ns


@pytest.mark.parametrize("version", [4, 5, 6])
def test_operations_carry_gpu_time_over_all_channels(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]], version: int
) -> None:
    """By each ABI with GPU times an operation lasts from its first channel's start to its last one's stop."""
    play("plain", version, RANK="2", WORLD_SIZE="4", LOCAL_RANK="1")
    (reader,) = rings()
    assert (reader.header.producer, reader.header.rank, reader.header.world_size, reader.header.local_rank) == (
        "nccl",
        2,
        4,
        1,
    )
    assert reader.communicators() == [
        ring.Communicator(0xABCDEF, 2, 4, "world"),
        ring.Communicator(77, 1, 2, "nccl"),
    ]
    records = [e for e in reader.poll() if e.kind != ring.MARK]
    events = [e for e in records if e.kind != ring.LAUNCH]
    assert [e.flags for e in events] == [ring.GPU_TIME] * 6
    assert [found(e) for e in events] == [
        ("all_reduce", 0xABCDEF, 0, -1, 2000, 1000000 - EDGES, 503 + EDGES),
        ("broadcast", 0xABCDEF, 1, 1, 2000, 2000000 - EDGES, 503 + EDGES),
        ("reduce_scatter", 77, 0, -1, 2000, 3000000 - EDGES, 503 + EDGES),
        ("all_reduce", 0xABCDEF, 2, -1, 2000, 4000000 - EDGES, 503 + EDGES),
        ("send", 77, 0, 3, 77, 5000000 - EDGES, 501 + EDGES),
        ("nccl_other", 77, 1, -1, 2000, 6000000 - EDGES, 503 + EDGES),
    ]
    launches = [(e.name, e.comm_id, e.seq, e.peer) for e in records if e.kind == ring.LAUNCH]
    assert launches == [(e.name, e.comm_id, e.seq, e.peer) for e in events], "each says when the host enqueued it"
    assert all(e.start_ns > reader.header.monotonic_ns for e in records if e.kind == ring.LAUNCH)
    assert reader.open_records() == []
    assert (reader.closed, reader.lost) == (True, 0)


def test_algorithm_is_said_when_it_changes(play: Callable[..., object], rings: Callable[[], list[ring.Reader]]) -> None:
    """Algorithm, protocol and channels are a mark of their own, once for each operation of a communicator."""
    play("plain")
    marks = [e for e in rings()[0].poll() if e.name == "algorithm RING LL128"]
    assert [(e.comm_id, e.seq, e.value) for e in marks] == [(0xABCDEF, 0, 4), (0xABCDEF, 1, 4), (77, 0, 4), (77, 1, 4)]


def test_oldest_unfinished_collective_stands_open(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]]
) -> None:
    """In a hang the open table names the first collective of the communicator that has not finished."""
    play("hang")
    (reader,) = rings()
    assert [(e.name, e.seq, e.comm_id) for e in reader.open_records()] == [("all_gather", 1, 1)]
    assert not reader.closed


def test_operation_without_gpu_reports_is_no_measurement(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]]
) -> None:
    """What the GPU never reported is flagged as an enqueue; a report that comes too late falls on nothing."""
    play("silent")
    events = [e for e in rings()[0].poll() if e.kind == ring.COLLECTIVE]
    assert [e.seq for e in events] == list(range(5000 - 2048))
    assert {e.flags for e in events} == {ring.NONBLOCKING}


def test_times_of_other_work_are_no_measurement(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]]
) -> None:
    """What began before it was enqueued, in any channel, or ended before it began, is flagged as an enqueue, which is
    when the host did that; what is right is measured."""
    play("not_its_own")
    events = [e for e in rings()[0].poll() if e.kind == ring.COLLECTIVE]
    assert [(e.name, e.flags) for e in events] == [
        ("all_gather", ring.GPU_TIME),
        ("all_reduce", ring.NONBLOCKING),
        ("broadcast", ring.NONBLOCKING),
        ("reduce", ring.NONBLOCKING),
        ("all_gather", ring.GPU_TIME),
    ]
    assert [e.start_ns - HOST_AHEAD for e in events[1:4]] == [10_000_000, 11_000_000, 12_000_000]


def test_what_follows_times_of_other_work_is_not_believed_for_a_while(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]]
) -> None:
    """The next 32 calls of that function in that communicator: they only look right."""
    play("doubted")
    events = [e for e in rings()[0].poll() if e.kind == ring.COLLECTIVE]
    measured = [(e.comm_id, e.name, bool(e.flags & ring.GPU_TIME)) for e in events]
    reduces = [known for comm, name, known in measured if (comm, name) == (1, "all_reduce")]
    assert reduces == [False] * 33 + [True] * 8
    assert [one for one in measured if one[:2] != (1, "all_reduce")] == [
        (1, "broadcast", True),
        (1, "broadcast", True),
        (2, "all_reduce", True),
    ]


def test_clocks_that_drift_make_no_time_unbelievable(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]]
) -> None:
    """A GPU's clock that loses 50 us a second, and nothing to compare it by for half an hour."""
    play("drifting")
    events = [e for e in rings()[0].poll() if e.kind == ring.COLLECTIVE]
    assert [e.flags for e in events] == [ring.GPU_TIME] * 600


def test_threads_do_not_mix(play: Callable[..., object], rings: Callable[[], list[ring.Reader]]) -> None:
    """Eight threads on a communicator each record every collective once, in order."""
    play("threads")
    (reader,) = rings()
    events = [e for e in reader.poll() if e.kind == ring.COLLECTIVE]
    assert reader.lost == 0
    for comm in range(1, 9):
        own = [(e.seq, e.start_ns, e.duration_ns) for e in events if e.comm_id == comm]
        assert own == [(i, 1000000 * (i + 1) - EDGES, 503 + EDGES) for i in range(250)]


def test_forked_child_is_silent(play: Callable[..., object], rings: Callable[[], list[ring.Reader]]) -> None:
    """A child that was forked off does not write into its parent's ring."""
    play("forked")
    (reader,) = rings()
    assert [e.name for e in reader.poll() if e.kind == ring.COLLECTIVE] == ["reduce"]


def test_a_plugin_that_was_unloaded_is_not_called(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]]
) -> None:
    """Once NCCL has unloaded the plugin the process forks and exits as if it had never been there."""
    play("unloaded")
    (reader,) = rings()
    assert [e.name for e in reader.poll() if e.kind == ring.COLLECTIVE] == ["all_gather"]
    assert reader.closed


def test_without_a_launcher_the_first_communicator_names_the_rank(
    play: Callable[..., object], rings: Callable[[], list[ring.Reader]]
) -> None:
    """Where no launcher's variables are set, rank and world size are those of the first communicator."""
    play("plain")
    header = rings()[0].header
    assert (header.rank, header.world_size, header.local_rank) == (2, 4, -1)


@pytest.mark.parametrize("environ", [{"HINDMOST_JOB_ID": ""}, {"HINDMOST_PROBE": "0"}, {"HINDMOST_RING_DIR": ""}])
def test_outside_a_job_nothing_is_made(play: Callable[..., object], tmp_path: Path, environ: dict[str, str]) -> None:
    """Without a job, or with the probe switched off, the plugin asks NCCL for no event and makes no file."""
    assert play("plain", **environ).stderr == ""  # type: ignore[attr-defined]
    assert not (tmp_path / "rings").exists()


def test_unusable_ring_directory_is_one_line(play: Callable[..., object], tmp_path: Path) -> None:
    """When the ring cannot be made, the job runs on with one message."""
    (tmp_path / "rings").write_text("")
    done = play("plain")
    assert done.stderr == (  # type: ignore[attr-defined]
        f"hindmost: this rank's NCCL calls are not recorded: {tmp_path / 'rings'}: Not a directory\n"
    )
