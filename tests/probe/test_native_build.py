"""Building the C libraries: at first use, once, and with one clear line when it cannot be done."""

import platform
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost.native import build
from hindmost_cli import main


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose only compiler is ``tmp_path/bin/cc`` and whose cache is empty."""
    (tmp_path / "bin").mkdir()
    return {"PATH": f"{tmp_path / 'bin'}", "XDG_CACHE_HOME": str(tmp_path / "cache"), "LD_PRELOAD": "unwanted.so"}


@pytest.fixture
def cc(tmp_path: Path, environ: dict[str, str]) -> Callable[[str], Path]:
    """Install a compiler that is this shell script."""

    def install(script: str) -> Path:
        path = tmp_path / "bin" / "cc"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return install


#: A compiler that writes its own environment into what -o names, and counts its calls.
FAKE = 'echo >>{calls}; while [ "$1" != -o ]; do shift; done; echo "preload=$LD_PRELOAD" > "$2"'


def test_library_is_built_once(cc: Callable[[str], Path], environ: dict[str, str], tmp_path: Path) -> None:
    """The second call takes it from the cache; the compiler runs without the job's LD_PRELOAD; nothing is left over."""
    cc(FAKE.format(calls=tmp_path / "calls"))
    first = build.library("nccl", environ)
    assert build.library("nccl", environ) == first
    assert first.read_text() == "preload=\n"
    assert (tmp_path / "calls").read_text() == "\n"
    assert list(first.parent.iterdir()) == [first]
    assert first.parent == tmp_path / "cache" / "hindmost"


def test_builders_at_once_agree(cc: Callable[[str], Path], environ: dict[str, str], tmp_path: Path) -> None:
    """Several ranks that build at the same time all get the same whole library."""
    cc(FAKE.format(calls=tmp_path / "calls"))
    built: list[Path] = []
    threads = [threading.Thread(target=lambda: built.append(build.library("nccl", environ))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 4
    assert len(set(built)) == 1
    assert [path.name for path in built[0].parent.iterdir()] == [built[0].name]


def test_other_flags_make_another_library(cc: Callable[[str], Path], environ: dict[str, str], tmp_path: Path) -> None:
    """A library is rebuilt when the compiler changes."""
    cc(FAKE.format(calls=tmp_path / "calls"))
    (tmp_path / "bin" / "gcc").symlink_to("cc")
    assert build.library("nccl", environ) != build.library("nccl", environ | {"CC": "gcc"})


def test_no_compiler(environ: dict[str, str]) -> None:
    """Without a compiler the line names cc and the remedy."""
    with pytest.raises(build.BuildError, match=r"no C compiler \(cc\) on PATH: install gcc, set CC, or install"):
        build.library("pmpi", environ)


def test_compiler_that_fails(cc: Callable[[str], Path], environ: dict[str, str], tmp_path: Path) -> None:
    """Its first error is printed, in one line, and nothing is kept."""
    cc('echo "x.c: In function f:" >&2; echo "x.c:3: error: Python.h: no such file" >&2; exit 4')
    with pytest.raises(build.BuildError) as error:
        build.library("ring", environ)
    assert str(error.value) == "cc failed (4): x.c:3: error: Python.h: no such file"
    assert list((tmp_path / "cache" / "hindmost").iterdir()) == []


def test_cache_that_cannot_be_written(cc: Callable[[str], Path], environ: dict[str, str], tmp_path: Path) -> None:
    """The line names the folder."""
    cc("exit 0")
    (tmp_path / "cache").write_text("")
    with pytest.raises(build.BuildError, match=f"{tmp_path / 'cache' / 'hindmost'}: cannot keep built libraries here"):
        build.library("nccl", environ)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install made-up prebuilt libraries, as a wheel for ``machine`` does, into the folder ``name``."""

    def install(machine: str = platform.machine(), name: str = "prebuilt") -> Path:
        monkeypatch.setattr(build, "PREBUILT", tmp_path / name)
        build.PREBUILT.mkdir()
        for kind, flags in build.variants():
            (build.PREBUILT / build.prebuilt_name(kind, flags, machine)).write_text(f"{kind} {flags}")
        return build.PREBUILT

    return install


def test_a_prebuilt_library_needs_no_compiler(wheel: Callable[..., Path], environ: dict[str, str]) -> None:
    """Each kind comes from the wheel, where no compiler is; nothing is put into the cache."""
    assert not build.wheel_has_all()
    folder = wheel()
    assert {build.library(kind, environ).parent for kind in build.KINDS} == {folder}
    assert build.wheel_has_all()
    assert not build.cache_directory(environ).exists()


@pytest.mark.parametrize("flags", build.VARIANTS)
def test_the_prebuilt_shim_fits_its_mpi(
    wheel: Callable[..., Path], environ: dict[str, str], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """A wheel has a shim for every set of functions that an MPI may have, and the one that fits is taken."""
    wheel()
    symbols = b"".join(build.FEATURES[flag] for flag in flags)
    launcher = install_mpi(tmp_path / "mpi", "mpirun (Open MPI) 5.0", "libmpi.so.40", symbols)
    assert build.library("pmpi", environ, launcher).read_text() == f"pmpi {flags}"


def test_a_library_of_other_sources_is_not_loaded(
    wheel: Callable[..., Path], cc: Callable[[str], Path], environ: dict[str, str], tmp_path: Path
) -> None:
    """A prebuilt library for another machine, or of sources that have changed since, is passed over and built."""
    cc(FAKE.format(calls=tmp_path / "calls"))
    wheel("sparc64")
    built = build.library("nccl", environ)
    assert built.parent == build.cache_directory(environ)
    assert not build.is_prebuilt(built)
    assert not build.wheel_has_all()


@pytest.mark.parametrize("name", ["my env", "a:b"])
def test_a_library_is_preloaded(wheel: Callable[..., Path], environ: dict[str, str], tmp_path: Path, name: str) -> None:
    """LD_PRELOAD ends a path at a space or a colon: from such a path the library is copied to the cache."""
    wheel(name=name)
    path = build.library("pmpi", environ)
    assert path.parent == build.cache_directory(environ)
    assert path.read_text() == f"pmpi {()}"
    assert build.is_prebuilt(path)


def install_mpi(folder: Path, version: str, library: str, symbols: bytes) -> Path:
    """A made-up MPI installation; its mpirun."""
    for name in ("bin", "lib"):
        (folder / name).mkdir(parents=True)
    launcher = folder / "bin" / "mpirun"
    launcher.write_text(f"#!/bin/sh\necho '{version}'\n")
    launcher.chmod(0o755)
    (folder / "lib" / library).write_bytes(b"\x7fELF" + symbols)
    return launcher


@pytest.mark.parametrize(
    ("version", "library", "symbols", "flags"),
    [
        ("mpirun (Open MPI) 4.1.4", "libmpi.so.40", b"\0PMPI_Allreduce\0", ()),
        ("mpirun (Open MPI) 5.0.11", "libmpi.so.40", b"\0PMPI_Allreduce\0PMPI_Allreduce_init\0", ("-DHM_PERSISTENT",)),
        ("HYDRA build details:", "libmpi.so.12", b"\0PMPI_Allreduce_init\0PMPI_Allreduce_c\0", tuple(build.FEATURES)),
    ],
)
def test_shim_fits_its_mpi(tmp_path: Path, version: str, library: str, symbols: bytes, flags: tuple[str, ...]) -> None:
    """Newer functions are wrapped only where the library of this very mpirun has them."""
    launcher = install_mpi(tmp_path / "mpi", version, library, symbols)
    assert build.features(launcher, {"PATH": "/usr/bin:/bin"}) == flags


@pytest.mark.parametrize("says", ["slurm 23.02.6", "Python 3.11.2", "0.28.1"])
def test_shim_fits_the_mpirun_at_hand_where_the_launcher_is_no_mpis(tmp_path: Path, says: str) -> None:
    """srun, python and horovodrun belong to no MPI: a library next to them may not be the job's."""
    launcher = install_mpi(tmp_path / "slurm", says, "libmpi.so.12", b"\0PMPI_Allreduce_init\0PMPI_Allreduce_c\0")
    assert build.features(launcher, {"PATH": "/nowhere"}) == ()
    theirs = install_mpi(tmp_path / "mpi", "mpirun (Open MPI) 5.0", "libmpi.so.40", b"\0PMPI_Allreduce_init\0")
    assert build.features(launcher, {"PATH": f"{theirs.parent}:/usr/bin:/bin"}) == ("-DHM_PERSISTENT",)


def test_a_bare_library_has_to_show_whose_it_is(tmp_path: Path) -> None:
    """libmpi.so on the loader's path is another MPI's where the names that tell are missing."""
    launcher = install_mpi(tmp_path / "mpi", "mpirun (Open MPI) 5.0", "none.so", b"")
    install_mpi(tmp_path / "other", "", "libmpi.so", b"\0PMPI_Allreduce_c\0")
    environ = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path / "other/lib")}
    assert build.mpi_library(launcher, environ) != tmp_path / "other/lib/libmpi.so"


def test_no_mpi_at_all() -> None:
    """Without an mpirun nothing is assumed."""
    assert build.features(None, {"PATH": "/nowhere"}) == ()


@pytest.mark.needs("cc")
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """``hindmost native build`` says where each library lies; a wrong name or mpirun is one line."""
    assert main(["native", "build", "nccl"]) == 0
    assert Path(capsys.readouterr().out.split()[-1]).is_file()
    assert main(["native", "build", "opengl"]) == 2
    assert capsys.readouterr().err == "hindmost native: opengl: no such library; there are pmpi, nccl, ring\n"
    assert main(["native", "build", "--mpirun", "/no/mpirun"]) == 2
    assert capsys.readouterr().err == "hindmost native: --mpirun /no/mpirun: no such program; give its path\n"
