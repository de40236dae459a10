"""bench/equal_reports.py: two trees' reports are the same only where every byte is."""

from pathlib import Path

from bench.equal_reports import different, drawn, keep


def test_a_byte_or_a_missing_report_is_a_difference(tmp_path: Path) -> None:
    """Files of one size and time are read all the same."""
    here, other = tmp_path / "here", tmp_path / "other"
    for folder, text in ((here, "rank 1"), (other, "rank 2")):
        folder.mkdir()
        (folder / "same.txt").write_text("as it was")
        (folder / "changed.txt").write_text(text)
    (other / "added.txt").write_text("")
    assert different(here, other) == ["added.txt", "changed.txt"]


def test_what_a_tree_refuses_is_compared_too(tmp_path: Path) -> None:
    """An error is a report that says so."""
    keep(tmp_path, "torn", lambda: {}["no such key"])
    assert (tmp_path / "torn.json").read_text() == "KeyError: 'no such key'\n"


def test_jobs_are_those_of_their_seed() -> None:
    """Drawn again they are the same; and there are faults of each kind among them, and jobs with none."""
    jobs = [drawn(seed) for seed in range(200)]
    assert jobs == [drawn(seed) for seed in range(200)]
    assert {fault.cause for job in jobs for fault in job.faults} >= {"hang", "desync", "network", "input"}
    assert 20 < sum(not job.faults for job in jobs) < 80
