"""The table of collectives' requests is read without its lock while other threads change it."""

import subprocess
from pathlib import Path

import hindmost
import pytest
from hindmost.native import build

HERE = Path(__file__).parent
NATIVE = Path(hindmost.__file__).parent / "native"


@pytest.mark.needs("cc")
def test_threads_look_up_their_requests_in_parallel(tmp_path: Path) -> None:
    """Each finds its own while another adds and forgets, and the thread sanitizer sees no race."""
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    sanitized = [*build.compiler(), "-std=gnu11", "-g", "-O1", "-fsanitize=thread", "-pthread", f"-I{NATIVE}"]
    tried = subprocess.run(
        [*sanitized, "-o", tmp_path / "empty", tmp_path / "empty.c"], capture_output=True, check=False
    )
    if tried.returncode or subprocess.run([tmp_path / "empty"], capture_output=True, check=False).returncode:
        pytest.skip("needs the compiler's thread sanitizer")
    program = tmp_path / "requests"
    sources = [HERE / "request_threads.c", NATIVE / "pmpi_requests.c"]
    subprocess.run([*sanitized, "-o", program, *sources], check=True)
    done = subprocess.run([program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data race" not in done.stderr
