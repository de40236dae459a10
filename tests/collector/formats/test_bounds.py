"""Nothing that a recording holds or claims takes more memory or disk than is set aside for it."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hindmost.errors import HindmostError, UsageError
from hindmost_collector.formats import profiler_csv
from hindmost_collector.recordings import load as recordings
from hindmost_collector.recordings import rank_mapping, trace_files
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import write


def _archive(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_a_large_recording_is_read_in_windows_alike_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out is left out everywhere, and the report says so."""
    write(simulate(Scenario(4, 40)).run, tmp_path / "traces", "traces")
    whole = load(tmp_path / "traces")
    monkeypatch.setattr(rank_mapping, "MAX_OPERATIONS", 400)
    monkeypatch.setattr(rank_mapping, "WINDOW_NS", 500_000_000)
    monkeypatch.setattr(profiler_csv, "WINDOW_NS", 500_000_000)
    part = load(tmp_path / "traces")
    counts = np.bincount(part.collectives["rank"])
    assert counts.sum() < len(whole.collectives["rank"]) / 2
    assert counts.max() - counts.min() <= 12  # a step's operations at the edge of a window
    assert any("stay in memory" in note for note in part.notes)


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    """Names that lead elsewhere, and links, are no part of a recording."""
    members = {"../escaped.jsonl": b"x", "/tmp/hindmost-escaped.jsonl": b"x", "notes.txt": b"hello\n"}
    with pytest.raises(UsageError, match=r"found 1 of \.txt"):
        load(_archive(tmp_path / "a.tar.gz", **members))
    assert not (tmp_path / "escaped.jsonl").exists()
    assert not (tmp_path.parent / "escaped.jsonl").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are added up before anything is written; of each member no more than what it claims is read."""
    monkeypatch.setattr(trace_files, "MAX_UNPACKED_BYTES", 1000)
    big = b"\0" * 100_000
    for bomb in (_archive(tmp_path / "bomb.tar.gz", big=big), _zip(tmp_path / "bomb.zip", ("big", big))):
        with pytest.raises(HindmostError, match="unpacks to too much"):
            load(bomb)


def test_a_torn_archive_ends_in_one_line(tmp_path: Path) -> None:
    """Half a download is named as such."""
    path = _archive(tmp_path / "torn.tar.gz", big=np.random.default_rng(1).bytes(50_000))
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(UsageError, match=r"torn\.tar\.gz: damaged or cut short"):
        load(path)


def _zip(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_a_zip_archive_is_read_as_a_folder_is(tmp_path: Path) -> None:
    """As a download of several files comes; nothing in it is written elsewhere."""
    write(simulate(Scenario(2, 12)).run, tmp_path / "traces", "traces")
    found = [(f"job/{one.name}", one.read_bytes()) for one in sorted((tmp_path / "traces").iterdir())]
    run = load(_zip(tmp_path / "run.zip", *found, ("../escaped.csv", b"x")))
    assert run.job.id == "run"
    assert len(run.collectives["rank"]) == len(load(tmp_path / "traces").collectives["rank"]) > 0
    assert not (tmp_path / "escaped.csv").exists()


@pytest.mark.parametrize("torn", ["cut", "text", "a file that is a folder, too"])
def test_a_zip_archive_that_is_none_ends_in_one_line(tmp_path: Path, torn: str) -> None:
    """It is named, and what is wrong with it."""
    path = _zip(tmp_path / "torn.zip", ("a", b"x" * 5000), ("a/b", b"y"))
    if not torn.startswith("a file"):
        path.write_bytes(path.read_bytes()[:100] if torn == "cut" else b"hello\n")
    with pytest.raises(UsageError, match=r"torn\.zip: damaged or cut short"):
        load(path)


def test_of_a_file_that_an_archive_has_twice_the_last_counts(tmp_path: Path) -> None:
    """As tar itself does it, which adds to archives in this way."""
    path = tmp_path / "twice.tar"
    for content in (b"half a li", b'{"step": 0, "t_start": 1, "t_data": 2, "t_end": 5}\n'):
        with tarfile.open(path, "a") as archive:
            info = tarfile.TarInfo("steps.0.jsonl")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert len(load(path).steps["rank"]) == 1


def test_a_device_is_no_empty_folder() -> None:
    """What is neither a file nor a folder is called that."""
    with pytest.raises(UsageError, match="/dev/null: neither a file nor a folder"):
        load("/dev/null")


def test_empty_files_are_distinguished_from_an_empty_folder(tmp_path: Path) -> None:
    """Both are errors, each with its own sentence; so is a folder of nothing that is read."""
    with pytest.raises(UsageError, match="an empty folder"):
        load(tmp_path)
    (tmp_path / "manifest.json").touch()
    with pytest.raises(UsageError, match="no file in it that could be read"):
        load(tmp_path)
    (tmp_path / "prof.1.csv").touch()
    with pytest.raises(UsageError, match=": empty; give a run directory"):
        load(tmp_path)


def test_a_log_of_steps_without_their_start_is_told_what_it_lacks(tmp_path: Path) -> None:
    """In one line, and not with all formats that could be read."""
    (tmp_path / "steps.0.jsonl").write_text('{"step": 0, "t_end": 5}\n')
    message = rf"^{tmp_path}/steps\.0\.jsonl: no t_start; needs step, t_start, t_end in each line$"
    for path in (tmp_path, tmp_path / "steps.0.jsonl"):
        with pytest.raises(UsageError, match=message):
            load(path)


def test_what_was_injected_into_a_recording_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest of a recording has the truth: it is not opened, whatever it holds."""
    (tmp_path / "manifest.json").write_text('{"step": 1, "t_start": 1, "t_end": 2}')
    opened: list[str] = []
    monkeypatch.setattr(recordings, "sample", lambda path: opened.append(path.name) or trace_files.sample(path))
    (tmp_path / "other.json").touch()
    assert trace_files.walk(tmp_path) == [tmp_path / "other.json"]
    assert recordings.recordings_in(tmp_path) == [tmp_path]
    assert opened == ["other.json"]
