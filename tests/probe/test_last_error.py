"""The exception that ends a rank is its last word in the ring."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost import ring


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('x')", ["raised ValueError at job.py:2"]),
        ("__import__('json').loads('{')", ["raised JSONDecodeError at job.py:2"]),
        ("__import__('sys').exit(3)", []),
        ("raise KeyboardInterrupt", ["raised KeyboardInterrupt at job.py:2"]),
        ("try: 1 / 0\nexcept ZeroDivisionError: pass", []),
    ],
)
def test_an_exception_is_told_with_the_job_s_own_line(tmp_path: Path, body: str, said: list[str]) -> None:
    """Also where a library raised it; an exit and what was caught are no exception."""
    (tmp_path / "job.py").write_text(f"import hindmost.bootstrap; hindmost.bootstrap.start()\n{body}\n")
    placed = {"RANK": "0", "WORLD_SIZE": "2", "HINDMOST_JOB_ID": "j", "HINDMOST_RING_DIR": str(tmp_path / "rings")}
    environ = {**os.environ, **placed}
    subprocess.run([sys.executable, str(tmp_path / "job.py")], env=environ, capture_output=True, check=False)
    (path,) = (tmp_path / "rings").glob("*.py.*.ring")
    reader = ring.Reader(path)
    assert [one.name for one in reader.poll() if one.kind == ring.MARK and one.name.startswith("raised")] == said
    assert reader.closed
