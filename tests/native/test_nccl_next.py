"""Another NCCL profiler behind hindmost's plugin gets the calls that NCCL would make; neither fails the other."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.native import build

pytestmark = pytest.mark.needs("cc")

OLDEST, NEWEST = 1, 6
ALL = 0x7FFF
OURS = 0x46  # collectives, point-to-point and kernel channels
MASKS = {"collectives": 0x2, "kernels": 0x42, "steps": 0x10, "network": 0x80, "control": 0x20, "api": 0x200, "all": ALL}


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The other profiler, which offers one version of the interface."""
    folder = tmp_path_factory.mktemp("others")

    def other(version: int) -> Path:
        target = folder / f"libother{version}.so"
        if not target.exists():
            source = build.SOURCES.parents[2] / "tests" / "native" / "nccl_other.c"
            flags = ["-O1", "-shared", "-fPIC", f"-DVERSION={version}", "-I", str(build.SOURCES)]
            subprocess.run([*build.compiler(), *flags, str(source), "-o", str(target)], check=True)
        return target

    return other


@pytest.fixture
def play(
    compiled: Callable[..., Path], observed: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run nccl_chain.c against a plugin, hindmost's by default, under an NCCL of this version."""

    def run(
        version: int, *, plugin: Path | None = None, mask: int = ALL, calls: int = 3, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        line = [str(compiled("nccl_chain.c")), str(plugin or build.library("nccl")), str(version), str(calls)]
        set_here = {"OTHER_LOG": str(tmp_path / "log"), "OTHER_MASK": str(mask), "HOME": str(tmp_path)}
        done = subprocess.run(
            line, env=observed | set_here | environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done
        return done

    return run


@pytest.fixture
def log(tmp_path: Path) -> Callable[[], str]:
    """What the other has written down."""
    return (tmp_path / "log").read_text


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    ("offered", "spoken"),
    [(offered, spoken) for offered in range(OLDEST, NEWEST + 1) for spoken in range(offered, NEWEST + 1)],
)
def test_the_other_gets_the_calls_that_nccl_would_make(
    play: Callable[..., object],
    others: Callable[[int], Path],
    log: Callable[[], str],
    offered: int,
    spoken: int,
    mask: int,
) -> None:
    """Whatever it asks for and offers: as from an NCCL that speaks that version to it alone."""
    play(offered, plugin=others(offered), mask=mask)
    alone = log()
    play(spoken, mask=mask, HINDMOST_NCCL_NEXT=str(others(offered)))
    assert log() == alone
    assert alone.count("\n") > 2 or offered < 5


@pytest.mark.parametrize("version", [4, 5, 6])
def test_hindmost_records_the_same_beside_another(
    play: Callable[..., object], others: Callable[[int], Path], rings: Callable[[], list[ring.Reader]], version: int
) -> None:
    """Its collectives and sends, with GPU times."""
    play(version, HINDMOST_NCCL_NEXT=str(others(version)))
    play(version, HINDMOST_NCCL_NEXT="none")
    recorded = [
        [(e.kind, e.name, e.comm_id, e.seq, e.flags, e.value) for e in reader.poll() if e.kind != ring.MARK]
        for reader in rings()
    ]
    assert recorded[0] == recorded[1]
    assert [name for kind, name, *_ in recorded[0] if kind == ring.COLLECTIVE] == [
        "all_reduce",
        "broadcast",
        "all_gather",
    ]


def test_nccl_is_asked_for_what_both_want(
    play: Callable[..., subprocess.CompletedProcess[str]], others: Callable[[int], Path]
) -> None:
    """The masks are joined, and follow the other's when that changes."""
    assert play(5, mask=0x20, HINDMOST_NCCL_NEXT=str(others(5))).stdout == f"{OURS | 0x20:#x}\n"
    later = play(5, mask=0x2, HINDMOST_NCCL_NEXT=str(others(5)), OTHER_LATER=str(0x12))
    assert later.stdout == f"{OURS | 0x12:#x}\n"


def test_many_operations_keep_their_handles(
    play: Callable[..., object], others: Callable[[int], Path], log: Callable[[], str]
) -> None:
    """More than hindmost has places for, one after another."""
    play(5, plugin=others(5), mask=0x46, calls=5000)
    alone = log()
    play(5, mask=0x46, calls=5000, HINDMOST_NCCL_NEXT=str(others(5)))
    assert log() == alone


@pytest.mark.parametrize(
    "environ", [{"HINDMOST_PROBE": "0"}, {"HINDMOST_JOB_ID": ""}, {"HINDMOST_RING_DIR": "/dev/null/no"}]
)
def test_the_other_goes_on_where_hindmost_does_not_record(
    play: Callable[..., subprocess.CompletedProcess[str]],
    others: Callable[[int], Path],
    log: Callable[[], str],
    environ: dict[str, str],
) -> None:
    """Switched off, outside a job, or without a place for its ring; NCCL is then asked for the other's events only."""
    play(5, plugin=others(5), mask=0x2)
    alone = log()
    assert play(5, mask=0x2, HINDMOST_NCCL_NEXT=str(others(5)), **environ).stdout == "0x2\n"
    assert log() == alone


def test_hindmost_goes_on_where_the_other_fails(
    play: Callable[..., subprocess.CompletedProcess[str]],
    others: Callable[[int], Path],
    rings: Callable[[], list[ring.Reader]],
) -> None:
    """One line says so, and calls are recorded."""
    done = play(5, HINDMOST_NCCL_NEXT=str(others(5)), OTHER_FAILS="1")
    assert done.stderr == "hindmost: the NCCL profiler other failed with error 3; hindmost goes on without it\n"
    assert done.stdout == f"{OURS:#x}\n"
    assert [e.name for e in rings()[0].poll() if e.kind == ring.COLLECTIVE] == ["all_reduce", "broadcast", "all_gather"]


def test_one_that_offers_only_a_newer_version_is_left_out_in_one_line(
    play: Callable[..., subprocess.CompletedProcess[str]], others: Callable[[int], Path]
) -> None:
    """NCCL itself would not load it."""
    done = play(5, HINDMOST_NCCL_NEXT=str(others(6)))
    assert done.stderr == (
        f"hindmost: the NCCL profiler {others(6)} is left out: it offers no version of the interface from 1 to 5, "
        "which this NCCL speaks\n"
    )
    assert done.stdout == f"{OURS:#x}\n"


def test_one_that_cannot_be_loaded_is_left_out_in_one_line(
    play: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """With the reason of the system."""
    (line,) = play(5, HINDMOST_NCCL_NEXT="/no/such.so").stderr.splitlines()
    assert line.startswith(
        "hindmost: the NCCL profiler /no/such.so is left out: /no/such.so: cannot open shared object"
    )


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_nccl_without_gpu_times_is_said_to_go_unrecorded(
    play: Callable[..., subprocess.CompletedProcess[str]], rings: Callable[[], list[ring.Reader]], version: int
) -> None:
    """In one line; no ring is made."""
    assert play(version).stderr == (
        f"hindmost: this rank's NCCL calls are not recorded: this NCCL speaks version {version} of the profiler "
        "interface; use NCCL 2.27 or later\n"
    )
    assert rings() == []


@pytest.mark.parametrize("where", ["variable", "user's file", "named file", "default name"])
def test_the_other_is_found_where_nccl_finds_one(
    play: Callable[..., object],
    others: Callable[[int], Path],
    log: Callable[[], str],
    tmp_path: Path,
    where: str,
) -> None:
    """By its short name, from NCCL's configuration files, or as libnccl-profiler.so on the loader's path."""
    (tmp_path / "libnccl-profiler-short.so").symlink_to(others(5))
    configuration = "# NCCL's\nNCCL_DEBUG=WARN\nNCCL_PROFILER_PLUGIN=short\n"
    environ = {"LD_LIBRARY_PATH": str(tmp_path)}
    if where == "variable":
        environ["HINDMOST_NCCL_NEXT"] = "short"
    elif where == "user's file":
        (tmp_path / ".nccl.conf").write_text(configuration)
    elif where == "named file":
        (tmp_path / "site.conf").write_text(configuration)
        environ["NCCL_CONF_FILE"] = str(tmp_path / "site.conf")
    else:
        (tmp_path / "libnccl-profiler.so").symlink_to(others(5))
    play(5, **environ)
    assert log().startswith("init world 77 2 8 5 1\n")


def test_hindmost_is_not_put_behind_itself(
    play: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Where a nested run names another copy of the plugin, nothing is recorded twice."""
    copy = tmp_path / "copy.so"
    copy.write_bytes(build.library("nccl").read_bytes())
    assert play(5, HINDMOST_NCCL_NEXT=str(copy)).stderr == ""
