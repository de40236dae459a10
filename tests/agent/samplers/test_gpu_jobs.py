"""The map files that dcgm-exporter reads say which jobs a GPU has."""

from pathlib import Path

import pytest
from hindmost_agent.sampler import Absent, Host
from hindmost_agent.samplers.gpu_jobs import VARIABLE, GpuJobs


def jobs(sampler: GpuJobs) -> list[tuple[str, ...]]:
    assert all(value == 1 for value in sampler.sample())
    return [one.values for one in sampler.series]


def test_a_gpu_has_the_jobs_in_the_file_of_its_number(gpu_host: Host, tmp_path: Path) -> None:
    """Several where it is shared; of a MIG instance with the GPU's."""
    gpu_host.gpu_jobs = tmp_path
    (tmp_path / "0").write_text("812345\n")
    (tmp_path / "1").write_text("7_4\n9\n")
    (tmp_path / "1.0").write_text("11\n")
    assert jobs(GpuJobs(gpu_host)) == [
        ("GPU-00000000", "812345"),
        *(("GPU-00000001", job) for job in ("11", "7_4", "9")),
    ]


def test_a_job_goes_with_its_file(gpu_host: Host, tmp_path: Path) -> None:
    """The folder may come later, too: a prolog makes it."""
    gpu_host.gpu_jobs = tmp_path / "maps"
    sampler = GpuJobs(gpu_host)
    assert jobs(sampler) == []
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/0").write_text("5\n")
    assert jobs(sampler) == [("GPU-00000000", "5")]
    (tmp_path / "maps/0").unlink()
    assert jobs(sampler) == []


def test_other_files_and_what_is_no_id_are_left_out(gpu_host: Host, tmp_path: Path) -> None:
    """GPUs that are not there, folders, terminal escapes, a file without end."""
    gpu_host.gpu_jobs = tmp_path
    (tmp_path / "99").write_text("1\n")
    (tmp_path / "README").write_text("1\n")
    (tmp_path / "1").mkdir()
    endless = b"\n".join(b"%d" % number for number in range(100, 10**4))
    (tmp_path / "0").write_bytes(b"\x1b[31mred\n" + b"1" * 65 + b"\n8\n" + endless)
    assert jobs(GpuJobs(gpu_host)) == [("GPU-00000000", job) for job in ["100", *map(str, range(101, 113)), "8"]]


@pytest.mark.parametrize("value", ["", "maps"])
def test_without_a_folder_there_is_nothing_to_read(gpu_host: Host, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Most nodes have no such files."""
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(Absent, match=VARIABLE):
        GpuJobs(gpu_host)
